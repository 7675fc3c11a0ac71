"""The commands of `ich-mil`: each file reads the arguments of one, calls its work in `steps/`, and prints.

A file imports nothing heavy at its top: `ich-mil COMMAND --help` imports all of them.
"""

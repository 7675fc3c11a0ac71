"""Entry point of `python -m ich_mil`, the same as the command `ich-mil`."""

from ich_mil.cli import program

program()

"""What the commands do, a file each; `train.py` runs train, validate and report in a row.

The files of `ich-mil reproduce`, a benchmark protocol: reproduce, tasks, scoring, heads, look, analyses,
deployment, protocol_tables.
"""

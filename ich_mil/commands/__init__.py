"""Implementation of the commands, one file per command.

`train.py` runs `train`, `validate` and `report` in sequence. Benchmarks are no commands: see
`research`.
"""

"""Implementation of the commands, one file per command.

`train.py` runs `train`, `validate` and `report` in sequence. `ich-mil reproduce` lives in
`ich_mil.reproduce`.
"""

"""The steps of a run, a file each: train, validate, predict, report. `train.py` runs them in a row."""

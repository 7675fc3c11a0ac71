"""Heads of runs: what every family has in common, and the family of Gaussian processes."""

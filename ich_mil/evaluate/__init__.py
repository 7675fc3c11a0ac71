"""How good the scores are: metrics, intervals by patient, the baselines beside them, and the result table."""

"""How good scores are, by patient and beside baselines; and what can be promised, recalibrated, watched."""

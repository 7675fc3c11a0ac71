"""Threshold of positive scans and slices; apart from the metrics, which import scikit-learn."""

THRESHOLD = 0.5
"""Scans with at least this probability are called positive in accuracy, sensitivity, specificity and F1."""

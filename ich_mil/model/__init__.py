"""Finished runs and their predictions."""

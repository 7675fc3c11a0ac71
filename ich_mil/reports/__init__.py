"""Radiology reports: key terms of a collection, and scan labels from what sentences state about blood."""

"""Benchmark of labels from radiology reports."""

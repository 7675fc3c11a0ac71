"""Benchmarks of multiple-instance models on frozen features: the field, and context across slices."""

"""Benchmarks of bags with several modalities."""

"""Benchmarks of speed and quality; results in RESULTS.md."""

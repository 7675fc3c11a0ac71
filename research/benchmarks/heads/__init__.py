"""Benchmarks of the Gaussian-process heads on public features."""

"""Benchmarks of the bundled model on real head CT."""

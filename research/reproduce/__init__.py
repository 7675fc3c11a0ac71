"""Benchmarks from a protocol file to tables, figures and a report (`python -m research.reproduce`)."""

"""Benchmarks from a protocol file to tables, figures and a report (`ich-mil reproduce`)."""

"""Reproduction of published figures, and benchmarks; in a checkout only, imported by nothing in `ich_mil`."""

"""Benchmarks of keyword extraction."""

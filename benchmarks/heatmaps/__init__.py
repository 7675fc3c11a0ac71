"""Benchmark of the heatmaps on slices with known masks of blood."""

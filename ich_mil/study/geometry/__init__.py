"""Geometry of a CT series: slice planes, order, spacing, tilts, and its irregularities."""

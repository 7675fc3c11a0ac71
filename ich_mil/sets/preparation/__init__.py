"""Preparation of a data set: header index, choice and order of slices, HU, and their record."""

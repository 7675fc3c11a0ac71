"""Pixels of a CT slice as Hounsfield units, with padding and noise detected."""

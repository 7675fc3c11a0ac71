"""Attention CNN and its slice encoders."""

"""Fixtures of the tests of heads: a fitted Gaussian process, and scans to predict."""

from tests.gp.conftest import head, new

__all__ = ["head", "new"]

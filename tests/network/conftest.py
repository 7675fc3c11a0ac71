"""Prepared phantoms, those of the data sets."""

from tests.sets.conftest import dataset, prepared, rsna_root

__all__ = ["dataset", "prepared", "rsna_root"]

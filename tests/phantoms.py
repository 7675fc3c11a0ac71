"""Tiny data sets for tests: phantom studies of few, small slices."""

from pathlib import Path

from ich_mil.dicom.phantom import write_cq500, write_rsna

SIZE = 64


def rsna(root: Path, *, studies: int, seed: int = 0) -> Path:
    """A tiny RSNA-layout set."""
    write_rsna(root, n_studies=studies, seed=seed, size=SIZE)
    return root


def cq500(root: Path, *, studies: int, seed: int = 0) -> Path:
    """A tiny CQ500-layout set."""
    write_cq500(root, n_studies=studies, seed=seed, size=SIZE)
    return root

"""Tiny data sets for tests: phantom studies of few, small slices."""

from pathlib import Path

from pydicom import dcmread
from pydicom.config import disable_value_validation

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


def rewrite(path: Path, target: Path | None = None, **changes: object) -> None:
    """Change some elements of a file, in place or in a copy."""
    with disable_value_validation():
        image = dcmread(path)
        for keyword, value in changes.items():
            setattr(image, keyword, value)
        image.save_as(target or path)

"""NIfTI files for tests, from slices that lie lowest first, rows to the left, columns to the back."""

from pathlib import Path

import nibabel
import numpy as np
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

from ich_mil.phantoms.head import SITE_B
from ich_mil.phantoms.study import make_phantom


def image_of(
    slices: np.ndarray, *, codes: str = "LPS", mm: tuple[float, float, float] = (1.0, 1.0, 5.0)
) -> nibabel.Nifti1Image:
    """Volume of slices (n, H, W) with voxel axes in the order `codes`; `mm` are columns, rows and slices."""
    affine = np.diag([-mm[0], -mm[1], mm[2], 1.0])
    affine[:3, 3] = (50, 60, -70)
    image = nibabel.Nifti1Image(slices.transpose(2, 1, 0), affine)
    return image.as_reoriented(ornt_transform(io_orientation(affine), axcodes2ornt(codes)))


def head(seed: int = 0) -> np.ndarray:
    """HU (24, 64, 64) of a phantom; its pixels measure about 4 mm."""
    phantom = make_phantom(np.random.default_rng(seed), bleeds=[], site=SITE_B, size=64, n_slices=24)
    return phantom.hu


def save_head(path: Path, seed: int = 0, **changes) -> Path:
    """Write a phantom as a NIfTI file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image_of(head(seed), mm=(3.6, 3.6, 6.0), **changes), path)
    return path

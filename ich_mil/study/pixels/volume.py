"""Pixel reader for NIfTI files: one volume as HU.

In: a NIfTI file. Out: int16 values (n, H, W) of its slices in the order of their headers, which
`ich_mil.study.pixels.read.read_slice` checks and clips slice by slice.

Legend: `n` slices, `H, W` pixels.
"""

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ich_mil.ledger import Code
from ich_mil.study.files.nifti import grid_of, open_nifti
from ich_mil.study.files.refusal import refusal, refusal_of
from ich_mil.study.pixels.hounsfield import HU_MIN, has_air
from ich_mil.study.pixels.padding import AIR

if TYPE_CHECKING:
    from nibabel.arrayproxy import ArrayProxy


def read_volume(path: Path) -> tuple[np.ndarray, tuple[tuple[Code, str], ...]]:
    """Read a volume as HU = scl_slope * stored + scl_inter, (n, H, W) int16, and a note per repair.

    Values that are not numbers are set to air.

    Raises:
        DicomError: as `nifti_headers`; the voxels cannot be read (`unreadable`), or no voxel is air
            (`no-hu-scale`): a mask, a normalised picture, or HU with an offset.
    """
    image, voxels = open_nifti(path)
    grid, _ = grid_of(path, image)
    down, across = grid.steps
    try:
        packed = path.suffix.lower() == ".gz"
        stored = _inflated(path, voxels) if packed else np.asanyarray(voxels.get_unscaled())
        stored = stored.reshape(grid.shape, order="F")
    except Exception as error:  # of nibabel, gzip or zlib
        raise refusal_of(path, error, failed="voxels cannot be read") from error
    stored = stored.transpose(grid.axes)[:, ::down, ::across]  # (n, H, W)
    slope, intercept = float(voxels.slope), float(voxels.inter)
    limits = np.iinfo(np.int16)
    volume = np.empty(stored.shape, np.int16)
    n_lost = 0
    for picture, values in zip(volume, stored, strict=True):
        hu = slope * values.astype(np.float64) + intercept  # (H, W)
        n_lost += int(np.count_nonzero(lost := np.isnan(hu)))
        hu[lost] = AIR
        picture[:] = np.rint(hu).clip(limits.min, limits.max)
    if not has_air(volume):
        low, high = volume.min(), volume.max()
        reason = f"its values run from {low} to {high} and none is air (-1024 to -500 HU): they are not HU"
        if np.count_nonzero(volume <= HU_MIN) > volume.size / 4:
            reason = f"its background is {low} throughout: air and scalp were removed, or it is not in HU"
        raise refusal(path, Code.NO_HU_SCALE, reason)
    detail = f"{n_lost} voxels that are not numbers set to {AIR} HU"
    return volume, ((Code.PADDING, detail),) if n_lost else ()


def _inflated(path: Path, voxels: "ArrayProxy") -> np.ndarray:
    """Stored values of a `.nii.gz` file.

    The file is read to its end, where gzip compares the check sum. nibabel stops at the last voxel.
    """
    from nibabel.volumeutils import array_from_file

    with gzip.open(path) as file:
        stored = array_from_file(voxels.shape, voxels.dtype, file, voxels.offset)
        while file.read(1 << 20):
            pass
    return np.asanyarray(stored)

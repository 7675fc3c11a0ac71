"""Header reader for NIfTI files: one volume as the slices of one scan.

In: the path of a `.nii` or `.nii.gz` file (NIfTI-1 or NIfTI-2). Out: one `SliceHeader` per slice, or a
`DicomError` whose code gives the reason for refusal. NIfTI has no identifiers: the scan id is the path
without its suffix, the slices are `<scan>#<index>`, and only a BIDS name (`sub-01_ct.nii.gz`) has a patient.

Slices are taken along the voxel axis nearest to the feet-head axis. If their voxels were more than twice as
long as wide, the volume was not acquired axially, and slices are taken along the longest voxel axis. Rows of
axial slices run to the patient's left, columns to the back, whatever the order of the file; the frame index
is that of the file along the slice axis.

Source: nifti1.h (patient axes are RAS; DICOM has LPS), PS3.3 C.7.6.2.1.1 (position and orientation).
"""

import gzip
import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from ich_mil.errors import ConfigError, DicomError, check_installed
from ich_mil.ledger import Code
from ich_mil.study.files.header import SliceHeader, StoredPixels
from ich_mil.study.files.refusal import (
    COSINE_TOLERANCE,
    FARTHEST_MM,
    MOST_FRAMES,
    PIXEL_MM,
    refusal,
    refusal_of,
)

if TYPE_CHECKING:
    from nibabel.arrayproxy import ArrayProxy
    from nibabel.nifti1 import Nifti1Image

SYNTAX = "NIfTI"
"""`StoredPixels.syntax` of slices of NIfTI files."""
MOST_VOXELS = 1 << 29
"""Maximum number of voxels: 2,048 slices of 512 x 512."""
LONGEST_PIXEL = 2.0
"""Maximum ratio of the sides of a pixel of axial slices."""
_SUFFIX = re.compile(r"\.nii(\.gz)?$", re.IGNORECASE)
_SUBJECT = re.compile(r"(?:^|/)(sub-[0-9A-Za-z]+)(?=[_/]|$)")
_SEX = re.compile(r"(?<=[\d_ -])[MFmf]$")
"""Sex of a patient at the end of a file name, which says nothing on a series."""
_LPS = np.diag([-1.0, -1.0, 1.0])


class Grid(NamedTuple):
    """Order of the voxels of a volume as slices.

    Attributes:
        shape: numbers of voxels of the file, three.
        axes: voxel axes along which slices, rows and columns are numbered.
        steps: 1, or -1 where rows, columns are numbered against the file.
    """

    shape: tuple[int, ...]
    axes: tuple[int, int, int]
    steps: tuple[int, int]


def is_nifti(path: str) -> bool:
    """Whether a file has the suffix of a NIfTI file."""
    return _SUFFIX.search(path) is not None


def without_suffix(path: str) -> str:
    """Path without `.nii` or `.nii.gz`."""
    return _SUFFIX.sub("", path)


def nifti_headers(path: Path, scan: str) -> tuple[SliceHeader, ...]:
    """Read the headers of the slices of a volume; `scan` is the scan id.

    Raises:
        DicomError: the file is refused, with code
            `no-decoder` (nibabel is not installed),
            `not-opened` (operating system error),
            `unreadable` (not NIfTI, truncated, impossible sizes),
            `not-ct` (colours or complex numbers),
            `multi-frame` (several volumes),
            `no-geometry` (impossible voxel sizes or axes).
    """
    try:
        image, _ = open_nifti(path)
        grid, notes = grid_of(path, image)
        rows, columns, position, step, orientation, spacing = _planes(path, image, grid)
    except DicomError as error:
        error.study_uid = scan
        raise
    n_slices = grid.shape[grid.axes[0]]
    subject = _SUBJECT.search(scan)
    positions = position + np.arange(n_slices)[:, None] * step  # (n, 3)
    return tuple(
        SliceHeader(
            path=str(path),
            frame=index,
            sop_uid=f"{scan}#{index}",
            study_uid=scan,
            series_uid=path.name,
            patient_id=subject[1] if subject else "",
            rows=rows,
            columns=columns,
            position=(x, y, z),
            orientation=orientation,
            spacing=spacing,
            thickness=None,
            instance_number=None,
            acquisition=None,
            description=_SEX.sub("", PurePath(scan).name),
            kernel="",
            body_part="",
            contrast=False,
            # HU of `read_volume`; a rim of exactly 0 HU around the picture is padding of resampled volumes
            pixels=StoredPixels(SYNTAX, 0, n_slices, 16, 16, True, 1.0, 0.0, (0, 0)),
            notes=notes,
        )
        for index, (x, y, z) in enumerate(positions.tolist())
    )


def open_nifti(path: Path) -> tuple["Nifti1Image", "ArrayProxy"]:
    """Open a NIfTI file: header, and voxels that are not read yet. Errors as in `nifti_headers`."""
    try:
        check_installed("nibabel", "nifti", "it is NIfTI")
    except ConfigError as error:
        raise refusal(path, Code.NO_DECODER, str(error)) from error
    import nibabel

    try:
        with path.open("rb"):  # nibabel drops the number of an error
            pass
        with nibabel.imageglobals.LoggingOutputSuppressor():
            image = nibabel.load(path)
        if not isinstance(image, nibabel.Nifti1Image):
            raise ValueError(f"its content is {type(image).__name__}")
        voxels = cast("ArrayProxy", image.dataobj)
        values = image.get_data_dtype()
        if values.kind in "iuf":
            _check_length(path, voxels.offset + int(np.prod(image.shape)) * values.itemsize)
    except Exception as error:  # a damaged header can raise any exception in nibabel
        raise refusal_of(path, error, failed="not a readable NIfTI file") from error
    if values.kind not in "iuf":
        raise refusal(path, Code.NOT_CT, f"its values are {values}, colours or complex; numbers are needed")
    return image, voxels


def _check_length(path: Path, needed: int) -> None:
    """Raise `EOFError` if a file, inflated, has fewer than `needed` bytes."""
    if path.suffix.lower() != ".gz":
        if (have := path.stat().st_size) < needed:
            raise EOFError(f"truncated: {have} of {needed} bytes")
        return
    with path.open("rb") as file:
        file.seek(-4, 2)  # RFC 1952: the last four bytes are the inflated size modulo 2^32
        if int.from_bytes(file.read(4), "little") == needed % (1 << 32):
            return
    with gzip.open(path) as inflated:  # several gzip members, or bytes after the volume
        inflated.seek(needed - 1)
        if not inflated.read(1):
            raise EOFError(f"truncated: fewer than {needed} bytes")


def grid_of(path: Path, image: "Nifti1Image") -> tuple[Grid, tuple[tuple[Code, str], ...]]:
    """Order of the voxels as slices, and notes if the file does not give the orientation."""
    from nibabel import io_orientation

    sizes = list(image.shape)
    while len(sizes) > 3 and sizes[-1] == 1:
        sizes.pop()
    if len(sizes) > 3:
        n_volumes = int(np.prod(sizes[3:]))
        raise refusal(path, Code.MULTI_FRAME, f"it holds {n_volumes} volumes; save one as a file of its own")
    shape = (*sizes, 1, 1)[:3]
    if min(shape) < 1 or max(shape) > MOST_FRAMES or np.prod(shape) > MOST_VOXELS:
        raise refusal(path, Code.UNREADABLE, f"it has {' x '.join(map(str, shape))} voxels: too few or many")
    axes = image.affine[:3, :3]
    sides = np.linalg.norm(axes, axis=0)  # (3,) mm
    if not np.isfinite(image.affine).all() or not PIXEL_MM[0] <= sides.min() <= sides.max() <= PIXEL_MM[1]:
        shown = " x ".join(f"{side:g}" for side in sides)
        reason = f"voxels of {shown} mm; {PIXEL_MM[0]:g} to {PIXEL_MM[1]:g} mm are possible"
        raise refusal(path, Code.NO_GEOMETRY, reason)
    if abs(np.linalg.det(axes / sides)) < 0.5:
        raise refusal(path, Code.NO_GEOMETRY, "its voxel axes are not at right angles")
    order, runs = io_orientation(image.affine).T.astype(int)  # patient axis (R, A, S) and sign of voxel axes
    voxel_axis = np.argsort(order)
    slices = 2
    plane = sides[voxel_axis[:2]]
    if plane.max() > LONGEST_PIXEL * plane.min():
        slices = int(plane.argmax())
    across, down = (axis for axis in range(3) if axis != slices)
    chosen = tuple(int(voxel_axis[axis]) for axis in (slices, down, across))
    # left, back and feet are the negative directions of R, A and S
    steps = tuple(-1 if runs[axis] > 0 else 1 for axis in chosen[1:])
    return Grid(shape, chosen, steps), _orientation_notes(image)  # type: ignore[arg-type]


def _orientation_notes(image: "Nifti1Image") -> tuple[tuple[Code, str], ...]:
    from nibabel import aff2axcodes

    qform, q = image.get_qform(coded=True)
    sform, s = image.get_sform(coded=True)
    detail = ""
    if not q and not s:
        detail = "qform and sform are not set: voxels are taken to run to the left, front and head"
    elif q and s and (q_axes := aff2axcodes(qform)) != (s_axes := aff2axcodes(sform)):
        detail = f"qform ({''.join(q_axes)}) and sform ({''.join(s_axes)}) differ: sform was used"
    return ((Code.ORIENTATION_UNKNOWN, detail),) if detail else ()


def _planes(
    path: Path, image: "Nifti1Image", grid: Grid
) -> tuple[int, int, np.ndarray, np.ndarray, tuple[float, ...], tuple[float, float]]:
    """Rows, columns, position (3,) of slice 0 and step (3,) in mm, orientation and spacing; axes are LPS."""
    slices, down, across = grid.axes
    axes = _LPS @ image.affine[:3, :3]  # (3, 3)
    row, column = axes[:, across] * grid.steps[1], axes[:, down] * grid.steps[0]
    position = _LPS @ image.affine[:3, 3]
    for axis, step in zip((down, across), grid.steps, strict=True):
        if step < 0:
            position = position + (grid.shape[axis] - 1) * axes[:, axis]
    spacing = (float(np.linalg.norm(column)), float(np.linalg.norm(row)))
    row, column = row / spacing[1], column / spacing[0]
    if abs(row @ column) > COSINE_TOLERANCE:
        raise refusal(path, Code.NO_GEOMETRY, "its rows and columns are not at a right angle")
    last = position + (grid.shape[slices] - 1) * axes[:, slices]
    if max(np.abs(position).max(), np.abs(last).max()) > FARTHEST_MM:
        raise refusal(path, Code.NO_GEOMETRY, f"its origin is beyond {FARTHEST_MM:g} mm")
    orientation = tuple(np.concatenate([row, column]).tolist())
    return grid.shape[down], grid.shape[across], position, axes[:, slices], orientation, spacing

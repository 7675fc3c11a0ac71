"""Synthetic bleeds: hemorrhage-like insertions in HU, drawn into real scans without hemorrhage.

In: HU of a scan, the heights of its slices, a random generator. Out: the changed slices, or None if the scan
has no room. The shape is a lens or crescent under the inner table of the skull (epidural, subdural), or a
ragged ellipsoid in the brain, with or without a dark rim (oedema). It is filled with blood or, as a control,
with the grey of brain tissue. A network that detects the border of insertions cannot distinguish the two; a
network that detects blood can.

Inside the shape the local mean is moved to the fill, and the noise of the picture is kept:

    out = hu + w (fill + texture - mean(hu)),    w in [0, 1], falling over EDGE at the border

Where w = 0 all values are unchanged to the bit: the slice is not smoothed, resampled or scaled.

The pixel spacing is not an input, so lengths are relative to the head: the largest cross-section inside the
skull is taken as `CROSS_SECTION`. Sizes are drawn uniformly from ranges set by hand, not fitted to data.

Legend: `n` slices of the scan, `m` slices that a shape may reach, `k` changed slices, `H, W` pixels, `h, w`
cells (about `CELLS` per side).
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from ich_mil.dicom.anatomy import BONE_FROM, BRAIN

Mask = NDArray[np.bool_]
Field = NDArray[np.float64]

CELLS = 256
"""Approximate number of cells per side of masks and shapes: a finer grid changes nothing and is slower."""
CLOSED = 2
"""Half the width, in cells, of the widest skull gap (suture, fracture) that is closed."""
CROSS_SECTION = 18_000.0
"""Assumed largest cross-section inside the skull [mm²]: 140 to 250 cm² in CT-ICH (`dicom.anatomy`)."""
LEAST_SECTION = 0.35
"""Smallest cross-section of a slice for a bleed, as a share of the largest; excludes skull base, vertex."""
LEAST_AREA = 40.0
"""Smallest visible area [mm²] of the shape on a slice; at least one slice must reach it."""
EDGE = 1.5
"""Width of the border [mm]: partial volume, as at the border of real bleeds."""
BLOOD = (55.0, 80.0)
"""Acute blood [HU]: 50-80 (Parizel et al., Eur Radiol 2001, 10.1007/s003300000800), without the faintest."""
GREY = (20.0, 42.0)
"""White to grey matter [HU]: the fill of controls."""
OEDEMA = (15.0, 25.0)
"""Oedema [HU]: the rim."""
TEXTURE = 3.0
"""Standard deviation of the smooth variation within a bleed [HU]."""
SQUARE = np.ones((3, 3), np.bool_)
"""Structuring element: a cell and its eight neighbours."""
FAR = -50.0
"""Finite substitute for minus infinity in interpolated distances [mm]."""
MARGIN = 30
"""Margin around a shape for the computation of its local mean [pixels]."""
TRIES = 4
"""Number of draws before a scan is considered to have no room."""


@dataclass(frozen=True)
class Insertion:
    """Slices changed by an insertion.

    Attributes:
        slices: (k,) indices of the changed slices in the scan, ascending.
        hu: (k, H, W) HU of these slices after the insertion.
        shown: (k,) whether the slice contains at least `LEAST_AREA` of the shape.
    """

    slices: NDArray[np.int64]
    hu: NDArray[np.int16]
    shown: Mask


def inside_skull(hu: NDArray[np.int16]) -> Mask:
    """Mask (n, h, w) of the cells inside the skull: on each slice, the largest region enclosed by bone.

    The mask of a slice is empty if that region is not mostly in the HU range of brain, as below the skull
    base. `hu` is (n, H, W).
    """
    cell = _cell(hu.shape)
    h, w = cells_of(hu.shape)
    blocks = hu[:, : h * cell, : w * cell].reshape(len(hu), h, cell, w, cell)
    bone = blocks.max(axis=(2, 4)) >= BONE_FROM  # (n, h, w)
    value = blocks[:, :, 0, :, 0]  # one pixel per cell suffices to distinguish brain from air
    inside = np.zeros_like(bone)
    for found, walls, values in zip(inside, bone, value, strict=True):
        regions, _ = ndimage.label(~ndimage.binary_dilation(walls, iterations=CLOSED))
        sizes = np.bincount(regions.ravel())
        sizes[[0, *np.unique([regions[0], regions[-1]]), *np.unique([regions[:, 0], regions[:, -1]])]] = 0
        largest = int(sizes.argmax())
        if sizes[largest] == 0:
            continue
        region = ndimage.binary_dilation(regions == largest, iterations=CLOSED)
        if ((values[region] >= BRAIN[0]) & (values[region] <= BRAIN[1])).mean() > 0.7:
            found |= region
    return inside


def insert(
    hu: NDArray[np.int16],
    heights: NDArray[np.float64],
    inside: Mask,
    rng: np.random.Generator,
    *,
    blood: bool,
) -> Insertion | None:
    """Draw one bleed (fill `BLOOD`), or one control (fill `GREY`), into a scan.

    From the same state of `rng`, blood and control have the same shape. `hu` (n, H, W) is not modified,
    `heights` (n,) are in mm, `inside` (n, h, w) comes from `inside_skull`. None: no slice has room.
    """
    area = inside.sum(axis=(1, 2))  # (n,) cells
    if not area.any():
        return None
    mm = float(np.sqrt(CROSS_SECTION / area.max()))  # side of a cell in mm
    eligible = np.flatnonzero(area >= LEAST_SECTION * area.max())
    inside, heights = inside[eligible], heights[eligible]
    for _ in range(TRIES):
        centre = int(rng.integers(len(eligible)))
        make = _under_skull if rng.random() < 0.6 else _in_brain
        near, shape, rim = make(inside, heights, centre, mm, rng)
        shown = (inside[near] & (shape > 0)).sum(axis=(1, 2)) * mm**2 >= LEAST_AREA  # (m,)
        if shown.any():
            reached = (shape > -rim - EDGE).any(axis=(1, 2))
            near, shape, shown = near[reached], shape[reached], shown[reached]
            fill = rng.uniform(*(BLOOD if blood else GREY))
            oedema = rng.uniform(*OEDEMA)
            drawn = hu[eligible[near]]
            for one, room, away in zip(drawn, inside[near], shape, strict=True):
                _fill(one, room, away, rim, fill, oedema, mm, rng)
            return Insertion(slices=eligible[near], hu=drawn, shown=shown)
    return None


def _under_skull(
    inside: Mask, heights: NDArray[np.float64], centre: int, mm: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], Field, float]:
    """Lens or crescent with thickness T √(1 - ρ²), ρ the distance from its centre in half lengths.

    Returns:
        Indices (m,) of the slices that the shape may reach; signed distance (m, h, w) [mm] to the surface,
        positive inside the shape, exact down to -`EDGE` and one cell beyond; width of the rim [mm]: 0.
    """
    lens = rng.random() < 0.7
    half = rng.uniform(15, 35) if lens else rng.uniform(30, 65)
    thickness = rng.uniform(4, 14) if lens else rng.uniform(3, 9)
    half_height = half * rng.uniform(0.5, 1.0)
    y, x = _one_of(inside[centre] & ~ndimage.binary_erosion(inside[centre], SQUARE), rng)
    near = np.flatnonzero(abs(heights - heights[centre]) < half_height)
    margin = int((half + thickness + EDGE) / mm) + 3
    box = _box(y, y, x, x, margin=margin, shape=inside.shape[1:])
    rows, columns = np.ogrid[box]
    across = ((rows - y) ** 2 + (columns - x) ** 2) * mm**2 / half**2
    field = np.full((len(near), *inside.shape[1:]), -np.inf)
    for part, n in zip(field, near, strict=True):
        rho2 = across + ((heights[n] - heights[centre]) / half_height) ** 2
        walled = np.pad(inside[n][box], 1)  # cells beyond the box are farther away than the thickness
        depth = ndimage.distance_transform_edt(walled)[1:-1, 1:-1] * mm
        part[box] = np.where(rho2 < 1, thickness * np.sqrt(np.clip(1 - rho2, 0, 1)) - depth, -np.inf)
    return near, field, 0.0


def _in_brain(
    inside: Mask, heights: NDArray[np.float64], centre: int, mm: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], Field, float]:
    """Ragged ellipsoid with half axes a, b, c; its signed distance is (1 - ρ) b, with ρ in half axes.

    Returns as `_under_skull`.
    """
    a = rng.uniform(5, 18)
    b, c = a * rng.uniform(0.6, 1.0), a * rng.uniform(0.6, 1.2)
    rim = rng.uniform(2, 6) if rng.random() < 0.5 else 0.0
    turn = rng.uniform(0, np.pi)
    deep = ndimage.distance_transform_edt(inside[centre]) * mm > min(b, 8.0)
    y, x = _one_of(deep if deep.any() else inside[centre], rng)
    down, across = np.ogrid[: inside.shape[1], : inside.shape[2]]
    u = ((across - x) * np.cos(turn) + (down - y) * np.sin(turn)) * mm / a
    v = ((down - y) * np.cos(turn) - (across - x) * np.sin(turn)) * mm / b
    ragged = np.maximum(1 + 0.2 * _slow(inside.shape[1:], a / 3 / mm, rng), 0.6)
    near = np.flatnonzero(abs(heights - heights[centre]) < c + rim)
    up = (heights[near, None, None] - heights[centre]) / c
    return near, (1 - np.sqrt(u**2 + v**2 + up**2) * ragged) * b, rim


def _fill(
    hu: NDArray[np.int16],
    inside: Mask,
    shape: Field,
    rim: float,
    fill: float,
    oedema: float,
    mm: float,
    rng: np.random.Generator,
) -> None:
    """Fill the shape on one slice (H, W), in place, by the formula at the top of the file."""
    cell = _cell(hu.shape)
    part = _around(shape > -rim - EDGE, MARGIN // cell + 2)  # cells of all pixels that affect the result
    room = inside[part].repeat(cell, 0).repeat(cell, 1)
    away = _finer(shape[part], cell)
    changed = room & (away > -rim - EDGE / 2)
    if not changed.any():
        return
    box = _around(changed, MARGIN)
    here = hu[tuple(slice(of.start * cell, of.stop * cell) for of in part)][box]  # a view
    away, room, changed = away[box], room[box], changed[box]
    sigma = 2.0 * cell / mm  # 2 mm in pixels
    mean = ndimage.gaussian_filter(np.where(room, here, 0.0), sigma)
    mean /= np.maximum(ndimage.gaussian_filter(room.astype(np.float64), sigma), 1e-6)
    w_rim = np.clip((away + rim) / EDGE + 0.5, 0, 1) if rim else np.zeros(here.shape)
    ground = w_rim * (oedema - mean)
    w_fill = np.clip(away / EDGE + 0.5, 0, 1)
    texture = TEXTURE * _slow(here.shape, sigma, rng)
    moved = here + ground + w_fill * (fill + texture - mean - ground)
    here[:] = np.where(changed, np.rint(moved), here)


def cells_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Number of cells (h, w) for an array shape that ends with H, W."""
    return shape[-2] // _cell(shape), shape[-1] // _cell(shape)


def _cell(shape: tuple[int, ...]) -> int:
    """Side of a cell in pixels."""
    return max(1, min(shape[-2:]) // CELLS)


def _around(mask: Mask, margin: int) -> tuple[slice, slice]:
    """Bounding box (rows, columns) of a mask, extended by a margin."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    return _box(rows[0], rows[-1], columns[0], columns[-1], margin=margin, shape=mask.shape)


def _box(
    top: int, bottom: int, left: int, right: int, *, margin: int, shape: tuple[int, ...]
) -> tuple[slice, slice]:
    """Rows and columns of a box (last ones included), extended by a margin and clipped to the picture."""
    return (
        slice(max(0, top - margin), min(shape[0], bottom + margin + 1)),
        slice(max(0, left - margin), min(shape[1], right + margin + 1)),
    )


def _finer(field: Field, cell: int) -> Field:
    """Upsample a field from cells to pixels, by linear interpolation between the centres of cells."""
    if cell == 1:
        return field
    cells = torch.from_numpy(np.maximum(field, FAR))[None, None]
    pixels: Field = torch.nn.functional.interpolate(cells, scale_factor=cell, mode="bilinear")[0, 0].numpy()
    return pixels


def _one_of(mask: Mask, rng: np.random.Generator) -> tuple[int, int]:
    y, x = np.nonzero(mask)
    place = int(rng.integers(len(y)))
    return int(y[place]), int(x[place])


def _slow(shape: tuple[int, ...], sigma: float, rng: np.random.Generator) -> Field:
    """Smooth noise with mean about 0 and standard deviation 1."""
    noise = ndimage.gaussian_filter(rng.standard_normal(shape), sigma)
    smooth: Field = noise / max(float(noise.std()), 1e-9)
    return smooth

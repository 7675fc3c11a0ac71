"""Whether a CT series shows a head: enough voxels of brain range inside bone.

In: HU of a series and its pixel spacing. Out: None, or one sentence that says why it is no head.

The picture is reduced to cells of about 4 mm. A cell lies inside bone if in at least 11 of 16 directions a
straight line of at most about 125 mm meets bone through nothing but soft tissue: between brain and skull is
neither fat nor air, but there is between heart and ribs, bladder and pelvis, skin and head holder. 5 of 16
may miss, so a piece of the skull may be absent or cut off by the field of view. Cells of brain range (brain,
CSF, fresh blood) inside bone count where they fill a disc 20 mm wide, as brain does; spinal canal, marrow and
noise do not. The best slice decides, so single slices and parts of a head can pass.

Brain on the best slice [cm²], measured on all that was at hand:

| head | cm² | no head | cm² |
|---|---|---|---|
| CT-ICH, 55 scans | 140-250 | shoulders, thoracic spine, localizer | 0 |
| GE head, CT2, two other real slices | 78-178 | drawn chest, belly, neck, thighs | 0 |
| phantoms (bone kernel, 64 pixels) | 139-213 (76) | drawn pelvis (bladder full of contrast) | 0 (19) |
| RSNA slices above the skull base | 22-170 | drawn jaw, solid without fat | 17 |
| RSNA slices at the skull base | 4-18 | water in acrylic or bone, cylinders, air | 0 |
| a quarter (third) of the skull removed | 46-121 (36) | noise | 4 |
| 15 % (25 %) of the head cut off | 76 (30) | RSNA slices of air or bone of the vertex | 0 |
| CT-ICH shrunk to 55 %, bone to 40 % | 41 | RSNA slice of the face | 0 |

Legend: `n` slices, `H, W` pixels, `h, w` cells.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_opening

Mask = NDArray[np.bool_]

# Side of a cell [mm]: half the least width of brain that counts, and wide enough for noise to average out.
CELL = 4.0
# Side of the parts of a cell whose densest decides on bone [mm]. An infant's skull, 1-2 mm thick, would drown
# in the mean of a whole cell, and the densest single pixel of a cell may be noise.
PART = 2.0
# Least HU of bone: above fresh blood (at most 100) and acrylic (120), below an infant's skull.
BONE_FROM = 150
# Mean HU of a cell that is brain (25-45), acute blood (50-80; Parizel et al., Eur Radiol 2001,
# 10.1007/s003300000800) or CSF (5-15). The water of phantoms, 0 ± 4, is below.
BRAIN = (5, 95)
# A line ends in a cell of lower mean HU: fat is -120 to -60, air is less.
SOFT_FROM = -50
DIRECTIONS = 16
# A missing quarter of the skull hides 4 directions from the middle and more from beside the gap.
MIN_DIRECTIONS = 11
# A line is 2^5 = 32 cells long, about 125 mm; from the middle of a head no bone is farther than about 110 mm.
DOUBLINGS = 5
# Radius of the disc that brain fills [cells].
DISC = 2
# Least brain on the best slice [cm²]: above all that is no head, below half of the smallest whole head.
MIN_AREA = 20.0
# The same where there are fewer than `FEW` slices, which may all lie at the skull base or near the vertex.
MIN_AREA_FEW = 3.0
FEW = 5
# Share of the brain on the best slice above which the head does not end with the lowest or the highest slice.
CUT_OFF_FRACTION = 0.6
# Slices that are looked at before a series is refused.
MAX_LOOKS = 12


def _steps(angle: float) -> list[tuple[int, int]]:
    """The steps 1 d, 2 d, 4 d ... of a line, in whole rows and columns of cells."""
    down, across = math.sin(angle), math.cos(angle)
    return [(round(2**k * down), round(2**k * across)) for k in range(DOUBLINGS)]


STEPS = [_steps(2 * math.pi * k / DIRECTIONS) for k in range(DIRECTIONS)]
IN_DISC = np.array([np.hypot(*np.mgrid[-DISC : DISC + 1, -DISC : DISC + 1]) <= DISC])  # (1, h, w)
# Cells behind each row and each slice in which there is nothing: as many as the longest step has.
MARGIN = 2 ** (DOUBLINGS - 1)


def head_refusal(hu: NDArray[np.int16], *, spacing: tuple[float, float]) -> str | None:
    """Why a series shows no head, or None where it does.

    At most `MAX_LOOKS` evenly spaced slices are looked at, from the middle outwards, until one has enough.

    Args:
        hu: (n, H, W) HU.
        spacing: distance of neighbouring rows and of neighbouring columns [mm].

    Returns:
        One sentence with what was measured and what is needed, or None.

    Raises:
        ValueError: `hu` is empty or not three-dimensional, or a spacing is not a positive number.
    """
    _check(hu, spacing)
    n = len(hu)
    needed = MIN_AREA if n >= FEW else MIN_AREA_FEW
    looks = np.unique(np.linspace(0, n - 1, min(n, MAX_LOOKS)).round().astype(int)).tolist()
    largest = 0.0
    for index in sorted(looks, key=lambda look: abs(2 * look - (n - 1))):
        largest = max(largest, float(brain_area(hu[index : index + 1], spacing)[0]))
        if largest >= needed:
            return None
    slices = "the only slice" if n == 1 else f"the best of {len(looks)} slices looked at"
    return (
        f"{slices} holds {largest:.1f} cm² of brain-range tissue inside bone; "
        f"{needed:g} cm² are needed of a head"
    )


def head_cut_off(hu: NDArray[np.int16], *, spacing: tuple[float, float]) -> str | None:
    """Why a head goes on beyond the lowest or the highest slice, or None where it does not.

    Towards the vertex and below the skull base there is less and less brain. Against the best of five evenly
    spaced slices the highest of 55 CT-ICH scans has at most 19 %, the lowest at most 25 %; of 280 phantoms it
    is 51 and 56 %. Without its upper 20 mm a CT-ICH scan has 47-76 % on what is then the highest slice,
    without 30 mm 66-97 %. A loss below the brain is not found so, and one of fewer mm seldom.

    Args:
        hu: (n, H, W) HU of axial slices, lowest first.
        spacing: distance of neighbouring rows and of neighbouring columns [mm].

    Returns:
        One sentence with what was measured, or None; also where fewer than `FEW` slices say little.

    Raises:
        ValueError: `hu` is empty or not three-dimensional, or a spacing is not a positive number.
    """
    _check(hu, spacing)
    n = len(hu)
    if n < FEW:
        return None
    looks = np.linspace(0, n - 1, FEW).round().astype(int)  # both ends and three between them
    areas = brain_area(hu[looks], spacing)  # (FEW,)
    most = float(areas.max())
    ends = (("lowest", float(areas[0])), ("highest", float(areas[-1])))
    cut = [f"the {which} slice holds {area:.0f}" for which, area in ends if area > CUT_OFF_FRACTION * most]
    if most < MIN_AREA or not cut:
        return None
    return f"{' and '.join(cut)} of the {most:.0f} cm² of brain on the fullest one: the head goes on there"


def brain_area(hu: NDArray[np.int16], spacing: tuple[float, float]) -> NDArray[np.float64]:
    """Area of brain-range tissue inside bone on each slice.

    Args:
        hu: (n, H, W) HU.
        spacing: distance of neighbouring rows and of neighbouring columns [mm].

    Returns:
        (n,) areas [cm²].

    Raises:
        ValueError: `hu` is empty or not three-dimensional, or a spacing is not a positive number.
    """
    _check(hu, spacing)
    rows, columns = (max(1, round(PART / side)) for side in spacing)
    parts = _join(hu, np.add, rows, columns)  # sums of rows * columns pixels
    down, across = (
        max(1, round(CELL / (side * k))) for side, k in zip(spacing, (rows, columns), strict=True)
    )
    bone = _join(parts, np.maximum, down, across) >= BONE_FROM * rows * columns  # (n, h, w)
    mean = _join(parts, np.add, down, across) / (rows * columns * down * across)  # (n, h, w)
    brain = (mean >= BRAIN[0]) & (mean <= BRAIN[1]) & ~bone
    brain &= _directions_to_bone(bone, mean >= SOFT_FROM) >= MIN_DIRECTIONS
    area_of_cell = spacing[0] * rows * down * spacing[1] * columns * across / 100  # cm²
    return binary_opening(brain, IN_DISC).sum(axis=(1, 2)) * area_of_cell


def _directions_to_bone(bone: Mask, soft: Mask) -> NDArray[np.uint8]:
    """In how many of the directions a line from each cell meets bone before it meets anything lighter.

    Lines grow by doubling. With F_L(p): the first L cells of the line from p meet bone; S_L(p): all of them
    are soft tissue or bone; d: the direction,

        F_2L(p) = F_L(p) or (S_L(p) and F_L(p + L d)),    S_2L(p) = S_L(p) and S_L(p + L d).

    Args:
        bone: (n, h, w) cells that hold bone.
        soft: (n, h, w) cells that a line passes.

    Returns:
        (n, h, w) counts of 0..`DIRECTIONS`.
    """
    all_bone, all_soft = _to_bits(bone), _to_bits(soft)
    width = bone.shape[2] + MARGIN
    count = np.zeros(bone.shape, np.uint8)
    for steps in STEPS:
        found, clear = all_bone, all_soft
        for down, across in steps:
            step = down * width + across
            found |= clear & _ahead(found, step)
            clear &= _ahead(clear, step)
        count += _from_bits(found, bone.shape)
    return count


def _to_bits(mask: Mask) -> int:
    """The mask as one integer with a bit for each cell: many times faster to shift than an array.

    With a margin behind each row and each slice, a step of some rows and columns is a constant number of
    bits, and what leaves the picture lands where nothing is.
    """
    wide = np.pad(mask, ((0, 0), (0, MARGIN), (0, MARGIN)))
    return int.from_bytes(np.packbits(wide, bitorder="little").tobytes(), "little")


def _from_bits(bits: int, shape: tuple[int, ...]) -> Mask:
    """The (n, h, w) mask that `_to_bits` made one integer of."""
    n, h, w = shape
    size = n * (h + MARGIN) * (w + MARGIN)
    packed = np.frombuffer(bits.to_bytes(size // 8 + 1, "little"), np.uint8)
    wide = np.unpackbits(packed, bitorder="little", count=size).view(np.bool_)
    return wide.reshape(n, h + MARGIN, w + MARGIN)[:, :h, :w]


def _ahead(bits: int, step: int) -> int:
    """At each cell, what is `step` cells ahead."""
    return bits >> step if step >= 0 else bits << -step


def _join(values: NDArray[np.integer[Any]], how: np.ufunc, rows: int, columns: int) -> NDArray[np.int32]:
    """Join blocks of `rows` x `columns` by `how`; what fills no block at the far edges is left out."""
    h, w = values.shape[1] // rows * rows, values.shape[2] // columns * columns
    tall = values[:, 0:h:rows].astype(np.int32)  # (n, h / rows, W)
    for row in range(1, rows):
        how(tall, values[:, row:h:rows], out=tall)
    joined = tall[:, :, 0:w:columns].copy()  # (n, h / rows, w / columns)
    for column in range(1, columns):
        how(joined, tall[:, :, column:w:columns], out=joined)
    return joined


def _check(hu: NDArray[np.int16], spacing: tuple[float, float]) -> None:
    if hu.ndim != 3 or hu.size == 0:
        raise ValueError(f"HU must be a non-empty (n, H, W) array; got shape {hu.shape}")
    if not all(math.isfinite(side) and side > 0 for side in spacing):
        raise ValueError(f"pixel spacing must be two positive numbers of mm; got {spacing}")

"""Head detection in a CT series by the area of brain-range tissue enclosed by bone.

In: HU of a series and its pixel spacing. Out: None for a head, otherwise one sentence with the reason.

Each slice is reduced to cells of about 4 mm. A cell is enclosed by bone if straight lines in at least 11 of
16 directions reach bone within about 125 mm and cross only soft tissue. No fat or air lies between brain and
skull, but some lies between heart and ribs, bladder and pelvis, skin and head holder. Five directions may
miss, so part of the skull may be absent or outside the field of view. Enclosed cells in the HU range of
brain, CSF and fresh blood count if they fill a disc 20 mm wide; spinal canal, marrow and noise do not fill
it. The slice with the largest area decides, so single slices and parts of a head can pass.

Largest area per scan [cm²] on all data available during development: 140-250 in 55 CT-ICH scans (with a third
of the skull removed 36, with 25 % of the head cut off 30), 78-178 in other real heads, 76-213 in phantoms;
22-170 in RSNA slices above the skull base and 4-18 at the skull base. Without a head: 19 in a drawn pelvis
with a bladder full of contrast agent, 17 in a drawn jaw without fat, 4 in noise; 0 in shoulders, thoracic
spine and a localizer, drawn chest, belly, neck and thighs, cylinders of water, and RSNA slices of vertex,
face and air.

Legend: `n` slices, `H, W` pixels, `h, w` cells.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_opening

Mask = NDArray[np.bool_]

# Side of a cell [mm]: small enough to resolve the disc, large enough to average out noise.
CELL = 4.0
# Side of the sub-cells for bone detection [mm]; a cell is bone if its densest sub-cell is. The mean of a
# whole cell would hide an infant's skull (1-2 mm thick), and the densest single pixel may be noise.
PART = 2.0
# Minimum HU of bone: above fresh blood (at most 100) and acrylic (120), below an infant's skull.
BONE_FROM = 150
# Range of a cell's mean HU: brain (25-45), acute blood (50-80; Parizel et al., Eur Radiol 2001,
# 10.1007/s003300000800) and CSF (5-15). Water phantoms (0 ± 4) lie below it.
BRAIN = (5, 95)
# A line stops at a cell with a lower mean HU: fat (-120 to -60) or air.
SOFT_FROM = -50
DIRECTIONS = 16
# If a quarter of the skull is missing, 4 directions miss bone from the middle, more from beside the gap.
MIN_DIRECTIONS = 11
# A line has 2^5 = 32 cells, about 125 mm; bone is at most about 110 mm from the middle of a head.
DOUBLINGS = 5
# Radius of the disc that counted tissue must fill [cells].
DISC = 2
# Minimum area on the best slice [cm²]: above every non-head, below half of the smallest whole head.
MIN_AREA = 20.0
# Minimum area for fewer than `FEW` slices, which may all lie at the skull base or near the vertex [cm²].
MIN_AREA_FEW = 3.0
FEW = 5
# If an end slice holds a larger fraction of the largest area, the head continues beyond it.
CUT_OFF_FRACTION = 0.6
# Maximum number of slices examined per series.
MAX_LOOKS = 12


# Offsets of 1, 2, 4, ... cells along each direction, rounded to whole (rows, columns).
STEPS = [
    [(round(2**k * math.sin(angle)), round(2**k * math.cos(angle))) for k in range(DOUBLINGS)]
    for angle in np.linspace(0, 2 * math.pi, DIRECTIONS, endpoint=False).tolist()
]
IN_DISC = np.array([np.hypot(*np.mgrid[-DISC : DISC + 1, -DISC : DISC + 1]) <= DISC])  # (1, h, w)
# Empty cells after each row and each slice: the length of the longest step.
MARGIN = 2 ** (DOUBLINGS - 1)


def head_refusal(hu: NDArray[np.int16], *, spacing: tuple[float, float]) -> str | None:
    """Reason why a series shows no head, or None if it shows one.

    At most `MAX_LOOKS` evenly spaced slices are examined, from the middle outwards, until one has enough
    brain-range tissue.

    Args:
        hu: (n, H, W) HU.
        spacing: distance between neighbouring rows and between neighbouring columns [mm].

    Raises:
        ValueError: `hu` is empty or not three-dimensional, or a spacing is not a positive number.
    """
    n = len(hu)
    needed = MIN_AREA if n >= FEW else MIN_AREA_FEW
    looks = np.unique(np.linspace(0, n - 1, min(n, MAX_LOOKS)).round().astype(int)).tolist()
    largest = 0.0
    for index in sorted(looks, key=lambda look: abs(2 * look - (n - 1))):
        largest = max(largest, float(brain_area(hu[index : index + 1], spacing)[0]))
        if largest >= needed:
            return None
    slices = "the only slice" if n == 1 else f"the best of {len(looks)} examined slices"
    return f"{slices} has {largest:.1f} cm² of brain-range tissue inside bone; a head needs {needed:g} cm²"


def head_cut_off(hu: NDArray[np.int16], *, spacing: tuple[float, float]) -> str | None:
    """Evidence that the head continues beyond the lowest or the highest slice, or None.

    The brain area falls towards the vertex and the skull base. Areas are compared with the largest of five
    evenly spaced slices. In 55 CT-ICH scans the highest slice has at most 19 % of it and the lowest at most
    25 %; in 280 phantoms at most 51 % and 56 %. With the upper 20 mm removed, the new highest slice of the
    CT-ICH scans has 47-76 %; with 30 mm removed, 66-97 %. The test cannot detect missing slices below the
    brain and rarely detects a smaller loss.

    Returns:
        One sentence with the measured areas of the axial slices `hu` (n, H, W), lowest first, or None; always
        None for fewer than `FEW` slices.
    """
    n = len(hu)
    if n < FEW:
        return None
    looks = np.linspace(0, n - 1, FEW).round().astype(int)  # both ends and three in between
    areas = brain_area(hu[looks], spacing)  # (FEW,)
    most = float(areas.max())
    ends = (("lowest", float(areas[0])), ("highest", float(areas[-1])))
    cut = [f"the {which} slice has {area:.0f}" for which, area in ends if area > CUT_OFF_FRACTION * most]
    if most < MIN_AREA or not cut:
        return None
    return f"{' and '.join(cut)} of the {most:.0f} cm² of brain on the largest one: the head continues there"


def brain_area(hu: NDArray[np.int16], spacing: tuple[float, float]) -> NDArray[np.float64]:
    """Area of brain-range tissue enclosed by bone on each slice of `hu` (n, H, W): (n,) cm².

    Raises:
        ValueError: `hu` is empty or not three-dimensional, or a spacing [mm] is not a positive number.
    """
    if hu.ndim != 3 or hu.size == 0:
        raise ValueError(f"HU must be a non-empty (n, H, W) array; got shape {hu.shape}")
    if not all(math.isfinite(side) and side > 0 for side in spacing):
        raise ValueError(f"pixel spacing must be two positive numbers of mm; got {spacing}")
    rows, columns = (max(1, round(PART / side)) for side in spacing)
    sums = _join(hu, np.add, rows, columns)  # sums of rows * columns pixels
    down, across = (
        max(1, round(CELL / (side * k))) for side, k in zip(spacing, (rows, columns), strict=True)
    )
    bone = _join(sums, np.maximum, down, across) >= BONE_FROM * rows * columns  # (n, h, w)
    mean = _join(sums, np.add, down, across) / (rows * columns * down * across)  # (n, h, w)
    brain = (mean >= BRAIN[0]) & (mean <= BRAIN[1]) & ~bone
    brain &= _directions_to_bone(bone, mean >= SOFT_FROM) >= MIN_DIRECTIONS
    area_of_cell = spacing[0] * rows * down * spacing[1] * columns * across / 100  # cm²
    return binary_opening(brain, IN_DISC).sum(axis=(1, 2)) * area_of_cell


def _directions_to_bone(bone: Mask, soft: Mask) -> NDArray[np.uint8]:
    """Number of directions in which a line from each cell reaches bone before fat or air.

    Lines grow by doubling. F_L(p) is true if any of the first L cells of the line from p is bone, reached
    through soft tissue. S_L(p) is true if all of them are soft tissue or bone. With the direction d,

        F_2L(p) = F_L(p) or (S_L(p) and F_L(p + L d)),    S_2L(p) = S_L(p) and S_L(p + L d).

    `bone` and `soft`, cells that a line may cross, and the counts are (n, h, w).
    """
    # With empty cells after each row and slice, every (rows, columns) step is one offset in the flat array,
    # and cells that leave the picture land in the margin.
    margin = ((0, 0), (0, MARGIN), (0, MARGIN))
    all_bone, all_soft = np.pad(bone, margin), np.pad(soft, margin)
    count = np.zeros(all_bone.shape, np.uint8)
    for steps in STEPS:
        reached, clear = all_bone.ravel(), all_soft.ravel()
        for down, across in steps:
            offset = -(down * all_bone.shape[2] + across)
            reached = reached | clear & np.roll(reached, offset)
            clear = clear & np.roll(clear, offset)
        count += reached.reshape(count.shape)
    return count[:, : bone.shape[1], : bone.shape[2]]


def _join(values: NDArray[np.integer[Any]], how: np.ufunc, rows: int, columns: int) -> NDArray[np.int32]:
    """Reduce blocks of `rows` x `columns` with the ufunc `how`; drop incomplete blocks at the far edges."""
    h, w = values.shape[1] // rows * rows, values.shape[2] // columns * columns
    tall = values[:, 0:h:rows].astype(np.int32)  # (n, h / rows, W)
    for row in range(1, rows):
        how(tall, values[:, row:h:rows], out=tall)
    joined = tall[:, :, 0:w:columns].copy()  # (n, h / rows, w / columns)
    for column in range(1, columns):
        how(joined, tall[:, :, column:w:columns], out=joined)
    return joined

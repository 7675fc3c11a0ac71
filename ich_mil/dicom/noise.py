"""Rows of a slice that are noise: bytes that are no picture, read as one.

In: int16 HU (H, W). Out: the rows that are noise. A damaged file can decode without error: from some byte on
its values are random (RSNA 2019 has such a slice, noise from about row 333 on), or every value is made of the
halves of two neighbours. Such rows show in the step from pixel to pixel, the root mean square of

    hu[i, j + 1] - hu[i, j]   over j, in HU.

For unrelated neighbours this is sqrt(2) times the standard deviation of the row; von Neumann's ratio is its
square over the variance, 2 for unrelated neighbours. The step alone tells noise from anatomy, because a
scanner spreads every edge over several pixels and its own noise is tens of HU. Measured, largest of all rows:

* 34,048 rows of 67 real slices: 148 HU (ratio at most 0.07 where the row has a standard deviation of 300)
* the same with Gaussian noise of 60 HU: 164; of 200 HU: 320
* the same binned to 256 x 256: 246
* the same with simulated metal, projected and reconstructed with its streaks: 264
* phantoms of 256 x 256, whose edges are sharper than any scanner's: 330

and of what is no picture, the step that a sixteenth of the rows exceed, smallest over the pictures:

* random 16-bit values, after clipping to the CT scale: 966 HU; random 12-bit values: 1747
* the 67 real slices with their bytes shifted by one: 1111; here smooth regions stay smooth, so not every row
  is noise.

Source: von Neumann, Ann. Math. Statist. 12 (1941) 367 (mean square successive difference).
Legend: `H, W` pixels.
"""

import numpy as np

# Eight edges from -1024 to 3095 HU, each within one pixel, in a row of 512: no anatomy, no metal.
NOISE_STEP = 500
# Narrower pictures are tests and phantoms, whose edges are one pixel wide; CT scanners make 256 and more.
NARROWEST = 256
# Enough of a picture to refuse it; noise is found from 4 of 64 looked-at rows on.
NOISE_FRACTION = 1 / 16
# One row in this many is looked at first.
EVERY = 8


def noise_rows(hu: np.ndarray) -> np.ndarray:
    """The rows whose neighbouring pixels are unrelated, if they are a sixteenth of the picture or more.

    Args:
        hu: (H, W) int16 Hounsfield units in -1024..3095, as `to_hu` gives them.

    Returns:
        Row numbers from 0, ascending; empty for a picture, and for all that is narrower than 256 pixels.
    """
    if hu.shape[1] < NARROWEST:
        return np.empty(0, dtype=np.intp)
    seen = hu[::EVERY]
    if np.count_nonzero(_steps(seen) > NOISE_STEP) < NOISE_FRACTION * len(seen):
        return np.empty(0, dtype=np.intp)
    return np.flatnonzero(_steps(hu) > NOISE_STEP)


def _steps(hu: np.ndarray) -> np.ndarray:
    """Root mean square step from pixel to pixel of each row, HU (H,)."""
    step = np.diff(hu, axis=1).astype(np.float32)  # (H, W - 1)
    return np.sqrt(np.einsum("ij,ij->i", step, step) / step.shape[1])

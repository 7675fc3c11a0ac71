"""Detection of rows that hold noise instead of an image.

In: int16 HU (H, W). Out: indices of the noise rows. A damaged file can decode without error: from some byte
on its values are random (a slice of RSNA 2019 is noise from about row 333 on), or every value combines the
halves of two neighbours. The criterion for row i is the root mean square step between neighbouring pixels,

    hu[i, j + 1] - hu[i, j]   over j, in HU.

For independent neighbours it is sqrt(2) times the standard deviation of the row; von Neumann's ratio, its
square over the variance, is then 2. The step alone separates noise from anatomy, because a scanner spreads
every edge over several pixels and its own noise is tens of HU. Largest step over all rows of images:

* 34,048 rows of 67 real slices: 148 HU (ratio at most 0.07 in rows with a standard deviation of 300 HU)
* the same with Gaussian noise of 60 HU: 164 HU; of 200 HU: 320 HU
* the same binned to 256 x 256: 246 HU
* the same with simulated metal, projected and reconstructed with its streaks: 264 HU
* phantoms of 256 x 256, with sharper edges than any scanner: 330 HU

Step exceeded by one sixteenth of the rows of damaged images, smallest over the images:

* random 16-bit values, after clipping to the CT scale: 966 HU; random 12-bit values: 1747 HU
* the 67 real slices with their bytes shifted by one: 1111 HU; smooth regions stay smooth, so not every row
  is noise.

Source: von Neumann, Ann. Math. Statist. 12 (1941) 367 (mean square successive difference).
Legend: `H, W` pixels.
"""

import numpy as np

# RMS step of noise [HU]. A row of 512 reaches it with eight one-pixel edges from -1024 to 3095 HU, more than
# any anatomy or metal has.
NOISE_STEP = 500
# Minimum width [pixels]. CT slices have 256 or more; narrower pictures are phantoms with one-pixel edges.
NARROWEST = 256
# Minimum fraction of noise rows in a refused picture: 4 of the 64 rows examined first in a slice of 512.
NOISE_FRACTION = 1 / 16
# Stride of the rows examined first.
EVERY = 8


def noise_rows(hu: np.ndarray) -> np.ndarray:
    """Rows of noise, if they are at least one sixteenth of the picture.

    Args:
        hu: (H, W) int16 HU in -1024..3095, as returned by `to_hu`.

    Returns:
        Row indices from 0, ascending; empty for an intact image and for pictures narrower than 256 pixels.
    """
    if hu.shape[1] < NARROWEST:
        return np.empty(0, dtype=np.intp)
    seen = hu[::EVERY]
    if np.count_nonzero(_steps(seen) > NOISE_STEP) < NOISE_FRACTION * len(seen):
        return np.empty(0, dtype=np.intp)
    return np.flatnonzero(_steps(hu) > NOISE_STEP)


def _steps(hu: np.ndarray) -> np.ndarray:
    """Root mean square step between neighbouring pixels of each row, (H,) HU."""
    step = np.diff(hu, axis=1).astype(np.float32)  # (H, W - 1)
    return np.sqrt(np.einsum("ij,ij->i", step, step) / step.shape[1])

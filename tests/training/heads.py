"""A drawn head for tests of insertions: an ellipse of noisy brain inside bone, ventricles in the middle."""

import numpy as np


def head(slices: int = 8, size: int = 128) -> np.ndarray:
    """(n, size, size) int16 HU; the slices narrow towards the last, as towards the vertex."""
    rng = np.random.default_rng(0)
    down, across = np.mgrid[:size, :size] - (size - 1) / 2
    hu = np.full((slices, size, size), -1000, np.int16)
    for n in range(slices):
        r = np.hypot(down / 0.46, across / 0.38) / (size * (1 - 0.02 * n))
        brain = 35 + rng.normal(0, 6, r.shape)
        brain[np.hypot(down, across) < size * 0.05] = 8
        hu[n] = np.select([r < 0.9, r < 1.0], [np.rint(brain), 1000], -1000)
    return hu

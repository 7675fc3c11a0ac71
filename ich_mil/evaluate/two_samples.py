"""Do two samples of scans differ? Distances between them, for many deals of the scans at once.

In: numbers of each scan, and for each deal which scans are in the second sample. Out: a distance a deal. The
first deal is the samples as they came; the others, dealt anew, show what chance does, so the share of deals
at least as far out is an exact p-value where both samples come from one population.

Shapes: T scans of both samples, C columns, K principal components, R deals.
"""

import numpy as np
from scipy.spatial.distance import cdist

SCANS_PER_COMPONENT = 10
"""No more principal components than one for so many scans: with as many as scans all are equally far."""

LEAST_SPREAD = 1e-4
"""Components with less of the largest one's spread are rounding, and left out."""


def column_distances(table: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Kolmogorov-Smirnov distance of each column in each deal, (C, R).

    Args:
        table: (T, C).
        batch: (T, R) whether a scan is in the batch of that deal.
    """
    n = batch.sum(axis=0)  # (R,)
    step = np.where(batch, 1 / n, -1 / (len(batch) - n))  # (T, R) of the difference of both distributions
    found = np.empty((table.shape[1], batch.shape[1]))
    for c, column in enumerate(table.T):
        order = np.argsort(column, kind="stable")
        ends = np.flatnonzero(np.diff(column[order], append=np.inf))  # last of each group of equal values
        found[c] = np.abs(step[order].cumsum(axis=0)[ends]).max(axis=0)
    return found


def whitened(table: np.ndarray) -> np.ndarray:
    """Principal components of the standardised columns (T, C), each of variance 1: (T, K).

    Both samples together decide the components, so that every deal has the same. Constant columns take no
    part; where all are constant K is 0.
    """
    varied = table[:, np.ptp(table, axis=0) > 0]
    u, s, _ = np.linalg.svd((varied - varied.mean(axis=0)) / varied.std(axis=0), full_matrices=False)
    if len(s) == 0:
        return np.zeros((len(table), 0))
    kept = (s > LEAST_SPREAD * s[0]) & (np.arange(len(s)) < max(1, len(table) // SCANS_PER_COMPONENT))
    return u[:, kept] * np.sqrt(len(table))


def energy_distances(points: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Energy distance of batch and reference in each deal (R,), for points (T, K) and `batch` (T, R)."""
    apart = cdist(points, points) if points.shape[1] else np.zeros((len(points), len(points)))  # (T, T)
    inside = batch.astype(np.float64)
    n = inside.sum(axis=0)
    m = len(batch) - n
    within = (inside * (apart @ inside)).sum(axis=0)  # (R,) sums over pairs
    between = apart.sum(axis=0) @ inside - within
    rest = apart.sum() - 2 * between - within
    return n * m / (n + m) * (2 * between / (n * m) - within / n**2 - rest / m**2)


def chance(distance: np.ndarray, of: float) -> float:
    """Share of deals (R,) at least as far out as `of`; the first deal is the batch itself.

    Rounding must not make a deal that is as far out as the batch seem nearer.
    """
    return float((distance >= of - 1e-9 * abs(of)).mean())

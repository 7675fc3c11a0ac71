"""Two-sample distances for permutation tests: Kolmogorov-Smirnov and energy distance for many permutations.

In: a table of numbers for each scan, and for each permutation the scans that form the second sample. Out: the
distance in each permutation. The first one is the observed assignment, the others are random, so the fraction
of permutations with at least the observed distance is an exact p-value if both samples come from one
population.

Shapes: T scans of both samples, C columns, K principal components, R permutations.
"""

import numpy as np
from scipy.spatial.distance import cdist

SCANS_PER_COMPONENT = 10
"""Minimum of scans per component: with as many components as scans, all scans are equally distant."""

LEAST_SPREAD = 1e-4
"""Components below this fraction of the largest singular value are rounding noise and are left out."""


def column_distances(table: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Kolmogorov-Smirnov distance of each column in each permutation, (C, R).

    Args:
        table: (T, C).
        batch: (T, R) whether a scan is in the second sample of a permutation.
    """
    n = batch.sum(axis=0)  # (R,)
    step = np.where(batch, 1 / n, -1 / (len(batch) - n))  # (T, R) steps of the difference of the two ECDFs
    found = np.empty((table.shape[1], batch.shape[1]))
    for c, column in enumerate(table.T):
        order = np.argsort(column, kind="stable")
        ends = np.flatnonzero(np.diff(column[order], append=np.inf))  # last row of each tie group
        found[c] = np.abs(step[order].cumsum(axis=0)[ends]).max(axis=0)
    return found


def whitened(table: np.ndarray) -> np.ndarray:
    """Principal components (T, K), each of variance 1, of the standardised columns (T, C).

    The components are computed from both samples together, so all permutations share them. Constant columns
    are left out; if all columns are constant, K is 0.
    """
    varied = table[:, np.ptp(table, axis=0) > 0]
    u, s, _ = np.linalg.svd((varied - varied.mean(axis=0)) / varied.std(axis=0), full_matrices=False)
    if len(s) == 0:
        return np.zeros((len(table), 0))
    kept = (s > LEAST_SPREAD * s[0]) & (np.arange(len(s)) < max(1, len(table) // SCANS_PER_COMPONENT))
    return u[:, kept] * np.sqrt(len(table))


def energy_distances(points: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Energy distance (R,) of the two samples in each permutation, for points (T, K) and batch (T, R)."""
    apart = cdist(points, points) if points.shape[1] else np.zeros((len(points), len(points)))  # (T, T)
    inside = batch.astype(np.float64)
    n = inside.sum(axis=0)
    m = len(batch) - n
    within = (inside * (apart @ inside)).sum(axis=0)  # (R,) sums over pairs
    between = apart.sum(axis=0) @ inside - within
    rest = apart.sum() - 2 * between - within
    return n * m / (n + m) * (2 * between / (n * m) - within / n**2 - rest / m**2)


def chance(distance: np.ndarray, of: float) -> float:
    """Fraction of permutations (R,) with a distance of at least `of`, which is the observed one.

    The tolerance keeps permutations that equal the observed distance from falling below it by rounding.
    """
    return float((distance >= of - 1e-9 * abs(of)).mean())

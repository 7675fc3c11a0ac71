"""Small word graphs for the tests of keyword extraction."""

import numpy as np
from scipy import sparse


def random_walk_matrix(n: int, *, seed: int = 0, density: float = 0.15) -> sparse.csr_array:
    """Q (n, n) of a connected random graph with integer weights."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.integers(1, 5, (n, n)) * (rng.random((n, n)) < density), 1)
    A = upper + upper.T
    ring = np.arange(n)
    A[ring, (ring + 1) % n] = A[(ring + 1) % n, ring] = 2
    root = A.sum(axis=1) ** -0.5
    return sparse.csr_array(root[:, None] * A * root)


def first_known(n: int, known: int = 4) -> np.ndarray:
    """Mask (n,) of the first words."""
    return np.arange(n) < known

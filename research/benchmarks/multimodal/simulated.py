"""Bags of two modalities for the multimodal benchmarks: the authors' simulated set, and the thesis's design.

The design (thesis of seed 003, section 2.3.1): an instance is of the second modality with probability 1 /
(r + 1); features are N(0, 1) in the first and N(-1, 1) in the second, 16 each; P(primary) = Φ(a + x b) and
P(positive) = Φ(α + Σ δ x β). b = (1, ..., 1), d = γ = (-.5 x 8, .5 x 8), β = (-1 x 8, 1 x 8). a and c give
the wanted shares of primary instances: x b is N(0, 16), z d N(0, 4). The thesis names no α: 0 here.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from research.benchmarks.public_features import DATA

SIGNS = np.r_[-np.ones(8), np.ones(8)]
INNER = (np.ones(16), 0.5 * SIGNS)
OUTER = (SIGNS, 0.5 * SIGNS)


class Set(NamedTuple):
    """Features (N_m, 16), bags (N_m,) and primary instances δ (N_m,) of both modalities, labels (B,)."""

    X: list[np.ndarray]
    bags: list[np.ndarray]
    labels: np.ndarray
    primary: list[np.ndarray]


def authors_set() -> tuple[Set, Set]:
    """The authors' 500 training and 300 test bags of ten instances."""
    sets = []
    with np.load(DATA / "multimodal" / "simulated_500_300.npz") as file:
        for part in ("train", "test"):
            X, Z, second, y, delta = (file[f"{name}_{part}"] for name in ("X", "Z", "w", "y", "delta"))
            sets.append(_masked(X, Z, second.astype(bool), y.astype(int), delta.astype(int)))
    return sets[0], sets[1]


def _masked(X: np.ndarray, Z: np.ndarray, second: np.ndarray, y: np.ndarray, delta: np.ndarray) -> Set:
    bags = np.broadcast_to(np.arange(len(y))[:, None], second.shape)
    pick = (~second, second)
    return Set([X[~second], Z[second]], [bags[k] for k in pick], y, [delta[k] for k in pick])


def intercepts(ppi: tuple[float, float]) -> tuple[float, float]:
    """Inner intercepts a and c that give shares `ppi` of primary instances; the mean of z d is 0."""
    a, c = (float(ndtri(p) * np.sqrt(1 + v)) for p, v in zip(ppi, (16.0, 4.0), strict=True))
    return a, c


def simulate(n: int, m: int, r: float, ppi: tuple[float, float], rng: np.random.Generator) -> Set:
    """`n` bags of `m` instances of the thesis's design, `r` of the first modality for one of the second."""
    second = rng.random((n, m)) < 1 / (r + 1)
    x = rng.standard_normal((n, m, 16)) - second[..., None]
    score = sum(np.where(second == bool(k), a + x @ INNER[k], 0.0) for k, a in enumerate(intercepts(ppi)))
    delta = rng.random((n, m)) < ndtr(score)
    effect = np.where(second, x @ OUTER[1], x @ OUTER[0])
    y = rng.random(n) < ndtr((delta * effect).sum(1))
    return _masked(x, x, second, y.astype(int), delta.astype(int))


def oracle(
    test: Set, ppi: tuple[float, float], rng: np.random.Generator
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Bag and primary-instance probabilities at the true parameters, δ averaged over 1,000 draws."""
    primary = [ndtr(a + x @ b) for a, x, b in zip(intercepts(ppi), test.X, INNER, strict=True)]
    total = np.zeros(len(test.labels))
    for _ in range(1000):
        eta = np.zeros(len(test.labels))
        for x, bags, p, beta in zip(test.X, test.bags, primary, OUTER, strict=True):
            eta += np.bincount(bags, (rng.random(len(p)) < p) * (x @ beta), minlength=len(eta))
        total += ndtr(eta)
    return total / 1000, primary

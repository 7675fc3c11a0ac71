"""Drift alarm: permutation tests of a batch of scans against reference scans, without labels.

Features are compared by the energy distance (Székely & Rizzo 2013) between their whitened principal
components, scores by the Kolmogorov-Smirnov distance. Whitening is needed because network features are
correlated: a new site shows in directions of low variance. Patients are permuted between reference and batch;
the p-value is the fraction of permutations with at least the observed distance, exact if both samples come
from one population. The alarm is raised if either p-value is at most half the nominal rate (Bonferroni), so
the false alarm rate is at most the nominal rate, on average over references and batches.

An alarm shows that the input changed, not that the model performs worse; scores also depend on the
prevalence. The reference must be scans that neither the network nor the head was fitted to, since a model is
overconfident on its training scans.

Shapes: B reference scans, n scans of the batch, T = B + n, N slices, D features, C columns, K components,
R permutations, the first of which is the observed assignment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Self

import numpy as np
from scipy.spatial.distance import cdist

from ich_mil.errors import DataError
from ich_mil.evaluate.scores import patient_keys

PERMUTATIONS = 999
"""Number of random permutations of the patients behind a p-value."""

LEAST_BATCH = 10
"""Minimum number of scans: fewer detect only very large changes."""

MOST_SCANS = 2000
"""Larger samples are reduced to about this size, by random whole patients: memory grows quadratically."""

NAMED = 5
"""Number of columns listed in a result."""

SCORE = "score"

SCANS_PER_COMPONENT = 10
"""Minimum of scans per component: with as many components as scans, all scans are equally distant."""

LEAST_SPREAD = 1e-4
"""Components below this fraction of the largest singular value are rounding noise and are left out."""


def column_distances(table: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Kolmogorov-Smirnov distance (C, R) of each column (T, C); `batch` (T, R) is the second sample."""
    n = batch.sum(axis=0)  # (R,)
    step = np.where(batch, 1 / n, -1 / (len(batch) - n))  # (T, R) steps of the difference of the two ECDFs
    distances = np.empty((table.shape[1], batch.shape[1]))
    for c, column in enumerate(table.T):
        order = np.argsort(column, kind="stable")
        ends = np.flatnonzero(np.diff(column[order], append=np.inf))  # last row of each tie group
        distances[c] = np.abs(step[order].cumsum(axis=0)[ends]).max(axis=0)
    return distances


def whitened(table: np.ndarray) -> np.ndarray:
    """Principal components (T, K), each of variance 1, of the standardised columns (T, C).

    Constant columns are left out; if all columns are constant, K is 0.
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


def _permutation_p(distance: np.ndarray, observed: float) -> float:
    """Fraction of permutations (R,) with a distance of at least the observed value, up to rounding."""
    return float((distance >= observed - 1e-9 * abs(observed)).mean())


def column_names(n_features: int) -> list[str]:
    """Names of the 2D + 1 columns of `summarise`."""
    names = [f"{what} of feature {i}" for what in ("mean", "spread") for i in range(n_features)]
    return [*names, "slices"]


def summarise(x: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Summarise the slice features x (N, D) of each scan: mean and standard deviation, number of slices.

    Returns (B, 2D + 1) float64; the standard deviation of a scan with one slice is 0.
    """
    x, sizes = np.asarray(x, dtype=np.float64), np.diff(np.asarray(offsets))
    starts = np.asarray(offsets)[:-1]
    mean = np.add.reduceat(x, starts) / sizes[:, None]  # (B, D)
    apart = x - np.repeat(mean, sizes, axis=0)
    spread = np.sqrt(np.add.reduceat(apart**2, starts) / sizes[:, None])
    return np.column_stack([mean, spread, sizes])


@dataclass(frozen=True)
class ColumnChange:
    """Kolmogorov-Smirnov distance of a column, its p-value, and the medians of reference and batch.

    p-values of feature columns are adjusted by the maximum over columns (Westfall & Young 1993).
    """

    name: str
    distance: float
    p: float
    reference: float
    batch: float


@dataclass(frozen=True)
class DriftResult:
    """Result of a drift test.

    Attributes:
        p_features, p_scores: p-values.
        alarm: whether either p-value is at most half the rate.
        rate: maximum false alarm rate.
        statistic: energy distance nm/(n + m) · (2 E|X-Y| - E|X-X'| - E|Y-Y'|) of the features.
        score: change of the score.
        moved: the feature columns that changed most, at most `NAMED`.
        n: number of scans of the batch that were compared.
    """

    p_features: float
    p_scores: float
    alarm: bool
    rate: float
    statistic: float
    score: ColumnChange
    moved: tuple[ColumnChange, ...]
    n: int

    def text(self) -> str:
        """Describe the result in one paragraph."""
        facts = f"{self.n} scans, p = {self.p_features:.3g} for features and {self.p_scores:.3g} for scores"
        rate = f"false alarm in at most {100 * self.rate:g} % of batches"
        if not self.alarm:
            return (
                f"No drift found ({facts}; {rate}). A small change, or a change of few scans, can be missed."
            )
        changed = [self.score] if self.p_scores <= self.rate / 2 else []
        changed += [c for c in self.moved if c.p <= self.rate / 2]
        named = "; ".join(f"{c.name}: median {c.reference:.3g} -> {c.batch:.3g}" for c in changed)
        named = named or "No single column changed, but their combination did"
        return (
            f"Drift: these scans differ from the reference ({facts}; {rate}). {named}. The input has "
            "changed; the model need not be worse. Scores also depend on the fraction of positive scans."
        )


def _checked(
    features: np.ndarray, scores: np.ndarray, patients: Sequence[str] | np.ndarray, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """Features and score side by side (B, C + 1), and patients (B,)."""
    table = np.column_stack([features, scores]).astype(np.float64)
    keys = patient_keys(patients, len(table))
    if len(table) < LEAST_BATCH:
        raise DataError(f"{what}: drift needs at least {LEAST_BATCH} scans, got {len(table)}; collect more")
    if bad := np.flatnonzero(~np.isfinite(table).all(axis=1)).tolist():
        raise DataError(
            f"{what}: features or scores of {len(bad)} scans, first number {bad[0]}, are not finite"
        )
    return table, keys


def _part(table: np.ndarray, keys: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """At most about `MOST_SCANS` rows, by whole patients, and their patients numbered from 0."""
    owner = np.unique(keys, return_inverse=True)[1]
    sizes = np.bincount(owner)
    order = np.random.default_rng(seed).permutation(len(sizes))  # patients
    kept = np.isin(owner, order[sizes[order].cumsum() - sizes[order] < MOST_SCANS])
    return table[kept], np.unique(owner[kept], return_inverse=True)[1]


@dataclass(frozen=True)
class DriftAlarm:
    """Drift test with a stored reference.

    Attributes:
        table: (B, C + 1) columns of the reference scans, the score last.
        patients: (B,) their patients, numbered from 0.
        names: names of the C feature columns.
        rate: maximum false alarm rate.
    """

    table: np.ndarray
    patients: np.ndarray
    names: tuple[str, ...]
    rate: float
    seed: int

    @classmethod
    def fit(
        cls,
        features: np.ndarray,
        scores: np.ndarray,
        patients: Sequence[str] | np.ndarray,
        *,
        names: Sequence[str],
        rate: float = 0.05,
        seed: int,
    ) -> Self:
        """Store the reference: summaries (B, C) by `summarise` and scores (B,) of scans new to the model.

        `seed` draws the permutations, and the subsample of more than `MOST_SCANS` scans.

        Raises:
            DataError: fewer than `LEAST_BATCH` scans, or a value that is not finite.
            ValueError: `PERMUTATIONS` permutations cannot resolve the rate.
        """
        if not 2 / (PERMUTATIONS + 1) <= rate < 1:
            raise ValueError(f"rate must be at least {2 / (PERMUTATIONS + 1):g} and below 1, got {rate}")
        table, keys = _checked(features, scores, patients, "reference scans")
        return cls(*_part(table, keys, seed), tuple(names), float(rate), int(seed))

    def test(
        self, features: np.ndarray, scores: np.ndarray, patients: Sequence[str] | np.ndarray
    ) -> DriftResult:
        """Compare a batch with the reference; arguments as in `fit`, of n scans.

        The scans of a patient are permuted together. A key that is in both samples counts as two patients.

        Raises:
            DataError: fewer than `LEAST_BATCH` scans; a value that is not finite; another number of columns
                than the reference; or too few patients for any permutation to raise the alarm.
        """
        new, keys = _checked(features, scores, patients, "batch")
        if new.shape[1] != self.table.shape[1]:
            raise DataError(
                f"batch: {new.shape[1] - 1} feature columns, the reference has {len(self.names)}; summarise "
                "features of the same network"
            )
        new, batch_patients = _part(new, keys, self.seed)
        owner = np.concatenate([self.patients, batch_patients + self.patients.max() + 1])
        n_patients, in_batch = int(owner.max()) + 1, int(batch_patients.max()) + 1
        if comb(n_patients, in_batch) < 2 / self.rate:
            raise DataError(
                f"batch: {in_batch} patients, and {n_patients - in_batch} of the reference, are too few to "
                f"raise the alarm at a rate of {self.rate:g}; collect scans of more patients"
            )
        generator = np.random.default_rng(self.seed)
        ranks = generator.permuted(np.tile(np.arange(n_patients)[:, None], PERMUTATIONS), axis=0)
        seen = (np.arange(n_patients) >= n_patients - in_batch)[:, None]  # the observed batch
        batch = np.column_stack([seen, ranks < in_batch])[owner]  # (B + n, 1 + R)
        table = np.concatenate([self.table, new])
        energy = energy_distances(whitened(table[:, :-1]), batch)  # (1 + R,)
        distance = column_distances(table, batch)  # (C + 1, 1 + R)
        # if patients have several scans, permuted batches differ in size; small ones have larger distances
        sizes = batch.sum(axis=0)
        scaled = distance * np.sqrt(sizes * (len(batch) - sizes))
        largest = scaled[:-1].max(axis=0)
        p_features, p_scores = _permutation_p(energy, energy[0]), _permutation_p(scaled[-1], scaled[-1, 0])

        def moved(c: int, name: str, p: float) -> ColumnChange:
            medians = np.median(self.table[:, c]), np.median(new[:, c])
            return ColumnChange(name, float(distance[c, 0]), p, float(medians[0]), float(medians[1]))

        order = np.argsort(-distance[:-1, 0], kind="stable")[:NAMED]
        return DriftResult(
            p_features=p_features,
            p_scores=p_scores,
            alarm=min(p_features, p_scores) <= self.rate / 2,
            rate=self.rate,
            statistic=float(energy[0]),
            score=moved(len(self.names), SCORE, p_scores),
            moved=tuple(moved(int(c), self.names[c], _permutation_p(largest, scaled[c, 0])) for c in order),
            n=len(new),
        )

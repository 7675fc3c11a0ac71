"""Drift alarm: permutation tests of a batch of scans against reference scans, without labels.

In: a summary of the slice features of each scan and its score, for reference scans and for a batch of new
scans. Out: p-values, whether the alarm is raised, and the columns that changed most.

Features are compared by the energy distance (Székely & Rizzo 2013) between their whitened principal
components, scores by the Kolmogorov-Smirnov distance. Whitening is needed because network features are
correlated: a new site shows in directions of low variance, while single columns hardly change. Patients are
permuted between reference and batch; the p-value is the fraction of permutations with at least the observed
distance. It is exact if both samples come from one population, whatever the distribution of the features.
The alarm is raised if either p-value is at most half the nominal rate (Bonferroni). The false alarm rate is
therefore at most the nominal rate, on average over references and batches. Batches that share one reference
are not independent, and a hundred batches are a hundred tests.

Limits. An alarm shows that the input changed, not that the model performs worse. Scores also depend on the
prevalence, so a ward with more hemorrhages raises the alarm. The reference must be scans that neither the
network nor the head was fitted to (validation scans or held-out folds). On its own training scans a model is
overconfident, so every new scan would raise the alarm.

Shapes: B reference scans, n scans of the batch, N slices, D features, C columns, R permutations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Self

import numpy as np

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.two_samples import chance, column_distances, energy_distances, whitened
from ich_mil.evaluate.metrics import patient_keys

DEALS = 999
"""Number of random permutations of the patients behind a p-value."""

LEAST_BATCH = 10
"""Minimum number of scans: with fewer, only very large changes would be detected."""

MOST_SCANS = 2000
"""Larger samples are reduced to about this size, by random whole patients: memory grows quadratically."""

NAMED = 5
"""Number of columns listed in a result."""

SCORE = "score"


def column_names(n_features: int) -> list[str]:
    """Names of the 2D + 1 columns of `summarise`."""
    parts = [f"{what} of feature {i}" for what in ("mean", "spread") for i in range(n_features)]
    return [*parts, "slices"]


def summarise(x: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Summarise each scan: mean and standard deviation of each feature, and number of slices.

    Args:
        x: (N, D) slice features.
        offsets: (B + 1,).

    Returns:
        (B, 2D + 1) float64; the standard deviation of a scan with one slice is 0.

    Raises:
        ValueError: features and offsets do not match, or a scan has no slice.
    """
    x, sizes = np.asarray(x, dtype=np.float64), np.diff(np.asarray(offsets))
    if x.ndim != 2 or len(sizes) == 0 or sizes.min() < 1 or int(sizes.sum()) != len(x):
        raise ValueError(f"features {x.shape} and offsets of {len(sizes)} scans do not fit")
    starts = np.asarray(offsets)[:-1]
    mean = np.add.reduceat(x, starts) / sizes[:, None]  # (B, D)
    apart = x - np.repeat(mean, sizes, axis=0)
    spread = np.sqrt(np.add.reduceat(apart**2, starts) / sizes[:, None])
    return np.column_stack([mean, spread, sizes])


@dataclass(frozen=True)
class Moved:
    """Difference between batch and reference in one column.

    Attributes:
        name: name of the column.
        distance: Kolmogorov-Smirnov distance, in [0, 1].
        p: p-value. For a feature column it is adjusted by the maximum over columns (Westfall & Young 1993);
            for the score it is not adjusted.
        reference: median in the reference.
        batch: median in the batch.
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
        p_features: p-value of the energy distance of the features.
        p_scores: p-value of the Kolmogorov-Smirnov distance of the score.
        alarm: whether either p-value is at most half the rate.
        rate: maximum false alarm rate.
        statistic: energy distance nm/(n + m) · (2 E|X-Y| - E|X-X'| - E|Y-Y'|) of the features.
        score: change of the score.
        moved: the feature columns that changed most, at most `NAMED`.
        n: number of scans of the batch that were compared, at most about `MOST_SCANS`.
    """

    p_features: float
    p_scores: float
    alarm: bool
    rate: float
    statistic: float
    score: Moved
    moved: tuple[Moved, ...]
    n: int

    def text(self) -> str:
        """Describe the result in one paragraph, for a log or a report."""
        facts = f"{self.n} scans, p = {self.p_features:.3g} for features and {self.p_scores:.3g} for scores"
        rate = f"rings falsely in at most {100 * self.rate:g} % of batches"
        if not self.alarm:
            return f"No drift found ({facts}; {rate}). A small change, or one of a few scans, can be missed."
        words = [self.score] if self.p_scores <= self.rate / 2 else []
        words += [one for one in self.moved if one.p <= self.rate / 2]
        named = "; ".join(f"{one.name}: median {one.reference:.3g} -> {one.batch:.3g}" for one in words)
        named = named or "No single column moved, but their combination did"
        return (
            f"Drift: these scans differ from the reference ({facts}; {rate}). {named}. It says that the "
            "input changed, not that the model is worse; scores also follow the share of positive scans."
        )


def _checked(
    features: np.ndarray, scores: np.ndarray, patients: Sequence[str] | np.ndarray, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """Features and score side by side (B, C + 1), and patients (B,)."""
    columns, score = np.asarray(features, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    keys = patient_keys(patients)
    if columns.ndim != 2 or columns.shape[1] == 0 or not score.shape == keys.shape == columns.shape[:1]:
        raise ValueError(
            f"{what}: features {columns.shape}, scores {score.shape} and patients {keys.shape} do not fit"
        )
    table = np.column_stack([columns, score])
    if len(table) < LEAST_BATCH:
        raise DataError(f"{what}: drift needs at least {LEAST_BATCH} scans, got {len(table)}; collect more")
    bad = ~np.isfinite(table).all(axis=1)
    if bad.any():
        raise DataError(
            f"{what}: features and scores must be finite, those of {int(bad.sum())} scans are not, the first "
            f"is scan number {int(np.flatnonzero(bad)[0])}; leave such scans out"
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
        seed: seed of the permutations.
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
        """Store the reference.

        Args:
            features: (B, C) summaries by `summarise`, of scans that the model was not fitted to.
            scores: (B,) scan scores.
            patients: B patient keys.
            names: names of the C columns; `column_names` gives those of `summarise`.
            rate: false alarm rate of features and score together.
            seed: seed of the permutations, and of the subsample of more than `MOST_SCANS` scans.

        Raises:
            DataError: fewer than `LEAST_BATCH` scans, or a value that is not finite.
            ValueError: arrays or names do not match; `DEALS` permutations cannot resolve the rate.
        """
        if not 2 / (DEALS + 1) <= rate < 1:
            raise ValueError(f"rate must be at least {2 / (DEALS + 1):g} and below 1, got {rate}")
        table, keys = _checked(features, scores, patients, "reference scans")
        if len(names) != table.shape[1] - 1:
            raise ValueError(f"{len(names)} names for {table.shape[1] - 1} columns")
        return cls(*_part(table, keys, seed), tuple(names), float(rate), int(seed))

    def test(
        self, features: np.ndarray, scores: np.ndarray, patients: Sequence[str] | np.ndarray
    ) -> DriftResult:
        """Compare a batch with the reference.

        The scans of a patient are permuted together. A key that is in both samples counts as two patients.

        Args:
            features: (n, C), computed like those of the reference.
            scores: (n,) scan scores.
            patients: n patient keys.

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
        new, own = _part(new, keys, self.seed)
        owner = np.concatenate([self.patients, own + self.patients.max() + 1])
        n_patients, dealt = int(owner.max()) + 1, int(own.max()) + 1
        if comb(n_patients, dealt) < 2 / self.rate:
            raise DataError(
                f"batch: {dealt} patients, and {n_patients - dealt} of the reference, are too few to ring "
                f"at a rate of {self.rate:g}, however they are dealt; collect scans of more patients"
            )
        generator = np.random.default_rng(self.seed)
        ranks = generator.permuted(np.tile(np.arange(n_patients)[:, None], DEALS), axis=0)  # (patients, R)
        seen = (np.arange(n_patients) >= n_patients - dealt)[:, None]  # the observed batch
        batch = np.column_stack([seen, ranks < dealt])[owner]  # (B + n, 1 + R)
        table = np.concatenate([self.table, new])
        energy = energy_distances(whitened(table[:, :-1]), batch)  # (1 + R,)
        distance = column_distances(table, batch)  # (C + 1, 1 + R)
        # if patients have several scans, permuted batches differ in size; small ones have larger distances
        sizes = batch.sum(axis=0)
        scaled = distance * np.sqrt(sizes * (len(batch) - sizes))
        largest = scaled[:-1].max(axis=0)
        p_features, p_scores = chance(energy, energy[0]), chance(scaled[-1], scaled[-1, 0])

        def moved(c: int, name: str, p: float) -> Moved:
            medians = np.median(self.table[:, c]), np.median(new[:, c])
            return Moved(name, float(distance[c, 0]), p, float(medians[0]), float(medians[1]))

        order = np.argsort(-distance[:-1, 0], kind="stable")[:NAMED]
        return DriftResult(
            p_features=p_features,
            p_scores=p_scores,
            alarm=min(p_features, p_scores) <= self.rate / 2,
            rate=self.rate,
            statistic=float(energy[0]),
            score=moved(len(self.names), SCORE, p_scores),
            moved=tuple(moved(int(c), self.names[c], chance(largest, scaled[c, 0])) for c in order),
            n=len(new),
        )

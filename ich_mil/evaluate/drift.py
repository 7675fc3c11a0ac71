"""An alarm that the scans of a site differ from those the model was made with; it needs no labels.

In: a summary of the slice features of each scan and its score, of reference scans and of a batch of new ones.
Out: p-values, an alarm, and the columns that moved most.

Features are compared by the energy distance (Székely & Rizzo 2013) between their whitened principal
components, scores by the Kolmogorov-Smirnov distance. Whitened, because features of a network follow each
other and a new site shows where they usually do not vary: single columns hardly move then. Patients are dealt
anew to reference and batch; how often that gives as large a distance is the p-value. Where both are drawn
from one population it is exact, whatever the features. The alarm rings where either p is at most half the
stated rate, so it rings falsely at most at that rate: on average over references and batches. Batches tested
against one reference share its luck, and a hundred batches are a hundred tests.

What the alarm does not say. The input changed; the model need not be worse. Scores also follow the
prevalence, so a ward with more bleeds rings. And the reference must be scans that neither network nor head
was fitted to (validation scans, or held-out folds): on its own training scans a model is too sure, and every
new scan would ring.

Shapes: B reference scans, n scans of the batch, N slices, D features, C columns, R deals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Self

import numpy as np

from ich_mil.errors import DataError
from ich_mil.evaluate.metrics import patient_keys
from ich_mil.evaluate.two_samples import chance, column_distances, energy_distances, whitened

DEALS = 999
"""Deals of patients behind a p-value."""

LEAST_BATCH = 10
"""Fewer scans are refused: they would ring only for the grossest change."""

MOST_SCANS = 2000
"""Of more scans about so many are kept, random whole patients: distances are held for each pair."""

NAMED = 5
"""Columns a result names."""

SCORE = "score"


def column_names(n_features: int) -> list[str]:
    """The names of the columns of `summarise`, 2D + 1."""
    parts = [f"{what} of feature {i}" for what in ("mean", "spread") for i in range(n_features)]
    return [*parts, "slices"]


def summarise(x: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """What a scan is in a drift test: mean and standard deviation of each feature, and how many slices.

    Args:
        x: (N, D) slice features.
        offsets: (B + 1,).

    Returns:
        (B, 2D + 1) float64; the deviation of a scan of one slice is 0.

    Raises:
        ValueError: features and offsets do not fit, or a scan has no slice.
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
    """How far one column of the batch is from the reference.

    Attributes:
        name: of the column.
        distance: Kolmogorov-Smirnov, in [0, 1].
        p: of a feature column by the largest distance of any (Westfall & Young 1993); of the score its own.
        reference: its median in the reference.
        batch: its median in the batch.
    """

    name: str
    distance: float
    p: float
    reference: float
    batch: float


@dataclass(frozen=True)
class DriftResult:
    """What the alarm says of a batch.

    Attributes:
        p_features: chance of so large an energy distance if nothing changed.
        p_scores: the same of the score's Kolmogorov-Smirnov distance.
        alarm: whether either is at most half the rate.
        rate: of false alarms, at most.
        statistic: energy distance nm/(n + m) · (2 E|X-Y| - E|X-X'| - E|Y-Y'|) of the features.
        score: what moved in the score.
        moved: the feature columns that moved most, `NAMED` at most.
        n: scans of the batch that were compared, about `MOST_SCANS` at most.
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
        """One paragraph for a log or a report."""
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
    """About `MOST_SCANS` rows at most, by whole patients, and those patients numbered from 0."""
    owner = np.unique(keys, return_inverse=True)[1]
    sizes = np.bincount(owner)
    order = np.random.default_rng(seed).permutation(len(sizes))  # patients
    kept = np.isin(owner, order[sizes[order].cumsum() - sizes[order] < MOST_SCANS])
    return table[kept], np.unique(owner[kept], return_inverse=True)[1]


@dataclass(frozen=True)
class DriftAlarm:
    """Reference scans and the rate of false alarms.

    Attributes:
        table: (B, C + 1) columns of the reference scans, the score last.
        patients: (B,) their patients, numbered from 0.
        names: of the C feature columns.
        rate: of false alarms, at most.
        seed: of the deals.
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
        """Keep the reference.

        Args:
            features: (B, C) of scans the model was not fitted to, as `summarise` gives them.
            scores: (B,) scan scores.
            patients: B patient keys.
            names: of the C columns, those of `summarise` are `column_names`.
            rate: of false alarms, for features and score together.
            seed: of the deals, and of the part kept of more than `MOST_SCANS` scans.

        Raises:
            DataError: fewer than `LEAST_BATCH` scans, or a value that is not finite.
            ValueError: arrays or names that do not fit; a rate that `DEALS` deals cannot resolve.
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

        A patient's scans are dealt together. A key that is in both counts as two patients.

        Args:
            features: (n, C), made as those of the reference.
            scores: (n,) likewise.
            patients: n patient keys.

        Raises:
            DataError: fewer than `LEAST_BATCH` scans; a value that is not finite; another number of columns;
                so few patients that no deal could ever make the alarm ring.
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
        seen = (np.arange(n_patients) >= n_patients - dealt)[:, None]  # the batch as it came
        batch = np.column_stack([seen, ranks < dealt])[owner]  # (B + n, 1 + R)
        table = np.concatenate([self.table, new])
        energy = energy_distances(whitened(table[:, :-1]), batch)  # (1 + R,)
        distance = column_distances(table, batch)  # (C + 1, 1 + R)
        # patients with several scans: deals differ in size, and small batches lie further out by chance
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

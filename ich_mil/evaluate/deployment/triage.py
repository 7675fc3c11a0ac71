"""Three-way triage with statistical guarantees: scans are negative, positive, or left to a reader.

In: labels and probabilities of calibration scans, and the guarantees. Out: two thresholds,

    p < low           negative, cleared
    low ≤ p < high    look: no prediction, a reader decides
    p ≥ high          positive

The guarantee on sensitivity bounds the *missed* positive scans, those that are called negative; the guarantee
on specificity bounds the negative scans that are called positive. With the ordered probabilities of the
calibration positives, s₍₁₎ ≤ ... ≤ s₍ₙ₎, `low` is the conformal threshold s₍ₖ₎ of the largest rank k that
satisfies the guarantee. `high` is the same for negatives, from above. For any model, the fraction F of all
future positives below s₍ₖ₎ has the distribution Beta(k, n + 1 - k) over calibration sets; with tied scores it
is stochastically smaller. The largest k satisfies, with a = 1 - target,

    P(F ≤ a) = P(Binomial(n, a) ≥ k) ≥ confidence

This is the validity of split conformal prediction by class conditional on the calibration set (Vovk 2012;
Park et al. 2020), risk control by an exact binomial test (Bates et al. 2021; Angelopoulos et al. 2021).

The guarantees hold for scans that are exchangeable with the calibration scans: same scanners, same patient
population, and one scan per patient (or each patient counted once, see `patients` of `fit_triage`).

Shapes: B scans.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.evaluate.scores import check_scores, patient_keys
from ich_mil.ledger import LOOK, NEGATIVE, POSITIVE
from ich_mil.sets.labels import UNKNOWN

FORMAT = "ich_mil.triage.2"

FEWEST = 20
"""Minimum number of labelled calibration scans."""


def risk_control_confidence(rank: int, n: int, target: float) -> float:
    """P(F ≤ 1 - target): probability that the threshold at `rank` of `n` is valid for all future scans."""
    from scipy.stats import binom  # slow to import, and predictions do without

    return float(binom.sf(rank - 1, n, 1 - target))


@dataclass(frozen=True)
class Guarantee:
    """At least the fraction `target` of the scans of a class is not lost."""

    target: float
    confidence: float

    def holds(self, rank: int, n: int) -> bool:
        """Whether the threshold at `rank` of `n` satisfies the guarantee; if not, no higher rank does."""
        return risk_control_confidence(rank, n, self.target) >= self.confidence

    @lru_cache(maxsize=1024)  # noqa: B019  one entry for each pair of guarantee and n
    def rank(self, n: int) -> int:
        """Largest rank that satisfies the guarantee; 0 if none does."""
        return bisect_left(range(1, n + 1), True, key=lambda rank: not self.holds(rank, n))

    def needed(self) -> int:
        """Smallest number of calibration scans of the class for which some rank satisfies the guarantee."""
        return 1 + bisect_left(range(1, 10**9), True, key=lambda n: self.holds(1, n))


def _check(**fractions: float) -> None:
    for name, value in fractions.items():
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie between 0 and 1, both excluded, got {value}")


def _threshold(scores: np.ndarray, guarantee: Guarantee, what: str, name: str) -> tuple[float, int]:
    n = len(scores)
    rank = guarantee.rank(n)
    if rank == 0:
        raise DataError(
            f"{n} {what} are too few to guarantee a {name} of {guarantee.target:g} with confidence "
            f"{guarantee.confidence:g}: {guarantee.needed()} are needed; label more scans or lower the {name}"
        )
    return float(np.partition(scores, rank - 1)[rank - 1]), rank


@dataclass(frozen=True)
class Triage:
    """Two triage thresholds and their guarantees; built by `fit_triage`.

    Attributes:
        low: scans with p < low are called negative.
        high: scans with p ≥ high are called positive; low ≤ high. Above 1 if no scan is called positive.
        sensitivity, specificity: minimum fractions of positive (negative) scans that are not called negative
            (positive); of patients, none of whose scans is, if `by_patient`.
        confidence: probability over calibration sets with which each guarantee holds.
        n_positive, n_negative: numbers of calibration scans (of patients, if `by_patient`).
        unlabelled: number of calibration scans left out because they have no label.
        rank_positive, rank_negative: fitted ranks k.
        by_patient: whether each patient counts once, by the scan that is hardest to classify.
    """

    low: float
    high: float
    sensitivity: float
    specificity: float
    confidence: float
    n_positive: int
    n_negative: int
    unlabelled: int
    rank_positive: int
    rank_negative: int
    by_patient: bool

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < math.inf:
            raise ValueError(f"thresholds must be 0 ≤ low ≤ high, got {self.low} and {self.high}")
        _check(sensitivity=self.sensitivity, specificity=self.specificity, confidence=self.confidence)

    def decide(self, probability: np.ndarray) -> np.ndarray:
        """Decision `NEGATIVE`, `LOOK` or `POSITIVE` for each probability (B,); `DataError` if invalid."""
        unknown = np.full(np.shape(probability), UNKNOWN)
        p = check_scores(unknown, probability, what="triage", probability=True)[1]
        return np.select([p < self.low, p >= self.high], [NEGATIVE, POSITIVE], LOOK)

    @property
    def guarantees(self) -> str:
        """The guarantees in plain English, for reports."""
        missed, alarms = (f"{100 * (1 - share):g} % of new" for share in (self.sensitivity, self.specificity))
        scans, counted = "{} scans are", "scans"
        if self.by_patient:
            scans, counted = "patients with {} scans have one", "patients"
        positives, negatives = scans.format("positive"), scans.format("negative")
        reached = f"p ≥ {self.high:.4g}" if self.high <= 1 else "none is"
        return (
            f"With {100 * self.confidence:g} % confidence in each: at most {missed} {positives} called "
            f"negative (p < {self.low:.4g}), and at most {alarms} {negatives} called positive ({reached}); "
            f"from {self.n_positive} positive and {self.n_negative} negative calibration {counted}, for "
            f"{counted} that come as those did."
        )

    def as_dict(self) -> dict[str, Any]:
        """Dictionary that can be written as JSON."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Restore the result of `as_dict`; `DataError` if damaged or of another version."""
        if values.get("format") != FORMAT:
            raise DataError(f"not triage thresholds of this version ({FORMAT}); fit them again")
        try:
            return cls(**{name: value for name, value in values.items() if name != "format"})
        except (TypeError, ValueError) as error:
            raise DataError(f"triage thresholds are damaged ({error}); fit them again") from error


def fit_triage(
    labels: np.ndarray,
    probability: np.ndarray,
    *,
    sensitivity: float,
    specificity: float = 0.95,
    confidence: float = 0.90,
    patients: Sequence[str] | None = None,
) -> Triage:
    """Fit triage thresholds to calibration scans that the model was not fitted or calibrated on.

    If the two guarantees can be met with low > high, every threshold in between meets both and no scan is
    left to a reader. The smaller of the two is then used for both, because it misses the fewest positive
    scans.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out and counted.
        probability: (B,) in [0, 1].
        sensitivity: guaranteed fraction of positive scans that are not called negative, in (0, 1).
        specificity: guaranteed fraction of negative scans that are not called positive, in (0, 1).
        confidence: confidence level of each guarantee separately, in (0, 1).
        patients: B patient keys. If given, each patient counts once in a class, by the scan that is hardest
            to classify. The guarantee then applies to patients, and scans of one patient may be dependent.

    Raises:
        DataError: too few labelled scans (or patients), with the number needed; an invalid probability.
        ValueError: a fraction outside (0, 1).
    """
    _check(sensitivity=sensitivity, specificity=specificity, confidence=confidence)
    labels, p = check_scores(labels, probability, what="calibration scans", probability=True)
    known = int((labels != UNKNOWN).sum())
    if known < FEWEST:
        raise DataError(
            f"{known} labelled calibration scans are too few for a triage: at least {FEWEST} are needed, "
            "and more for a high sensitivity; label more scans"
        )
    positives, negatives, counted = p[labels == 1], -p[labels == 0], "{} calibration scans"
    if patients is not None:
        owner, counted = patient_keys(patients, len(labels)), "patients with {} calibration scans"
        positives, negatives = (
            pd.Series(score).groupby(owner[labels == kind]).min().to_numpy()
            for score, kind in ((positives, 1), (negatives, 0))
        )
    missed = Guarantee(float(sensitivity), float(confidence))
    alarms = Guarantee(float(specificity), float(confidence))
    low, rank_positive = _threshold(positives, missed, counted.format("positive"), "sensitivity")
    top, rank_negative = _threshold(negatives, alarms, counted.format("negative"), "specificity")
    high = float(np.nextafter(-top, np.inf))  # negatives tied with the threshold are not called positive
    return Triage(
        low=min(low, high),
        high=high,
        sensitivity=float(sensitivity),
        specificity=float(specificity),
        confidence=float(confidence),
        n_positive=len(positives),
        n_negative=len(negatives),
        unlabelled=len(labels) - known,
        rank_positive=rank_positive,
        rank_negative=rank_negative,
        by_patient=patients is not None,
    )

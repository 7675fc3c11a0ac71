"""Three-way triage with statistical guarantees: scans are negative, positive, or left to a reader.

In: labels and probabilities of calibration scans, and the guarantees. Out: two thresholds,

    p < low           negative, cleared
    low ≤ p < high    look: no prediction, a reader decides
    p ≥ high          positive

The guarantee on sensitivity bounds the number of *missed* positive scans, those that are called negative. The
guarantee on specificity bounds the number of negative scans that are called positive. `low` is the k-th
lowest probability of the calibration positives. `high` lies just above the k-th highest probability of the
calibration negatives. k is the largest rank that satisfies the guarantee; see `promises.py` for the three
methods, their equations and sources.

The guarantees hold for scans that are exchangeable with the calibration scans: same scanners, same patient
population, and one scan per patient. If patients have several scans, `patients` counts each patient once, by
the scan that is hardest to classify.

Shapes: B scans.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.conformal import METHODS, Method, Promise, allowed

NEGATIVE, LOOK, POSITIVE = "negative", "look", "positive"
DECISIONS = (POSITIVE, LOOK, NEGATIVE)
"""Decisions in the order in which scans are read."""

FORMAT = "ich_mil.triage.1"

FEWEST = 20
"""Minimum number of labelled calibration scans."""


def _threshold(scores: np.ndarray, promise: Promise, what: str, name: str) -> tuple[float, int]:
    """Score at the largest rank that satisfies the guarantee, and that rank."""
    n = len(scores)
    rank = promise.rank(n)
    if rank == 0:
        confidence = "" if promise.method == "conformal" else f" with confidence {promise.confidence:g}"
        raise DataError(
            f"{n} {what} are too few to promise a {name} of {promise.share:g}{confidence} "
            f"({promise.method}): {promise.needed()} are needed; label more or promise less"
        )
    return float(np.partition(scores, rank - 1)[rank - 1]), rank


@dataclass(frozen=True)
class Triage:
    """Two triage thresholds and their guarantees; built by `fit_triage`.

    Attributes:
        low: scans with p < low are called negative.
        high: scans with p ≥ high are called positive; low ≤ high. Above 1 if no scan is called positive.
        sensitivity: minimum fraction of positive scans that are not called negative. If `by_patient`, minimum
            fraction of patients with positive scans none of whose positive scans is called negative.
        specificity: the same for negative scans that are called positive.
        confidence: probability over calibration sets with which each guarantee holds; None for `conformal`.
        method: one of `METHODS`.
        n_positive: number of calibration positives (of patients, if `by_patient`).
        n_negative: number of calibration negatives.
        unlabelled: number of calibration scans left out because they have no label.
        rank_positive: fitted rank k of `low`; at most k - 1 calibration positives lie below it.
        rank_negative: rank k of `high`.
        next_positives: m for `next_scans`, else None.
        next_negatives: the same for negatives.
        by_patient: whether each patient counts once, by the scan that is hardest to classify.
    """

    low: float
    high: float
    sensitivity: float
    specificity: float
    confidence: float | None
    method: Method
    n_positive: int
    n_negative: int
    unlabelled: int
    rank_positive: int
    rank_negative: int
    next_positives: int | None
    next_negatives: int | None
    by_patient: bool

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < math.inf:
            raise ValueError(f"thresholds must be 0 ≤ low ≤ high, got {self.low} and {self.high}")
        for name in ("sensitivity", "specificity"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if self.confidence is not None and not 0 < self.confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, got {self.confidence}")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")

    def decide(self, probability: np.ndarray) -> np.ndarray:
        """Decision `NEGATIVE`, `LOOK` or `POSITIVE` (B,) for each probability (B,).

        Raises:
            DataError: a probability is NaN or outside [0, 1].
        """
        unknown = np.full(np.shape(probability), UNKNOWN)
        from ich_mil.evaluate.metrics import check_scores  # imports scikit-learn

        p = check_scores(unknown, probability, what="triage", probability=True)[1]
        return np.select([p < self.low, p >= self.high], [NEGATIVE, POSITIVE], LOOK)

    @property
    def promise(self) -> str:
        """The guarantees in plain English, for reports."""
        missed, alarms = (f"{100 * (1 - share):g} % of new" for share in (self.sensitivity, self.specificity))
        if self.next_positives is not None and self.next_negatives is not None:
            missed = f"{allowed(self.sensitivity, self.next_positives)} of the next {self.next_positives}"
            alarms = f"{allowed(self.specificity, self.next_negatives)} of the next {self.next_negatives}"
        how = "On average over calibration sets"
        if self.confidence is not None:
            how = f"With {100 * self.confidence:g} % confidence in each"
        positives, negatives, counted = "positive scans are", "negative scans are", "scans"
        if self.by_patient:
            positives, negatives = (
                f"patients with {kind} scans have one" for kind in ("positive", "negative")
            )
            counted = "patients"
        reached = f"p ≥ {self.high:.4g}" if self.high <= 1 else "none is"
        return (
            f"{how}: at most {missed} {positives} called negative (p < {self.low:.4g}), and at most {alarms} "
            f"{negatives} called positive ({reached}); from {self.n_positive} positive and {self.n_negative} "
            f"negative calibration {counted}, for {counted} that come as those did."
        )

    def as_dict(self) -> dict[str, Any]:
        """Convert to a dictionary that can be written as JSON."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Restore the result of `as_dict`.

        Raises:
            DataError: the values are not those of a triage of this version.
        """
        if values.get("format") != FORMAT:
            raise DataError(f"not triage thresholds of this version ({FORMAT}); fit them again")
        names = {field.name for field in fields(cls)}
        try:
            return cls(**{name: value for name, value in values.items() if name != "format"})
        except (TypeError, ValueError) as error:
            differ = ", ".join(sorted(names ^ (set(values) - {"format"}))) or str(error)
            raise DataError(f"triage thresholds are damaged ({differ}); fit them again") from error


def hardest(score: np.ndarray, patients: np.ndarray) -> np.ndarray:
    """Lowest score of each patient, in ascending order of the patient keys."""
    names, owner = np.unique(patients, return_inverse=True)
    lowest = np.full(len(names), np.inf)
    np.minimum.at(lowest, owner, score)
    return lowest


def fit_triage(
    labels: np.ndarray,
    probability: np.ndarray,
    *,
    sensitivity: float,
    specificity: float = 0.95,
    confidence: float = 0.90,
    method: Method = "risk_control",
    patients: Sequence[str] | None = None,
    next_positives: int | None = None,
    next_negatives: int | None = None,
) -> Triage:
    """Fit triage thresholds to calibration scans.

    The model must not have been fitted or calibrated on these scans. If the two guarantees can be met with
    low > high, every threshold in between meets both and no scan is left to a reader. The smaller of the two
    is then used for both, because it misses the fewest positive scans.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out and counted.
        probability: (B,) in [0, 1].
        sensitivity: guaranteed fraction of positive scans that are not called negative, in (0, 1).
        specificity: guaranteed fraction of negative scans that are not called positive, in (0, 1).
        confidence: confidence level of each guarantee separately, in (0, 1); not used by `conformal`.
        method: see `promises.py`.
        patients: B patient keys. If given, each patient counts once in a class, by the scan that is hardest
            to classify. The guarantee then applies to patients, and scans of one patient may be dependent.
        next_positives: number m of future positive scans that the guarantee is about, for `next_scans`.
        next_negatives: the same for negative scans.

    Raises:
        DataError: fewer than `FEWEST` labelled scans; too few scans (or patients) of a class for its
            guarantee, with the number needed; an invalid probability.
        ValueError: a fraction outside (0, 1), an unknown method, or `next_positives` and `next_negatives`
            that do not fit the method.
    """
    for name, value in (
        ("sensitivity", sensitivity),
        ("specificity", specificity),
        ("confidence", confidence),
    ):
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie between 0 and 1, both excluded, got {value}")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    ahead = (next_positives, next_negatives)
    fits = min(m or 0 for m in ahead) > 0 if method == "next_scans" else ahead == (None, None)
    if not fits:
        raise ValueError(f"next_positives and next_negatives go with next_scans, got {ahead} for {method}")
    from ich_mil.evaluate.metrics import check_scores, patient_keys

    labels, p = check_scores(labels, probability, what="calibration scans", probability=True)
    owner = None if patients is None else patient_keys(patients, len(labels))
    known = int((labels != UNKNOWN).sum())
    if known < FEWEST:
        raise DataError(
            f"{known} labelled calibration scans are too few for a triage: at least {FEWEST} are needed, "
            "and more for a high promise; label more scans"
        )
    positives, negatives = p[labels == 1], -p[labels == 0]
    counted = "{} calibration scans"
    if owner is not None:
        counted = "patients with {} calibration scans"
        positives = hardest(positives, owner[labels == 1])
        negatives = hardest(negatives, owner[labels == 0])
    miss = Promise(method, float(sensitivity), float(confidence), next_positives)
    alarm = Promise(method, float(specificity), float(confidence), next_negatives)
    low, rank_positive = _threshold(positives, miss, counted.format("positive"), "sensitivity")
    top, rank_negative = _threshold(negatives, alarm, counted.format("negative"), "specificity")
    # p ≥ high is equivalent to p > q₍ₖ₎: negatives tied with q₍ₖ₎ are not called positive
    high = float(np.nextafter(-top, np.inf))
    return Triage(
        low=min(low, high),
        high=high,
        sensitivity=float(sensitivity),
        specificity=float(specificity),
        confidence=None if method == "conformal" else float(confidence),
        method=method,
        n_positive=len(positives),
        n_negative=len(negatives),
        unlabelled=len(labels) - known,
        rank_positive=rank_positive,
        rank_negative=rank_negative,
        next_positives=next_positives,
        next_negatives=next_negatives,
        by_patient=patients is not None,
    )

"""Three-way triage with a promise: a scan is cleared, called positive, or left to a person.

In: labels and probabilities of calibration scans, and what is to be promised. Out: two thresholds,

    p < low           negative, cleared
    low ≤ p < high    look: no prediction
    p ≥ high          positive

The promise on sensitivity bounds how many positive scans are *missed*, that is, called negative; the one on
specificity how many negative scans are called positive. `low` is the k-th lowest probability of the
calibration positives and `high` lies just above the k-th highest of the negatives, with the largest rank k
that keeps the promise in the sense of the method: see `promises.py` for the three, their equations and
sources.

All of it holds for scans that are exchangeable with the calibration scans: same scanners, same kind of
patients, and one scan a patient. Where patients have several, `patients` counts each once, by the hardest
scan.

Shapes: B scans.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.metrics import check_scores, patient_keys
from ich_mil.evaluate.promises import METHODS, Method, Promise, allowed

NEGATIVE, LOOK, POSITIVE = "negative", "look", "positive"
DECISIONS = (POSITIVE, LOOK, NEGATIVE)
"""In the order in which scans are read."""

FORMAT = "ich_mil.triage.1"

FEWEST = 20
"""Labelled calibration scans below which nothing is promised."""


def _threshold(scores: np.ndarray, promise: Promise, what: str, name: str) -> tuple[float, int]:
    """The score at the largest rank that keeps the promise, and that rank."""
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
    """Two thresholds and what they promise; `fit_triage` makes one.

    Attributes:
        low: scans with p < low are called negative.
        high: scans with p ≥ high are called positive; low ≤ high, and above 1 where no scan is.
        sensitivity: at least this share of positive scans is not called negative; where `by_patient`, of
            patients with positive scans at least this share has none called so.
        specificity: the same of negative scans called positive.
        confidence: probability over calibration sets with which each promise holds; None for `conformal`.
        method: one of `METHODS`.
        n_positive: calibration positives (patients, where `by_patient`).
        n_negative: calibration negatives.
        unlabelled: calibration scans left out for want of a label.
        rank_positive: k of `low` as fitted, so k - 1 calibration positives lie below it, or fewer.
        rank_negative: k of `high`.
        next_positives: m for `next_scans`, else None.
        next_negatives: the same for negatives.
        by_patient: whether each patient counted once, by the hardest scan.
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
        """`NEGATIVE`, `LOOK` or `POSITIVE` (B,) for probabilities (B,).

        Raises:
            DataError: a probability is NaN or outside [0, 1].
        """
        unknown = np.full(np.shape(probability), UNKNOWN)
        p = check_scores(unknown, probability, what="triage", probability=True)[1]
        return np.select([p < self.low, p >= self.high], [NEGATIVE, POSITIVE], LOOK)

    @property
    def promise(self) -> str:
        """What the thresholds promise, in one line of plain English."""
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
        """Everything, as JSON takes it."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `as_dict` gave.

        Raises:
            DataError: it is something else.
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
    """The lowest score of each patient, in ascending order of the patients."""
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
    """Thresholds from calibration scans that the model has not been fitted or calibrated on.

    Where the two promises can be kept with low > high, every threshold in between keeps both, and no scan
    is left to look at. The lower end is taken for both: it misses the fewest bleeds.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`, which is left out and counted.
        probability: (B,) in [0, 1].
        sensitivity: promised share of positive scans that are not called negative, in (0, 1).
        specificity: promised share of negative scans that are not called positive, in (0, 1).
        confidence: of each promise by itself, in (0, 1); `conformal` has none and leaves it unused.
        method: see `promises.py`.
        patients: B patient keys. With them each patient counts once in a class, by the scan that is hardest
            to get right, so that the promise is on patients and scans of one patient need not be independent.
        next_positives: for `next_scans`, how many future positive scans the promise is about.
        next_negatives: the same for negative scans.

    Raises:
        DataError: fewer than `FEWEST` labelled scans, too few of a class (or too few patients with such) for
            its promise (with the number needed), or probabilities that cannot be used.
        ValueError: a share not in (0, 1), an unknown method, or numbers of next scans that do not go with it.
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
    # p ≥ high means p > q₍ₖ₎: negatives that tie with it are not called positive
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

"""95 % intervals by resampling patients, each with all of their scans and slices.

Scans of one patient resemble each other, and so do slices of one scan: drawing them one by one would claim
more evidence than there is. In: a statistic of counts. Out: the percentile interval of each number it gives,
which `of_proportion` and `of_error` turn into that of a number between 0 and 1 and of a calibration error;
`intervals_of` knows which metric is which.

Shapes: n rows (scans or slices), R resamples.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, logit
from scipy.stats import binomtest, norm, t

from ich_mil.evaluate.metrics import POINT_NAMES, patient_keys

LEVEL = 0.95
"""Coverage the intervals aim at."""

RESAMPLES = 2000
"""Of patients, behind an interval."""

ROUNDING = 1e-9
"""A sum of shares that is so near 0 or 1 is there."""

_CHUNK = 2_000_000
"""Largest number of counts held at once: 16 MB as float64."""


@dataclass(frozen=True)
class Interval:
    """Interval of one number; NaN where too few patients or no usable resample gave one.

    Attributes:
        low: lower end.
        high: upper end.
        ignored: resamples in which the number is not defined (one class only); they take no part.
        error: standard deviation over the resamples.
    """

    low: float
    high: float
    ignored: int
    error: float


def _reach(patients: int) -> float:
    """Standard deviations of resamples to either side of a mean over n patients: t √(n / (n - 1)).

    Student's t of n - 1 degrees of freedom; the resamples divide by n.
    """
    return float(t.ppf((1 + LEVEL) / 2, patients - 1) * np.sqrt(patients / (patients - 1)))


def patient_bootstrap(
    statistic: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    patients: Sequence[str] | np.ndarray,
    *,
    resamples: int = RESAMPLES,
    seed: int,
) -> dict[str, Interval]:
    """Percentile intervals of `statistic` under resampling of whole patients.

    The same seed, patients and number of resamples give the same draws, so intervals of two models rest on
    the same ones. Percentiles serve numbers without bounds, and differences. Of few patients they are too
    narrow; so they are those that a normal number has at Student's interval (Hesterberg 2015, the expanded
    percentile interval). A log-loss is held 0.72 to 0.86 of the time with 20 patients, 0.93 with 60, 0.94
    with 490 (`python -m benchmarks.intervals`). A number between 0 and 1 needs `of_proportion`, and one that
    chance alone raises `of_error`.

    Args:
        statistic: takes counts (n, R) float64, how often each row was drawn, and returns numbers (R,) by
            name; NaN where a number is not defined in that resample.
        patients: n patient keys, one for each row.
        resamples: number of resamples.
        seed: seed of the draws.

    Returns:
        One `Interval` for each name. With fewer than two patients its ends and its error are NaN.

    Raises:
        ValueError: there is no row, or no resample is asked for.
        DataError: a row has no patient.
    """
    if len(patients) == 0 or resamples < 1:
        raise ValueError(f"need at least one row and one resample, got {len(patients)} and {resamples}")
    owner = np.unique(patient_keys(patients), return_inverse=True)[1]  # (n,)
    n_patients = int(owner.max()) + 1
    generator = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // len(owner))
    parts: list[Mapping[str, np.ndarray]] = []
    for first in range(0, resamples, chunk):
        size = min(chunk, resamples - first)
        drawn = generator.integers(n_patients, size=(size, n_patients))
        drawn = drawn * size + np.arange(size)[:, None]  # place in a (patients, size) table
        times = np.bincount(drawn.ravel(), minlength=n_patients * size).reshape(n_patients, size)
        parts.append(statistic(times.astype(np.float64)[owner]))  # (n, size)
    intervals = {}
    for name in parts[0]:
        values = np.concatenate([part[name] for part in parts])
        usable = values[~np.isnan(values)]
        low = high = error = float("nan")
        if n_patients > 1 and len(usable):
            tail = norm.cdf(-_reach(n_patients))
            low, high = (float(end) for end in np.quantile(usable, [tail, 1 - tail]))
            error = float(usable.std())
        intervals[name] = Interval(low=low, high=high, ignored=len(values) - len(usable), error=error)
    return intervals


def of_error(interval: Interval, value: float) -> Interval:
    """The interval of a calibration error, from the percentile interval of its resamples.

    A sum of distances grows by chance, in a resample once more than in its sample, so percentiles lie too
    high: those of a model that is perfectly calibrated never hold its 0. What resampling adds is taken off,

        [2 value - high, 2 value - low]

    (the basic bootstrap, Davison and Hinkley 1997, section 5.2), cut at 0 and 1 and widened to hold the
    value, which stays too high itself. Simulated with 10 bins, of 60 and 490 scans: an ECE of 0.05 to 0.1 is
    held 0.83 to 0.91 of the time, one of 0.03 0.71 to 0.90, one of 0 0.48 to 0.91; by percentiles 0 to 0.92,
    0 to 0.08, never.

    Args:
        interval: of the resamples.
        value: the calibration error of the sample.
    """
    if np.isnan(interval.low):
        return interval
    low, high = 2 * value - interval.high, max(value, 2 * value - interval.low)
    return replace(interval, low=max(0.0, low), high=min(1.0, high))


def pairs(one: np.ndarray, other: np.ndarray) -> int:
    """How many pairs without a patient in common two classes give, from the patient keys of each's rows."""
    first, second = set(one), set(other)
    return min(len(first), len(second), len(first | second) // 2)


def of_proportion(interval: Interval, value: float, patients: int) -> Interval:
    """The interval of a number between 0 and 1 (a share, an AUC, an average of such), from its resamples.

    Near its bounds such a number spreads to one side only, and percentiles reach too far to the other. On the
    scale of the log odds it is about normal, and a mean over n patients has Student's interval:

        logit value ± t error √(n / (n - 1)) / (value (1 - value))

    with the standard deviation of the resamples for its error, which divides by n, and t of n - 1 degrees of
    freedom (for an AUC on this scale Pepe 2003, chapter 5; for average precision Boyd, Eng and Page 2013; for
    t of few clusters Cameron and Miller 2015). An AUC of 0.92 is held 0.99 of the time with 20 patients, 0.97
    with 60, 0.95 with 490, 0.92 if 3 % of these are positive; by percentiles 0.85, 0.93, 0.94 and 0.85
    (`python -m benchmarks.intervals`).

    One patient shows no spread: [0, 1]. At 0 and 1 all resamples agree, and [1, 1] would say that no other
    scan ever errs. None, or all, of n patients leave the exact interval of a share (Clopper and Pearson
    1934). It holds for an AUC too, of n pairs of a positive and a negative scan without a patient in common
    (`pairs`): all of them are in order.

    Args:
        interval: of the resamples.
        value: the number, in [0, 1] up to rounding.
        patients: n behind it, one at least; `pairs` of them where it rests on two classes.
    """
    if np.isnan(interval.low):
        return interval
    if min(value, 1 - value) < ROUNDING:
        ends = binomtest(round(value) * patients, patients).proportion_ci(LEVEL, method="exact")
        return replace(interval, low=float(ends.low), high=float(ends.high))
    if patients == 1:
        return replace(interval, low=0.0, high=1.0)
    reach = _reach(patients) * interval.error / (value * (1 - value))
    low, high = (float(expit(logit(value) + step)) for step in (-reach, reach))
    return replace(interval, low=min(low, value), high=max(high, value))


def patients_behind(labels: np.ndarray, patients: np.ndarray) -> dict[str, int]:
    """How many patients stand behind each metric between 0 and 1 that is no loss; for `intervals_of`.

    Operating points rest on two classes, as their thresholds do: a sensitivity of 1 at few negative scans may
    be less in a resample. F1 rests on half of the positive patients: where few of them are found, a share s,
    it is up to 2s / (1 + s), twice that.

    Args:
        labels: (n,) in {0, 1}, of scans or slices.
        patients: (n,) keys.
    """
    positive, negative = (np.unique(patients[labels == kind]) for kind in (1, 0))
    return {
        **dict.fromkeys(("auc", "ap", "balanced_accuracy", *POINT_NAMES), pairs(positive, negative)),
        "sensitivity": len(positive),
        "specificity": len(negative),
        "f1": -(-len(positive) // 2),
        "accuracy": len(np.unique(patients)),
    }


def of_balanced(interval: Interval, shares: Sequence[tuple[float, Interval]]) -> Interval:
    """The interval of balanced accuracy: half the sum of two shares of different scans, s and c, and theirs.

        [(s + c)/2 - ½ √((s - s_low)² + (c - c_low)²), (s + c)/2 + ½ √((s_high - s)² + (c_high - c)²)]

    (Zou and Donner 2008). Of a model that finds no positive scan and spares every negative one all resamples
    say ½, and of few positive scans, all missed, those of the negatives alone spread. Simulated with
    sensitivities of 0.01 to 0.3 and 2 to 10 positive scans it is held 0.97 to 1.00 of the time, by the log
    odds of its own resamples 0.13 to 0.77.

    Args:
        interval: of the resamples.
        shares: sensitivity and specificity, each with its interval by `of_proportion`.
    """
    if np.isnan(interval.low):
        return interval
    value = sum(share for share, _ in shares) / 2
    below = math.hypot(*(share - ends.low for share, ends in shares)) / 2
    above = math.hypot(*(ends.high - share for share, ends in shares)) / 2
    return replace(interval, low=max(0.0, value - below), high=min(1.0, value + above))


def intervals_of(
    values: Mapping[str, float], resampled: Mapping[str, Interval], behind: Mapping[str, int]
) -> dict[str, Interval]:
    """The interval of each metric (no value is NaN), as `interval_of`, and of balanced accuracy."""
    found = {name: interval_of(name, value, resampled[name], behind) for name, value in values.items()}
    if "balanced_accuracy" in found:
        shares = [(values[name], found[name]) for name in ("sensitivity", "specificity")]
        found["balanced_accuracy"] = of_balanced(resampled["balanced_accuracy"], shares)
    return found


def interval_of(metric: str, value: float, resampled: Interval, behind: Mapping[str, int]) -> Interval:
    """The interval of a metric from that of its resamples; those `behind` names are between 0 and 1.

    Balanced accuracy needs those of two others: `intervals_of`.
    """
    if metric == "ece":
        return of_error(resampled, value)
    return of_proportion(resampled, value, behind[metric]) if metric in behind else resampled

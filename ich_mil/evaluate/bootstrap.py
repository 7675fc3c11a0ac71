"""95 % confidence intervals by bootstrap over patients: a patient is drawn with all scans and slices.

Scans of one patient are correlated, and so are slices of one scan; resampling them singly would give
intervals that are too narrow. In: a statistic as a function of resampling counts. Out: the percentile
interval of each number that the statistic returns, and intervals for proportions and calibration errors
derived from it. Simulated coverages: `research/RESULTS.md`, Intervals.

Shapes: n rows (scans or slices), R resamples.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, logit
from scipy.stats import binomtest, norm, t

from ich_mil.evaluate.scores import patient_keys

LEVEL = 0.95
"""Nominal coverage of the intervals."""

RESAMPLES = 2000
"""Default number of bootstrap resamples."""

ROUNDING = 1e-9
"""A proportion within this distance of 0 or 1 counts as 0 or 1."""

_CHUNK = 2_000_000
"""Largest number of counts held at once: 16 MB as float64."""


@dataclass(frozen=True)
class Interval:
    """Confidence interval of one number; NaN with fewer than two patients or without a usable resample.

    `ignored` resamples do not define the number (one class only); `error` is the deviation over the others.
    """

    low: float
    high: float
    ignored: int
    error: float


def _half_width(patients: int) -> float:
    """Half-width of Student's interval of a mean over n patients, in bootstrap standard deviations.

    t_(n - 1) √(n / (n - 1)); the root corrects the bootstrap variance, which divides by n.
    """
    return float(t.ppf((1 + LEVEL) / 2, patients - 1) * np.sqrt(patients / (patients - 1)))


def patient_bootstrap(
    statistic: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    patients: Sequence[str] | np.ndarray,
    *,
    resamples: int = RESAMPLES,
    seed: int,
) -> dict[str, Interval]:
    """Percentile intervals of `statistic`, resampling whole patients.

    Equal seeds, patients and numbers of resamples give equal draws, so differences of models are paired. The
    expanded percentile interval (Hesterberg 2015) is used: the tail probability is the one that a normal
    variable has outside Student's interval. The coverage for a log-loss is 0.72 to 0.86 with 20 patients,
    0.93 with 60 and 0.94 with 490.

    Args:
        statistic: maps counts (n, R) float64, how often each row was drawn, to numbers (R,) by name; NaN
            where a number is not defined in a resample.
        patients: n patient keys, one for each row.
        resamples: number of resamples.
        seed: seed of the draws.
    """
    owner = np.unique(patient_keys(patients), return_inverse=True)[1]  # (n,)
    n_patients = int(owner.max()) + 1
    generator = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // len(owner))
    batches: list[Mapping[str, np.ndarray]] = []
    for first in range(0, resamples, chunk):
        size = min(chunk, resamples - first)
        drawn = generator.integers(n_patients, size=(size, n_patients))
        drawn = drawn * size + np.arange(size)[:, None]  # index into a (patients, size) table
        times = np.bincount(drawn.ravel(), minlength=n_patients * size).reshape(n_patients, size)
        batches.append(statistic(times.astype(np.float64)[owner]))  # (n, size)
    intervals = {}
    for name in batches[0]:
        values = np.concatenate([batch[name] for batch in batches])
        usable = values[~np.isnan(values)]
        low = high = error = float("nan")
        if n_patients > 1 and len(usable):
            tail = norm.cdf(-_half_width(n_patients))
            low, high = (float(end) for end in np.quantile(usable, [tail, 1 - tail]))
            error = float(usable.std())
        intervals[name] = Interval(low=low, high=high, ignored=len(values) - len(usable), error=error)
    return intervals


def ece_interval(interval: Interval, value: float) -> Interval:
    """Interval of a calibration error `value`: basic bootstrap from the percentile interval.

    Chance inflates a sum of absolute values, and resampling inflates it once more, so percentile intervals
    lie too high. The basic bootstrap (Davison and Hinkley 1997, section 5.2) subtracts the bias of
    resampling,

        [2 value - high, 2 value - low]

    clipped to [0, 1] and widened to contain the value, which itself stays biased upwards. Coverage with 60
    and 490 scans: 0.83 to 0.91 for a true ECE of 0.05 to 0.1, 0.48 to 0.91 for 0 (percentiles: 0).
    """
    if np.isnan(interval.low):
        return interval
    low, high = 2 * value - interval.high, max(value, 2 * value - interval.low)
    return replace(interval, low=max(0.0, low), high=min(1.0, high))


def disjoint_pairs(positive: np.ndarray, negative: np.ndarray) -> int:
    """Largest number of disjoint pairs of patients, one of each class, from the patient keys of both."""
    first, second = set(positive), set(negative)
    return min(len(first), len(second), len(first | second) // 2)


def proportion_interval(interval: Interval, value: float, patients: int) -> Interval:
    """Interval of a number between 0 and 1 (a proportion, an AUC, an average of them), on the logit scale.

    On the logit scale the number is about normal, and Student's interval for a mean over n patients is

        logit value ± t error √(n / (n - 1)) / (value (1 - value))

    Sources: Pepe 2003, chapter 5, for an AUC; Boyd, Eng and Page 2013 for average precision; Cameron and
    Miller 2015 for t with few clusters. The coverage for an AUC of 0.92 is 0.99 with 20 patients, 0.97 with
    60, 0.95 with 490 (percentiles: 0.85, 0.93, 0.94).

    A value of 0 or 1 is the same in all resamples. It gets the exact binomial interval for 0 or n of n
    patients (Clopper and Pearson 1934), which also holds for an AUC if n is the number of `disjoint_pairs` of
    a positive and a negative scan. With one patient and any other value the interval is [0, 1].

    Args:
        interval: result of `patient_bootstrap`; only its standard deviation `error` is used.
        value: number in [0, 1] up to rounding.
        patients: number of patients n, at least 1; `disjoint_pairs` of them for a metric of two classes.
    """
    if np.isnan(interval.low):
        return interval
    if min(value, 1 - value) < ROUNDING:
        ends = binomtest(round(value) * patients, patients).proportion_ci(LEVEL, method="exact")
        return replace(interval, low=float(ends.low), high=float(ends.high))
    if patients == 1:
        return replace(interval, low=0.0, high=1.0)
    step = _half_width(patients) * interval.error / (value * (1 - value))
    low, high = (float(expit(logit(value) + side)) for side in (-step, step))
    return replace(interval, low=min(low, value), high=max(high, value))


def mean_interval(interval: Interval, shares: Sequence[tuple[float, Interval]]) -> Interval:
    """Interval of the mean of two proportions, s and c, from `shares`: both with their intervals.

        [(s + c)/2 - ½ √((s - s_low)² + (c - c_low)²), (s + c)/2 + ½ √((s_high - s)² + (c_high - c)²)]

    (Zou and Donner 2008). For balanced accuracy the bootstrap fails: if a model misses every positive scan
    and calls every negative scan correctly, all resamples give ½. Simulated with sensitivities of 0.01 to 0.3
    and 2 to 10 positive scans, the coverage is 0.97 to 1.00 (logit interval of its own resamples: 0.13 to
    0.77).
    """
    if np.isnan(interval.low):
        return interval
    value = sum(share for share, _ in shares) / 2
    below = math.hypot(*(share - ends.low for share, ends in shares)) / 2
    above = math.hypot(*(ends.high - share for share, ends in shares)) / 2
    return replace(interval, low=max(0.0, value - below), high=min(1.0, value + above))

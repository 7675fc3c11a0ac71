"""95 % confidence intervals by bootstrap over patients: a patient is drawn with all scans and slices.

Scans of one patient are correlated, and so are slices of one scan. Resampling them one by one would give
intervals that are too narrow. In: a statistic as a function of resampling counts. Out: the percentile
interval of each number that the statistic returns. `of_proportion` converts it to an interval for a number
between 0 and 1, `of_error` to one for a calibration error; `intervals_of` chooses the method by metric.

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

    Attributes:
        low: lower end.
        high: upper end.
        ignored: number of resamples left out because the number is not defined in them (one class only).
        error: standard deviation over the resamples.
    """

    low: float
    high: float
    ignored: int
    error: float


def _reach(patients: int) -> float:
    """Half-width of the interval of a mean over n patients, in bootstrap standard deviations.

    The value is t √(n / (n - 1)). t is the quantile of Student's distribution with n - 1 degrees of freedom.
    The factor corrects the bootstrap variance, which divides by n.
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

    The same seed, patients and number of resamples give the same draws, so the intervals of two models rest
    on the same resamples. Percentile intervals suit unbounded numbers and differences. With few patients they
    are too narrow, so the expanded percentile interval is used (Hesterberg 2015): the tail probability is the
    one that a normal variable has outside Student's interval. The coverage for a log-loss is 0.72 to 0.86
    with 20 patients, 0.93 with 60 and 0.94 with 490 (`python -m benchmarks.intervals`). A number between 0
    and 1 needs `of_proportion`, and a number that is inflated by chance needs `of_error`.

    Args:
        statistic: maps counts (n, R) float64, how often each row was drawn, to numbers (R,) by name; NaN
            where a number is not defined in a resample.
        patients: n patient keys, one for each row.
        resamples: number of resamples.
        seed: seed of the draws.

    Returns:
        An `Interval` for each name. With fewer than two patients its ends and its error are NaN.

    Raises:
        ValueError: there is no row, or `resamples` is below 1.
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
        drawn = drawn * size + np.arange(size)[:, None]  # index into a (patients, size) table
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
    """Interval of a calibration error: basic bootstrap from the percentile interval.

    A calibration error is a sum of absolute values, so chance inflates it, and resampling inflates it once
    more. Percentile intervals therefore lie too high: for a perfectly calibrated model they never contain 0.
    The basic bootstrap (Davison and Hinkley 1997, section 5.2) subtracts the bias of resampling,

        [2 value - high, 2 value - low]

    The result is clipped to [0, 1] and widened to contain the value, which itself stays biased upwards.
    Coverage simulated with 10 bins, with 60 and 490 scans: 0.83 to 0.91 for a true ECE of 0.05 to 0.1, 0.71
    to 0.90 for 0.03, 0.48 to 0.91 for 0. Percentile intervals cover 0 to 0.92, 0 to 0.08 and never.

    Args:
        interval: percentile interval of the resamples.
        value: calibration error of the sample.
    """
    if np.isnan(interval.low):
        return interval
    low, high = 2 * value - interval.high, max(value, 2 * value - interval.low)
    return replace(interval, low=max(0.0, low), high=min(1.0, high))


def pairs(one: np.ndarray, other: np.ndarray) -> int:
    """Largest number of disjoint pairs of patients, one of each class, given the patient keys of both."""
    first, second = set(one), set(other)
    return min(len(first), len(second), len(first | second) // 2)


def of_proportion(interval: Interval, value: float, patients: int) -> Interval:
    """Interval of a number between 0 and 1 (a proportion, an AUC, an average of them), on the logit scale.

    Near 0 or 1 the bootstrap distribution is skewed, and a percentile interval extends too far on the wrong
    side. On the logit scale the number is about normal, and Student's interval for a mean over n patients is

        logit value ± t error √(n / (n - 1)) / (value (1 - value))

    where `error` is the standard deviation of the resamples (which divides by n) and t has n - 1 degrees of
    freedom. Sources: Pepe 2003, chapter 5, for an AUC on this scale; Boyd, Eng and Page 2013 for average
    precision; Cameron and Miller 2015 for t with few clusters. The coverage for an AUC of 0.92 is 0.99 with
    20 patients, 0.97 with 60, 0.95 with 490, and 0.92 if 3 % of the 490 are positive. Percentile intervals
    cover 0.85, 0.93, 0.94 and 0.85 (`python -m benchmarks.intervals`).

    A value of 0 or 1 is the same in all resamples, and an interval [1, 1] would exclude any error on another
    scan. The exact binomial interval for 0 or n of n patients is used instead (Clopper and Pearson 1934). It
    also holds for an AUC if n is the number of disjoint pairs of a positive and a negative scan (`pairs`),
    all of which are ordered correctly. With one patient and any other value the interval is [0, 1].

    Args:
        interval: result of `patient_bootstrap`; only its standard deviation `error` is used.
        value: number in [0, 1] up to rounding.
        patients: number of patients n, at least 1; `pairs` of them for a metric of two classes.
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
    """Number of patients that each proportion-like metric rests on, as `intervals_of` needs it.

    Operating points count `pairs`, because their thresholds depend on both classes: a sensitivity of 1 with
    few negative scans may be lower in a resample. F1 counts half of the positive patients, because for a
    small sensitivity s it is up to 2s / (1 + s), about twice s.

    Args:
        labels: (n,) in {0, 1}, of scans or slices.
        patients: (n,) patient keys.

    Returns:
        Number of patients by name of the metric; log-loss, Brier score and ECE are not among them.
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
    """Interval of balanced accuracy from the intervals of sensitivity s and specificity c.

        [(s + c)/2 - ½ √((s - s_low)² + (c - c_low)²), (s + c)/2 + ½ √((s_high - s)² + (c_high - c)²)]

    (Zou and Donner 2008). The bootstrap fails here: if a model misses every positive scan and calls every
    negative scan correctly, all resamples give ½; if it misses the few positive scans, only the negative
    scans contribute to the spread. Simulated with sensitivities of 0.01 to 0.3 and 2 to 10 positive scans,
    the coverage is 0.97 to 1.00, against 0.13 to 0.77 for the logit interval from its own resamples.

    Args:
        interval: percentile interval of the resamples.
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
    """Interval of each metric by `interval_of` or, for balanced accuracy, `of_balanced`; no value is NaN."""
    found = {name: interval_of(name, value, resampled[name], behind) for name, value in values.items()}
    if "balanced_accuracy" in found:
        shares = [(values[name], found[name]) for name in ("sensitivity", "specificity")]
        found["balanced_accuracy"] = of_balanced(resampled["balanced_accuracy"], shares)
    return found


def interval_of(metric: str, value: float, resampled: Interval, behind: Mapping[str, int]) -> Interval:
    """Interval of one metric from its percentile interval; metrics in `behind` are between 0 and 1.

    Balanced accuracy needs the intervals of two other metrics, see `intervals_of`.
    """
    if metric == "ece":
        return of_error(resampled, value)
    return of_proportion(resampled, value, behind[metric]) if metric in behind else resampled

"""95 % intervals by resampling patients, each with all of their scans and slices.

Scans of one patient resemble each other, and so do slices of one scan: drawing them one by one would claim
more evidence than there is. In: a statistic of counts. Out: the percentile interval of each number it gives.

Shapes: n rows (scans or slices), R resamples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

LEVEL = 0.95
"""Coverage the intervals aim at."""

_CHUNK = 2_000_000
"""Largest number of counts held at once: 16 MB as float64."""


@dataclass(frozen=True)
class Interval:
    """Percentile interval of one number; NaN where too few patients or no usable resample gave one.

    Attributes:
        low: lower end.
        high: upper end.
        ignored: resamples in which the number is not defined (one class only); they take no part.
    """

    low: float
    high: float
    ignored: int


def patient_bootstrap(
    statistic: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    patients: Sequence[str] | np.ndarray,
    *,
    resamples: int = 2000,
    seed: int,
) -> dict[str, Interval]:
    """Percentile intervals of `statistic` under resampling of whole patients.

    The same seed, patients and number of resamples give the same draws, so intervals of two models rest on
    the same ones. Percentile intervals are too narrow for few patients of either class: those of an AUC of
    0.92 hold it 0.79 of the time with 20 patients, 0.92 with 60 or 490, and 0.74 with 5 positive ones among
    490 (simulated). They have no width where every resample gives the same number, such as an AUC of 1. A
    number that chance alone raises needs `of_error`, and a share `of_share`.

    Args:
        statistic: takes counts (n, R) float64, how often each row was drawn, and returns numbers (R,) by
            name; NaN where a number is not defined in that resample.
        patients: n patient keys, one for each row.
        resamples: number of resamples.
        seed: seed of the draws.

    Returns:
        One `Interval` for each name. With fewer than two patients both ends are NaN.

    Raises:
        ValueError: there is no row, or no resample is asked for.
    """
    if len(patients) == 0 or resamples < 1:
        raise ValueError(f"need at least one row and one resample, got {len(patients)} and {resamples}")
    owner = np.unique(np.asarray(patients, dtype=str), return_inverse=True)[1]  # (n,)
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
    tail = (1 - LEVEL) / 2
    intervals = {}
    for name in parts[0]:
        values = np.concatenate([part[name] for part in parts])
        usable = values[~np.isnan(values)]
        low = high = float("nan")
        if n_patients > 1 and len(usable):
            low, high = (float(end) for end in np.quantile(usable, [tail, 1 - tail]))
        intervals[name] = Interval(low=low, high=high, ignored=len(values) - len(usable))
    return intervals


def of_error(interval: Interval, value: float) -> Interval:
    """The interval of a calibration error, from the percentile interval of its resamples.

    A sum of distances grows by chance, in a resample once more than in its sample, so percentiles lie too
    high: those of a model that is perfectly calibrated never hold its 0. What resampling adds is taken off,

        [2 value - high, 2 value - low]

    (the basic bootstrap, Davison and Hinkley 1997, section 5.2), cut at 0 and widened to hold the value,
    which stays too high itself. Simulated with 10 bins, of 60 and 490 scans: an ECE of 0.06 to 0.09 is held
    0.85 to 0.91 of the time, one of 0.03 0.84, one of 0 0.63; by percentiles 0.04 to 0.94, 0 to 0.51, never.

    Args:
        interval: of the resamples.
        value: the calibration error of the sample.
    """
    if np.isnan(interval.low):
        return interval
    low, high = max(0.0, 2 * value - interval.high), max(value, 2 * value - interval.low)
    return Interval(low, high, interval.ignored)


def of_share(interval: Interval, value: float, patients: int) -> Interval:
    """The interval of a share of scans, from the percentile interval of its resamples.

    None of 30 scans missed is none in every resample too, and [0, 0] would say that none ever will be. A
    share of 0 or 1 gets the exact interval of none, or all, of the patients (Clopper and Pearson 1934);
    another one stays as it is.

    Args:
        interval: of the resamples.
        value: the share.
        patients: with a scan among those that are shared out, one at least.
    """
    if np.isnan(interval.low) or value not in (0, 1):
        return interval
    ends = binomtest(round(value * patients), patients).proportion_ci(LEVEL, method="exact")
    return Interval(float(ends.low), float(ends.high), interval.ignored)

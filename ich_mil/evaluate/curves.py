"""Curves of scan probabilities, and event rates by bin, with pointwise 95 % intervals by patient bootstrap.

In: labels and probabilities of scans. Out: a data frame for each curve, with columns `x`, `y`, and the band
`low` to `high` (NaN with one patient); for event rates a row for each filled bin.

    ROC               sensitivity over 1 - specificity
    precision-recall  precision over sensitivity
    risk-coverage     fraction of wrong calls over the fraction of scans kept (Geifman & El-Yaniv 2017)
    decision curve    net benefit TP/n - FP/n · t/(1 - t) over the threshold t (Vickers & Elkin 2006)

Shapes: B scans, R resamples, G groups of equal score, K points.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from ich_mil.evaluate.bootstrap import RESAMPLES, ROUNDING, Interval, patient_bootstrap, proportion_interval
from ich_mil.evaluate.sample import CALIBRATION_BINS, equal_mass
from ich_mil.evaluate.scores import known_scores, patient_keys
from ich_mil.ledger import THRESHOLD
from ich_mil.sets.labels import UNKNOWN

GRID = np.linspace(0, 1, 101)
"""Abscissas of the curves."""
Curve = Callable[[np.ndarray], np.ndarray]
"""Maps counts (B, R), how often each scan was drawn, to ordinates (K, R)."""


def group_sums(value: np.ndarray, rank: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scans drawn and their sum of `value` (B,) in each tie group, lowest `rank` (B,) first; (G, R) each."""
    order = np.argsort(rank, kind="stable")
    starts = np.flatnonzero(np.diff(rank[order], prepend=-np.inf))  # (G,)
    return (
        np.add.reduceat(counts[order], starts),
        np.add.reduceat(value[order, None] * counts[order], starts),
    )


def roc(labels: np.ndarray, score: np.ndarray) -> Curve:
    """Sensitivity at each 1 - specificity of `GRID`; NaN in resamples of one class."""

    def curve(counts: np.ndarray) -> np.ndarray:
        tp, fp = _calls(labels, score, counts)
        return _columns(np.interp, fp / fp[-1], tp / tp[-1])

    return curve


def precision_recall(labels: np.ndarray, score: np.ndarray) -> Curve:
    """Precision of the highest threshold that reaches each sensitivity of `GRID`."""

    def curve(counts: np.ndarray) -> np.ndarray:
        tp, fp = _calls(labels, score, counts)
        precision = tp[1:] / (tp + fp)[1:]
        return _columns(_first_reaching, (tp / tp[-1])[1:], precision)

    return curve


def risk_coverage(wrong: np.ndarray, uncertainty: np.ndarray) -> Curve:
    """Fraction of wrong calls among the most certain scans, at each coverage of `GRID`."""

    def curve(counts: np.ndarray) -> np.ndarray:
        drawn, lost = (part.cumsum(axis=0) for part in group_sums(wrong, uncertainty, counts))
        return _columns(_first_reaching, drawn / drawn[-1], lost / drawn)

    return curve


def net_benefit(labels: np.ndarray, probability: np.ndarray) -> Curve:
    """Net benefit of calls at each threshold of `GRID`; NaN at 1."""
    odds = np.divide(GRID, 1 - GRID, out=np.full_like(GRID, np.nan), where=GRID < 1)
    called = probability >= GRID[:, None]  # (K, B)

    def curve(counts: np.ndarray) -> np.ndarray:
        gain: np.ndarray = (called * labels) @ counts - odds[:, None] * ((called * (1 - labels)) @ counts)
        return gain / counts.sum(axis=0)

    return curve


def _with_band(
    curve: Curve, patients: np.ndarray, *, behind: np.ndarray | None, seed: int, resamples: int
) -> pd.DataFrame:
    """Evaluate a curve and its band of percentile intervals.

    An ordinate of 0 or 1, which may be the same in all resamples, has at least the exact binomial interval.

    Args:
        curve: function of the counts.
        patients: (B,) patient keys.
        behind: (K,) number of patients behind each ordinate, which is a proportion; None: other ordinates.
        seed: seed of the resampling.
        resamples: number of resamples.
    """
    with np.errstate(invalid="ignore"):  # resamples of one class, and groups that were not drawn
        (y,) = curve(np.ones((len(patients), 1))).T
        bands = patient_bootstrap(
            lambda counts: dict(zip(map(str, range(len(GRID))), curve(counts), strict=True)),
            patients,
            resamples=resamples,
            seed=seed,
        )
    low, high = (np.array([getattr(band, end) for band in bands.values()]) for end in ("low", "high"))
    if behind is not None:
        for k in np.flatnonzero((np.minimum(y, 1 - y) < ROUNDING) & ~np.isnan(low)):
            exact = proportion_interval(Interval(0, 0, 0, 0), float(y[k]), max(1, round(float(behind[k]))))
            low[k], high[k] = min(low[k], exact.low), max(high[k], exact.high)
    return pd.DataFrame({"x": GRID, "y": y, "low": low, "high": high})


def scan_curves(
    labels: np.ndarray, probability: np.ndarray, patients: Sequence[str], *, seed: int, resamples: int
) -> dict[str, pd.DataFrame]:
    """`roc`, `precision_recall`, `risk_coverage` and `net_benefit` of labelled scans of both classes.

    Unlabelled scans are left out. Without both classes, only `risk_coverage`. Uncertainty is the closeness of
    the probability to `THRESHOLD`.

    Raises:
        DataError: no label is known; a probability is NaN or outside [0, 1]; a scan has no patient.
    """
    owner = patient_keys(patients, len(labels))[np.asarray(labels) != UNKNOWN]
    labels, probability = known_scores(labels, probability, what="scan probabilities", probability=True)
    how = {"seed": seed, "resamples": resamples}
    wrong = ((probability >= THRESHOLD) != labels).astype(np.float64)
    risk = risk_coverage(wrong, -np.abs(probability - THRESHOLD))
    tables = {"risk_coverage": _with_band(risk, owner, behind=GRID * len(np.unique(owner)), **how)}
    if len(np.unique(labels)) < 2:
        return tables
    positives = len(np.unique(owner[labels == 1]))
    curves = roc(labels, probability), precision_recall(labels, probability), net_benefit(labels, probability)
    behinds = np.full(len(GRID), positives), GRID * positives, None
    for name, curve, behind in zip(("roc", "precision_recall", "net_benefit"), curves, behinds, strict=True):
        tables[name] = _with_band(curve, owner, behind=behind, **how)
    return tables


def event_rates(
    value: np.ndarray, event: np.ndarray, patients: np.ndarray, *, bins: int, seed: int, resamples: int
) -> pd.DataFrame:
    """Event rate in equal-mass bins of the values, which are fixed in the resamples.

    Returns:
        A row for each filled bin, lowest value first; columns `bin`, `n`, `value` (mean), `patients`,
        `events`, `rate`, and its interval `low` to `high`, which resamples the patients of the bin (NaN for
        one patient).
    """
    rows = []
    bin_index = equal_mass(value, bins)
    for number in np.unique(bin_index):
        in_bin = bin_index == number
        events, owner = event[in_bin], patients[in_bin]
        n_patients, rate = len(np.unique(owner)), float(events.mean())

        def statistic(counts: np.ndarray, events: np.ndarray = events) -> dict[str, np.ndarray]:
            return {"rate": events @ counts / counts.sum(axis=0)}

        resampled = patient_bootstrap(statistic, owner, resamples=resamples, seed=seed)["rate"]
        ends = proportion_interval(resampled, rate, n_patients)
        mean = float(value[in_bin].mean())
        rows.append(
            (int(number), len(events), mean, n_patients, int(events.sum()), rate, ends.low, ends.high)
        )
    return pd.DataFrame(rows, columns=["bin", "n", "value", "patients", "events", "rate", "low", "high"])


def calibration_table(
    labels: np.ndarray,
    probability: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Fraction of positive scans in the equal-mass bins of the calibration error.

    Unlabelled scans are left out.

    Returns:
        `event_rates` with the columns `probability`, `positives` and `share` for value, events and rate.

    Raises:
        DataError: no label is known; a probability is NaN or outside [0, 1]; a scan has no patient.
    """
    owner = patient_keys(patients, len(labels))[np.asarray(labels) != UNKNOWN]
    labels, probability = known_scores(labels, probability, what="calibration", probability=True)
    frame = event_rates(probability, labels, owner, bins=CALIBRATION_BINS, seed=seed, resamples=resamples)
    return frame.rename(columns={"value": "probability", "events": "positives", "rate": "share"})


def _calls(labels: np.ndarray, score: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """True and false positives (G + 1, R) of falling thresholds, the first of which calls no scan."""
    drawn, positive = group_sums(labels, -score, counts)
    none = np.zeros((1, counts.shape[1]))
    tp, fp = (np.concatenate([none, part]).cumsum(axis=0) for part in (positive, drawn - positive))
    return tp, fp


def _columns(
    at: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray], x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """`at(GRID, x, y)` for each resample, (K, R); NaN where x is not defined."""
    nothing = np.full(len(GRID), np.nan)
    pairs = zip(x.T, y.T, strict=True)
    return np.stack([nothing if np.isnan(a[-1]) else at(GRID, a, b) for a, b in pairs], axis=1)


def _first_reaching(grid: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Values y at the first x that reaches each point of the grid; the tolerance covers rounding."""
    return y[np.searchsorted(x, grid - 1e-12).clip(max=len(x) - 1)]

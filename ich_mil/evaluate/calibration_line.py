"""The calibration line: how the log odds of a bleed depend on the log odds that were told.

In: labels in {0, 1} and probabilities. Out, of each resample of the scans, the two numbers of

    logit P(y = 1) = intercept + logit p              (calibration in the large)
    logit P(y = 1) = c + slope · logit p

each by maximum likelihood. A calibrated model has intercept 0 and slope 1. Above 0 bleeds are more frequent
than told; below 1 probabilities are too extreme, above 1 too timid. Unlike the calibration error neither
grows by chance. Intervals hold the intercept 0.90 to 0.96 of the time and the slope 0.71 to 0.94 (20 to 490
patients, `python -m benchmarks.intervals`): with few scans the slope comes out too high.

Source: Cox, *Two further applications of a model for binary regression*, Biometrika 45, 1958; Van Calster et
al., *A calibration hierarchy for risk models was defined*, J. Clin. Epidemiol. 74, 2016.
Shapes: n scans, K coefficients, R resamples.
"""

import numpy as np
from scipy.special import expit, logit

from ich_mil.evaluate.metrics import known_scores

STEPS = 1000
"""Newton steps at most. Five or so do, but where classes hardly overlap log odds go far, by 1 a step."""

ENOUGH = 1e-4
"""A Newton step that moves no log odds by more than this is the last: the error left is about its square."""

APART = 1e-6
"""Log odds that differ by no more are one: isotonic regression gives many scans the same, up to rounding."""


def calibration_line(labels: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    """`calibration_intercept` and `calibration_slope` of known labels; NaN as `resampled_line` says.

    Args:
        labels: (n,) in {0, 1} or `UNKNOWN`, which is left out.
        probability: (n,) in [0, 1].

    Raises:
        DataError: no label is known, or a probability is NaN or outside [0, 1].
    """
    labels, probability = known_scores(labels, probability, what="scan probabilities", probability=True)
    found = resampled_line(labels, probability, np.ones((len(labels), 1)))
    return {name: float(values[0]) for name, values in found.items()}


def resampled_line(labels: np.ndarray, probability: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """The calibration line of each resample.

    Args:
        labels: (n,) in {0, 1}.
        probability: (n,) in [0, 1]; 0 and 1 are held at the float64 epsilon, as in `log_loss`.
        counts: (n, R) how often each scan was drawn.

    Returns:
        `calibration_intercept` and `calibration_slope`, (R,). Both are NaN where a resample holds one class
        only, the slope also where one threshold tells the classes apart: it is infinite then.
    """
    tiny = np.finfo(np.float64).eps
    told = logit(probability.clip(tiny, 1 - tiny))  # (n,)
    ends = {label: _ends(told, counts, labels == label) for label in (0, 1)}
    both = np.isfinite(ends[0][0]) & np.isfinite(ends[1][0])  # (R,)
    overlap = both & (ends[0][1] - ends[1][0] > APART) & (ends[1][1] - ends[0][0] > APART)
    one = np.ones((len(told), 1))
    large = _fit(told, one, labels, counts[:, both])
    middle = told.mean()
    line = _fit(np.zeros_like(told), np.column_stack([one, told - middle]), labels, counts[:, overlap])
    found = {
        name: np.full(counts.shape[1], np.nan) for name in ("calibration_intercept", "calibration_slope")
    }
    found["calibration_intercept"][both] = large[0]
    found["calibration_slope"][overlap] = line[1]
    return found


def _ends(told: np.ndarray, counts: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest value (R,) of the drawn scans of one class; inf and -inf where none was drawn."""
    drawn, told = counts[among] > 0, told[among, None]
    low = np.where(drawn, told, np.inf).min(axis=0, initial=np.inf)
    return low, np.where(drawn, told, -np.inf).max(axis=0, initial=-np.inf)


def _fit(offset: np.ndarray, columns: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Coefficients (K, R) of logistic regressions on `columns` (n, K), from the fit to every scan once."""
    if not counts.shape[1]:
        return np.empty((columns.shape[1], 0))
    once = _newton(offset, columns, labels, np.ones((len(labels), 1)), np.zeros((columns.shape[1], 1)))
    start = np.repeat(np.nan_to_num(once), counts.shape[1], axis=1)
    return _newton(offset, columns, labels, counts, start)


def _newton(
    offset: np.ndarray, columns: np.ndarray, labels: np.ndarray, counts: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """The coefficients (K, R), by Newton's method from `start` (K, R); NaN where it has not converged.

    A step moves no log odds by more than 1: within that the curvature changes by a factor of e at most, and
    a step rises. Log odds are linear in the last column, so the scans at its ends move most.
    """
    found, last = start, columns[:, -1]
    ends = columns[[last.argmin(), last.argmax()]]  # (2, K)
    squares = (columns[:, :, None] * columns[:, None, :]).reshape(len(columns), -1)  # (n, K²)
    wanted = (columns * labels[:, None]).T @ counts  # (K, R)
    for _ in range(STEPS):
        p = expit(offset[:, None] + columns @ found)  # (n, R)
        bleeds = counts * p  # (n, R) expected
        gradient = wanted - columns.T @ bleeds  # (K, R)
        curvature = (squares.T @ (bleeds * (1 - p))).T.reshape(-1, len(found), len(found))  # (R, K, K)
        step = (np.linalg.pinv(curvature, hermitian=True) @ gradient.T[..., None])[..., 0].T  # (K, R)
        moved = np.abs(ends @ step).max(axis=0)  # (R,)
        found = found + step / np.maximum(moved, 1)
        if (moved < ENOUGH).all():
            return found
    return np.where(moved < ENOUGH, found, np.nan)

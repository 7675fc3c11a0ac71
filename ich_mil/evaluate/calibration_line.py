"""The calibration line: how the log odds of a bleed depend on the log odds that were told.

In: labels in {0, 1} and probabilities. Out, of each resample of the scans, the two numbers of

    logit P(y = 1) = intercept + logit p              (calibration in the large)
    logit P(y = 1) = c + slope · logit p

each by maximum likelihood. A calibrated model has intercept 0 and slope 1. Above 0 bleeds are more frequent
than told; below 1 probabilities are too extreme, above 1 too timid. Unlike the calibration error neither
grows by chance.

Source: Cox, *Two further applications of a model for binary regression*, Biometrika 45, 1958; Van Calster et
al., *A calibration hierarchy for risk models was defined*, J. Clin. Epidemiol. 74, 2016.
Shapes: n scans, K coefficients, R resamples.
"""

import numpy as np
from scipy.special import expit, logit

STEPS = 100
"""Newton steps at most; a fit that needs more is not defined."""

ENOUGH = 1e-6
"""A Newton step that moves no log odds by more than this is the last: the error left is its square."""


def calibration_line(labels: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    """`calibration_intercept` and `calibration_slope` of known labels; NaN as `resampled_line` says."""
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
    overlap = both & (ends[0][1] > ends[1][0]) & (ends[1][1] > ends[0][0])
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
    """Coefficients (K, R) of logistic regressions on `columns` (n, K), by Newton's method.

    A step moves no log odds by more than 1: within that the curvature changes by a factor of e at most, and
    a step rises. What has not converged is NaN.
    """
    found = np.zeros((columns.shape[1], counts.shape[1]))
    for _ in range(STEPS):
        p = expit(offset[:, None] + columns @ found)  # (n, R)
        gradient = columns.T @ (counts * (labels[:, None] - p))  # (K, R)
        weight = counts * p * (1 - p)  # (n, R)
        curvature = np.einsum("nk,nl,nr->rkl", columns, columns, weight, optimize=True)
        step = np.linalg.solve(curvature, gradient.T[..., None])[..., 0].T  # (K, R)
        moved = np.abs(columns @ step).max(axis=0)  # (R,)
        found += step / np.maximum(moved, 1)
        if (moved < ENOUGH).all():
            return found
    found[:, moved >= ENOUGH] = np.nan
    return found

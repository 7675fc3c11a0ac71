"""Calibration intercept and slope: logistic regression of the labels on the predicted log odds.

In: labels in {0, 1} and probabilities. Out, for each bootstrap resample of the scans, by maximum likelihood:

    logit P(y = 1) = intercept + logit p              (calibration in the large)
    logit P(y = 1) = c + slope · logit p

A calibrated model has intercept 0 and slope 1. An intercept above 0: hemorrhages are more frequent than
predicted. A slope below 1: probabilities are too extreme. Neither is inflated by chance, unlike the ECE. The
coverage of 95 % intervals is 0.90 to 0.96 for the intercept and 0.71 to 0.94 for the slope (20 to 490
patients, `research/RESULTS.md`, Intervals): with few scans the slope is overestimated.

Source: Cox, Biometrika 45, 1958; Van Calster et al., J. Clin. Epidemiol. 74, 2016.
Shapes: n scans, K coefficients, R resamples.
"""

import numpy as np
from scipy.special import expit, logit

STEPS = 1000
"""Largest number of Newton steps: about five suffice, more if classes hardly overlap (1 log odds a step)."""

ENOUGH = 1e-4
"""Tolerance: iteration stops at a step that changes no log odds by more; the error is about its square."""

APART = 1e-6
"""Log odds closer than this are equal: isotonic regression gives many scans one value, up to rounding."""


def calibration_line(
    labels: np.ndarray, probability: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Intercept and slope, (R,) each, of labels (n,) and probabilities (n,), for counts (n, R).

    Both are NaN if a resample holds one class only. The slope is also NaN if one threshold separates the
    classes, because its estimate is infinite. Probabilities of 0 and 1 are clipped at the float64 epsilon.
    """
    probability = probability.astype(np.float64)
    tiny = np.finfo(np.float64).eps
    z = logit(probability.clip(tiny, 1 - tiny))  # (n,)
    (low_0, high_0), (low_1, high_1) = (_ends(z, counts, labels == label) for label in (0, 1))
    both = np.isfinite(low_0) & np.isfinite(low_1)  # (R,)
    overlap = both & (high_0 - low_1 > APART) & (high_1 - low_0 > APART)
    intercept, slope = np.full((2, counts.shape[1]), np.nan)
    ones = np.ones((len(z), 1))
    intercept[both] = _fit(z, ones, labels, counts[:, both])[0]
    line = np.column_stack([ones, z - z.mean()])
    slope[overlap] = _fit(np.zeros_like(z), line, labels, counts[:, overlap])[1]
    return intercept, slope


def _ends(z: np.ndarray, counts: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest value (R,) of the drawn scans of one class; inf and -inf if none was drawn."""
    drawn, z = counts[among] > 0, z[among, None]
    low = np.where(drawn, z, np.inf).min(axis=0, initial=np.inf)
    return low, np.where(drawn, z, -np.inf).max(axis=0, initial=-np.inf)


def _fit(offset: np.ndarray, columns: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Coefficients (K, R) of logistic regressions on `columns` (n, K), started from the fit to all scans."""
    if not counts.shape[1]:
        return np.empty((columns.shape[1], 0))
    once = _newton(offset, columns, labels, np.ones((len(labels), 1)), np.zeros((columns.shape[1], 1)))
    start = np.repeat(np.nan_to_num(once), counts.shape[1], axis=1)
    return _newton(offset, columns, labels, counts, start)


def _newton(
    offset: np.ndarray, columns: np.ndarray, labels: np.ndarray, counts: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Coefficients (K, R) by Newton's method from `start` (K, R); NaN if it has not converged.

    A step is scaled so that no log odds change by more than 1. Within that range the curvature changes by at
    most a factor of e, so every step increases the likelihood. Log odds are linear in the last column, so the
    largest change occurs at a scan with the smallest or largest value of that column.
    """
    beta, last = start, columns[:, -1]
    ends = columns[[last.argmin(), last.argmax()]]  # (2, K)
    squares = (columns[:, :, None] * columns[:, None, :]).reshape(len(columns), -1)  # (n, K²)
    wanted = (columns * labels[:, None]).T @ counts  # (K, R)
    for _ in range(STEPS):
        p = expit(offset[:, None] + columns @ beta)  # (n, R)
        bleeds = counts * p  # (n, R) expected positives
        gradient = wanted - columns.T @ bleeds  # (K, R)
        curvature = (squares.T @ (bleeds * (1 - p))).T.reshape(-1, len(beta), len(beta))  # (R, K, K)
        step = (np.linalg.pinv(curvature, hermitian=True) @ gradient.T[..., None])[..., 0].T  # (K, R)
        moved = np.abs(ends @ step).max(axis=0)  # (R,)
        beta = beta + step / np.maximum(moved, 1)
        if (moved < ENOUGH).all():
            return beta
    return np.where(moved < ENOUGH, beta, np.nan)

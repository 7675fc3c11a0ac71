"""Recalibration of scan probabilities at a new site, by refitting the intercept.

In: raw scan logits of the site, (L, B) posterior samples or (B,), with labels and patients, and the
calibration of the model. Out: a recalibrated `Calibration`, and its effect on scans it was not fitted to.

A new intercept corrects for another prevalence (Saerens et al. 2002); the slope is kept. It is fitted to
Platt's smoothed targets. The calibration of slices is kept: a site has no slice labels.

Shapes: B scans, L samples.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import brentq
from sklearn.model_selection import GroupKFold
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.evaluate.metrics import SCAN, measured, metrics_of
from ich_mil.evaluate.scores import patient_keys
from ich_mil.gp.calibration import Calibration, smoothed_targets
from ich_mil.sets.labels import UNKNOWN

LEAST_SCANS = 20
"""Minimum of labelled scans for `recalibrate`: with few, the intercept's error exceeds site differences."""

FOLDS = 10
"""Number of folds of `cross_fitted`."""

MOST_SAMPLES = 200
"""Largest number of posterior samples used by `refitted_differences`, to limit the cost of its refits."""

METRICS = ("log_loss", "brier", "ece")


def fit_intercept(logits: Tensor, labels: Tensor, *, slope: float) -> float:
    """Intercept b at which the mean of sigmoid(slope · z + b) equals the mean of Platt's smoothed targets.

    The mean is over scans and samples. With one sample a scan this is the maximum-likelihood intercept for
    the smoothed targets; with several it matches the mean of the reported probabilities to the targets.

    `logits` are (L, B) samples or (B,), `labels` (B,) in {0, 1}.
    """
    z = slope * torch.atleast_2d(logits).double()  # (L, B)
    aim = float(smoothed_targets(labels).mean())
    # at either end all samples lie on one side of `aim`, so the root is between the ends
    edge = float(np.log(aim / (1 - aim)))
    low, high = edge - float(z.max()) - 1, edge - float(z.min()) + 1
    return float(brentq(lambda b: float(torch.sigmoid(z + b).mean()) - aim, low, high))


def refit_intercept(logits: Tensor, labels: Tensor, calibration: Calibration) -> Calibration:
    """Sigmoid with the slope of `calibration`; intercept and prevalence are those of labelled scans."""
    intercept = fit_intercept(logits, labels, slope=calibration.slope)
    return replace(calibration, intercept=intercept, prevalence=float(labels.double().mean()))


def labelled_logits(
    logits: Tensor | np.ndarray, labels: np.ndarray, patients: Sequence[str] | np.ndarray
) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Logits (L, B), labels (B,) and patients (B,) of the labelled scans; `DataError` if invalid."""
    z = torch.atleast_2d(torch.as_tensor(logits).detach().cpu().double())
    y, keys = np.asarray(labels), patient_keys(patients, z.shape[1])
    if not bool(torch.isfinite(z).all()):
        first = int((~torch.isfinite(z)).any(0).nonzero()[0])
        raise DataError(f"recalibration: the logits of scan number {first} are NaN or infinite")
    known = y != UNKNOWN
    return z[:, torch.as_tensor(known)], y[known].astype(np.int64), keys[known]


def recalibrate(logits: Tensor | np.ndarray, labels: np.ndarray, calibration: Calibration) -> Calibration:
    """Recalibrate to the labelled scans of a site by refitting the intercept.

    Args:
        logits: (L, B) sampled raw scan logits under the rule of the calibration, from `scan_logits`, or
            (B,).
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        calibration: calibration of the model.

    Raises:
        DataError: fewer than `LEAST_SCANS` labelled scans; only one class; logits that are not finite.
    """
    z, y, _ = labelled_logits(logits, labels, np.arange(len(np.asarray(labels))).astype(str))
    n, positives = len(y), int(y.sum())
    if n < LEAST_SCANS or positives in (0, n):
        raise DataError(
            f"recalibration needs at least {LEAST_SCANS} scans of the site, of both labels; got {n}, "
            f"{positives} positive; label more, or keep the model's own calibration"
        )
    return refit_intercept(z, torch.as_tensor(y), calibration)


def cross_fitted(
    logits: Tensor | np.ndarray,
    labels: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    calibration: Calibration,
    *,
    seed: int,
) -> np.ndarray:
    """Mean probabilities (B,) of the labelled scans, with intercepts fitted to scans of other patients.

    Arguments as in `recalibrate`, of at least two patients; `seed` assigns the patients to folds.
    """
    z, y, keys = labelled_logits(logits, labels, patients)
    p = np.empty(len(y))
    splitter = GroupKFold(min(FOLDS, len(set(keys))), shuffle=True, random_state=seed)
    for others, held_out in splitter.split(keys, groups=keys):
        refitted = refit_intercept(z[:, others], torch.as_tensor(y[others]), calibration)
        p[held_out] = refitted.scan(z[:, held_out]).mean(0).numpy()
    return p


def refitted_differences(
    logits: Tensor | np.ndarray,
    labels: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    calibration: Calibration,
    *,
    resamples: int = 200,
    seed: int,
) -> dict[str, np.ndarray]:
    """Change in scan metrics by recalibration, with the intercept refitted in each bootstrap resample.

    Each resample draws patients with replacement, fits the intercept to their scans, and evaluates the new
    and the original calibration on the scans of the patients that were not drawn. The result includes the
    uncertainty of the fitted intercept and the sampling error on about a third of the patients. Simulated
    with 200 scans, 5 % of them positive, and an intercept that is off by 0.8: log-loss falls in 0.57 of the
    resamples, while the fit to all scans truly lowers it at 0.98 of such sites.

    Arguments as in `cross_fitted`; at most `MOST_SAMPLES` posterior samples are used.

    Returns:
        New value minus old value, (resamples,) for each of `METRICS`.
    """
    z, y, keys = labelled_logits(logits, labels, patients)
    z = z[:: -(-len(z) // MOST_SAMPLES)]
    owner = np.unique(keys, return_inverse=True)[1]
    generator, n_patients = np.random.default_rng(seed), int(owner.max()) + 1
    differences: dict[str, list[float]] = {metric: [] for metric in METRICS}
    while len(differences[METRICS[0]]) < resamples:
        counts = np.bincount(generator.integers(n_patients, size=n_patients), minlength=n_patients)[owner]
        drawn, rest = np.repeat(np.arange(len(y)), counts), np.flatnonzero(counts == 0)
        if len(rest) == 0:
            continue
        new = refit_intercept(z[:, drawn], torch.as_tensor(y[drawn]), calibration)
        before, after = (calibrated_metrics(z[:, rest], y[rest], fit) for fit in (calibration, new))
        for metric in METRICS:
            differences[metric].append(after[metric] - before[metric])
    return {metric: np.array(values) for metric, values in differences.items()}


def calibrated_metrics(z: Tensor, labels: np.ndarray, calibration: Calibration) -> dict[str, float]:
    """`METRICS` of the calibrated mean probabilities of sampled logits z (L, B)."""
    return measured(metrics_of(SCAN, *METRICS), labels, calibration.scan(z).mean(0).numpy())

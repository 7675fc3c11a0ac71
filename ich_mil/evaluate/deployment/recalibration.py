"""Recalibration of scan probabilities at a new site, and the number of labelled scans it needs.

In: raw scan logits of the site, (L, B) posterior samples or (B,), with labels and patients, and the
calibration of the model. Out: a recalibrated `Calibration`; its effect on scans it was not fitted to; or a
table of calibrations fitted to n scans and evaluated on the other scans, for increasing n.

There are two methods. *Intercept* refits the intercept and keeps the slope, which corrects for another
prevalence (Saerens et al. 2002). *Platt* refits intercept and slope, as `ich_mil.gp.calibration.platt`. Both
fit the mean over samples to Platt's smoothed targets. An isotonic calibration loses its knots and becomes a
sigmoid with its own slope. The calibration of slices is kept: a site has no slice labels, and slice
probabilities are never above that of their scan.

Shapes: B scans, L samples, n scans drawn.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd
import torch
from scipy.optimize import brentq
from sklearn.model_selection import GroupKFold
from torch import Tensor

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.metrics import patient_keys
from ich_mil.evaluate.resampled_metrics import resampled_ece, resampled_losses
from ich_mil.gp.calibration import Calibration, platt, smoothed_targets

Way = Literal["intercept", "platt"]
WAYS: tuple[Way, ...] = ("intercept", "platt")

SIZES = (10, 20, 50, 100, 200)
"""Numbers of labelled scans in the table."""

LEAST_SCANS = 20
"""Minimum of labelled scans for `recalibrate`: with few, the intercept's error exceeds site differences."""

LEAST_LEFT = 20
"""Minimum of scans left for evaluation; a draw that leaves fewer is not evaluated."""

FOLDS = 10
"""Number of folds of `cross_fitted`."""

MOST_SAMPLES = 200
"""Largest number of posterior samples used by `refitted_differences`, to limit the cost of its refits."""

PAYS = 0.9
"""Recalibration pays if it improves at least this fraction of draws: a site has only one draw."""

METRICS = ("log_loss", "brier", "ece")


def fit_intercept(logits: Tensor, labels: Tensor, *, slope: float) -> float:
    """Intercept b at which the mean of sigmoid(slope · z + b) equals the mean of Platt's smoothed targets.

    The mean is over scans and samples. With one sample a scan this is the maximum-likelihood intercept for
    the smoothed targets. With several samples it matches the mean of the reported probabilities to the
    targets.

    Args:
        logits: (L, B) sampled scan logits, or (B,).
        labels: (B,) in {0, 1}.
        slope: fixed slope.
    """
    z = slope * torch.atleast_2d(logits).double()  # (L, B)
    aim = float(smoothed_targets(labels).mean())
    # at either end all samples lie on one side of `aim`, so the root is between the ends
    edge = float(np.log(aim / (1 - aim)))
    low, high = edge - float(z.max()) - 1, edge - float(z.min()) + 1
    return float(brentq(lambda b: float(torch.sigmoid(z + b).mean()) - aim, low, high))


def _refit(logits: Tensor, labels: Tensor, calibration: Calibration, way: Way) -> Calibration | None:
    """Calibration refitted by one method; None if the fitted slope is not above 0."""
    if way == "intercept":
        return _shifted(logits, labels, calibration)
    slope, intercept, _ = platt(logits, labels)
    if not slope > 0:
        return None
    return replace(calibration, method="platt", slope=slope, intercept=intercept, knots=())


def _shifted(logits: Tensor, labels: Tensor, calibration: Calibration) -> Calibration:
    """Sigmoid with the slope of `calibration` and a refitted intercept."""
    intercept = fit_intercept(logits, labels, slope=calibration.slope)
    return replace(calibration, method="platt", intercept=intercept, knots=())


def _known(
    logits: Tensor | np.ndarray, labels: np.ndarray, patients: Sequence[str] | np.ndarray
) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Logits (L, B), labels (B,) and patients (B,) of the labelled scans."""
    z = torch.atleast_2d(torch.as_tensor(logits).detach().cpu().double())
    y, keys = np.asarray(labels), patient_keys(patients)
    if z.ndim != 2 or y.shape != (z.shape[1],) or keys.shape != y.shape:
        raise ValueError(f"logits {tuple(z.shape)}, labels {y.shape} and patients {keys.shape} do not fit")
    if not np.isin(y, (0, 1, UNKNOWN)).all():
        other = y[~np.isin(y, (0, 1, UNKNOWN))][0]
        raise DataError(f"recalibration: a label must be 0, 1 or {UNKNOWN} (unknown), got {other!r}")
    if not bool(torch.isfinite(z).all()):
        first = int((~torch.isfinite(z)).any(0).nonzero()[0])
        raise DataError(f"recalibration: the logits of scan number {first} are NaN or infinite")
    known = y != UNKNOWN
    return z[:, torch.as_tensor(known)], y[known].astype(np.int64), keys[known]


def _of_several(
    logits: Tensor | np.ndarray, labels: np.ndarray, patients: Sequence[str] | np.ndarray
) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Result of `_known`. `DataError` if all labelled scans are of one patient."""
    z, y, keys = _known(logits, labels, patients)
    if len(set(keys)) < 2:
        raise DataError(f"recalibration: all {len(y)} labelled scans are of one patient; label others too")
    return z, y, keys


def recalibrate(logits: Tensor | np.ndarray, labels: np.ndarray, calibration: Calibration) -> Calibration:
    """Recalibrate to the labelled scans of a site by refitting the intercept.

    Args:
        logits: (L, B) sampled raw scan logits under the rule of the calibration, from `scan_samples`, or
            (B,).
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        calibration: calibration of the model.

    Returns:
        Calibration with the same rule, slope and slice map and a new intercept.

    Raises:
        DataError: fewer than `LEAST_SCANS` labelled scans; only one class; logits that are not finite.
    """
    z, y, _ = _known(logits, labels, np.arange(len(np.asarray(labels))).astype(str))
    n, positives = len(y), int(y.sum())
    if n < LEAST_SCANS:
        raise DataError(
            f"recalibration needs at least {LEAST_SCANS} labelled scans of the site, got {n}; label more, or "
            "keep the model's own calibration"
        )
    if positives in (0, n):
        raise DataError(
            f"recalibration needs scans of both labels, {positives} of {n} are positive; label more"
        )
    return _shifted(z, torch.as_tensor(y), calibration)


def cross_fitted(
    logits: Tensor | np.ndarray,
    labels: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    calibration: Calibration,
    *,
    seed: int,
) -> np.ndarray:
    """Cross-fitted probabilities of the scans of a site: intercepts are fitted to scans of other patients.

    Args:
        logits: (L, B) or (B,), as in `recalibrate`.
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        patients: B patient keys.
        calibration: calibration of the model.
        seed: seed of the assignment of patients to folds.

    Returns:
        (B,) mean probabilities of the labelled scans.

    Raises:
        DataError: all scans are of one patient.
    """
    z, y, keys = _of_several(logits, labels, patients)
    p = np.empty(len(y))
    parts = GroupKFold(min(FOLDS, len(set(keys))), shuffle=True, random_state=seed)
    for others, held_out in parts.split(keys, groups=keys):
        found = _shifted(z[:, others], torch.as_tensor(y[others]), calibration)
        p[held_out] = found.scan(z[:, held_out]).mean(0).numpy()
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
    uncertainty of the fitted intercept (few scans may have an unusual prevalence), which a bootstrap with a
    fixed fit misses. It also includes the sampling error of the evaluation on about a third of the patients,
    which dominates with few scans. Simulated with 200 scans, 5 % of them positive, and an intercept that is
    off by 0.8: log-loss falls in 0.57 of the resamples, while the fit to all scans truly lowers it at 0.98 of
    such sites.

    Args:
        logits: (L, B) or (B,), as in `recalibrate`; at most `MOST_SAMPLES` samples are used.
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        patients: B patient keys.
        calibration: calibration of the model.
        resamples: number of resamples of patients.
        seed: seed of the resampling.

    Returns:
        New value minus old value, (resamples,) for each of `METRICS`.

    Raises:
        DataError: all scans are of one patient.
    """
    z, y, keys = _of_several(logits, labels, patients)
    z = z[:: -(-len(z) // MOST_SAMPLES)]
    owner = np.unique(keys, return_inverse=True)[1]
    generator, n_patients = np.random.default_rng(seed), int(owner.max()) + 1
    found: dict[str, list[float]] = {metric: [] for metric in METRICS}
    while len(found[METRICS[0]]) < resamples:
        counts = np.bincount(generator.integers(n_patients, size=n_patients), minlength=n_patients)[owner]
        drawn, rest = np.repeat(np.arange(len(y)), counts), np.flatnonzero(counts == 0)
        if len(rest) == 0:
            continue
        new = _shifted(z[:, drawn], torch.as_tensor(y[drawn]), calibration)
        own, other = (_measure(z[:, rest], y[rest], one) for one in (calibration, new))
        for metric in METRICS:
            found[metric].append(other[metric] - own[metric])
    return {metric: np.array(values) for metric, values in found.items()}


def _draw(owner: np.ndarray, n: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of n scans of randomly drawn whole patients, and rows of all scans of the other patients.

    If the last patient drawn has scans beyond n, these are in neither, so no patient is in both.
    """
    order = generator.permutation(int(owner.max()) + 1)  # patients
    rank = np.argsort(order)[owner]  # (B,) rank of each scan's patient
    rows = np.argsort(rank, kind="stable")
    return rows[:n], rows[rank[rows] > rank[rows[n - 1]]]


def _measure(z: Tensor, labels: np.ndarray, calibration: Calibration) -> dict[str, float]:
    p = calibration.scan(z).mean(0).numpy()
    once = np.ones((len(p), 1))
    found = resampled_losses(labels, p, once) | {"ece": resampled_ece(labels, p, once)}
    return {name: float(found[name][0]) for name in METRICS}


def recalibration_curve(
    logits: Tensor | np.ndarray,
    labels: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    calibration: Calibration,
    *,
    sizes: Sequence[int] = SIZES,
    repeats: int = 50,
    seed: int,
) -> pd.DataFrame:
    """Scan metrics after recalibration to n scans of a site, evaluated on its other scans, for several n.

    In each repeat n scans are drawn by whole patients, regardless of their labels, which a site does not know
    before it reads the scans. Both methods are fitted to these scans. The recalibrated model and the original
    one are evaluated on the scans of all other patients. A draw with one class only is not used, nor is a
    draw with a fitted slope not above 0 (platt only); both are counted. Draws overlap, so the spread over
    repeats shows how much the outcome depends on the draw and is not a confidence interval.

    Args:
        logits: (L, B) sampled raw scan logits under the rule of the calibration, or (B,).
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        patients: B patient keys.
        calibration: calibration of the model.
        sizes: values of n.
        repeats: number of draws for each n.
        seed: seed of the draws.

    Returns:
        One row for each size, method and metric; columns `n`, `way` (method), `metric`, `own` (median of the
        original model), `value` (median after recalibration), `low` and `high` (5th and 95th percentile over
        draws), `better` (fraction of draws with a lower value than the original model), the numbers of draws
        `used`, with `one_label` and with a `wrong_slope`, `left` (median number of scans for evaluation), and
        `note`. Numbers that are not defined are NaN, and the note gives the reason.

    Raises:
        DataError: no scan is labelled; a label or logit is invalid.
        ValueError: arrays that do not match, a size below 2, or no repeat.
    """
    z, y, keys = _known(logits, labels, patients)
    if len(y) == 0:
        raise DataError("recalibration: no scan of the site is labelled")
    if repeats < 1 or not sizes or min(sizes) < 2:
        raise ValueError(f"need sizes of at least 2 and one repeat, got {list(sizes)} and {repeats}")
    owner = np.unique(keys, return_inverse=True)[1]
    rows = []
    for n in sizes:
        generator = np.random.default_rng([seed, n])  # the draws of one size do not depend on the others
        pairs: dict[Way, list[tuple[dict[str, float], dict[str, float]]]] = {way: [] for way in WAYS}
        one_label, left = 0, []
        refused = dict.fromkeys(WAYS, 0)
        for _ in range(repeats if n < len(y) else 0):
            drawn, rest = _draw(owner, n, generator)
            if len(rest) < LEAST_LEFT:
                continue
            left.append(len(rest))
            if len(np.unique(y[drawn])) == 1:
                one_label += 1
                continue
            own = _measure(z[:, rest], y[rest], calibration)
            for way in WAYS:
                found = _refit(z[:, drawn], torch.as_tensor(y[drawn]), calibration, way)
                if found is None:
                    refused[way] += 1
                else:
                    pairs[way].append((own, _measure(z[:, rest], y[rest], found)))
        for way in WAYS:
            facts = {
                "used": len(pairs[way]),
                "one_label": one_label,
                "wrong_slope": refused[way],
                "left": float(np.median(left)) if left else 0.0,
                "note": _note(len(pairs[way]), len(left), repeats, f"{n} of {len(y)} labelled scans"),
            }
            for metric in METRICS:
                rows.append({"n": n, "way": way, "metric": metric, **_spread(pairs[way], metric), **facts})
    return pd.DataFrame(rows)


def _note(used: int, measured: int, repeats: int, what: str) -> str:
    if measured < repeats:
        return f"{what}: {repeats - measured} draws left fewer than {LEAST_LEFT} to measure on"
    return "" if used else "no draw could be used: one label only, or no slope above 0"


def _spread(pairs: Sequence[tuple[dict[str, float], dict[str, float]]], metric: str) -> dict[str, float]:
    if not pairs:
        return dict.fromkeys(("own", "value", "low", "high", "better"), float("nan"))
    own, new = (np.array([pair[k][metric] for pair in pairs]) for k in (0, 1))
    value, low, high = np.quantile(new, [0.5, 0.05, 0.95])
    return {
        "own": float(np.median(own)),
        "value": float(value),
        "low": float(low),
        "high": float(high),
        "better": float((new < own).mean()),
    }


def pays_from(curve: pd.DataFrame, *, way: Way) -> int | None:
    """Smallest n from which recalibration lowers the log-loss in most draws.

    The fraction of better draws must reach `PAYS` at this n and at every larger n that was evaluated;
    unusable draws count as not better.

    Args:
        curve: result of `recalibration_curve`.
        way: 'intercept' or 'platt'.

    Returns:
        n, or None if recalibration pays at no evaluated size.
    """
    rows = curve[(curve["way"] == way) & (curve["metric"] == "log_loss")].sort_values("n", ascending=False)
    found = None
    for row in rows[rows["used"] + rows["one_label"] + rows["wrong_slope"] > 0].to_dict("records"):
        tried = row["used"] + row["one_label"] + row["wrong_slope"]
        if not row["used"] or row["better"] * row["used"] / tried < PAYS:
            break
        found = int(row["n"])
    return found

"""Recalibration at a new site: from how many labelled scans on does it pay?

In: the site's raw scan logits, (L, B) posterior samples or (B,), their labels and patients, and the
calibration the model came with. Out: a recalibrated `Calibration`; what it does to scans it was not fitted
to; or a table of that, fitted to n scans and measured on the others, for rising n.

Two ways. *Intercept*: one number; the slope stays, which takes up another prevalence (Saerens et al. 2002).
*Platt*: intercept and slope, as `ich_mil.gp.calibration.platt`. Both fit the mean over samples to Platt's
smoothed targets. An isotonic map becomes a sigmoid of its own slope. The map of slices stays: a site has no
slice labels, and slices are never above their scan.

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
from ich_mil.evaluate.weighted import resampled_ece, resampled_losses
from ich_mil.gp.calibration import Calibration, platt, smoothed_targets

Way = Literal["intercept", "platt"]
WAYS: tuple[Way, ...] = ("intercept", "platt")

SIZES = (10, 20, 50, 100, 200)
"""Numbers of labelled scans in the table."""

LEAST_SCANS = 20
"""`recalibrate` refuses fewer labelled scans: a few labels move the intercept by more than sites differ."""

LEAST_LEFT = 20
"""A size of the table that leaves fewer scans to measure on is not measured."""

FOLDS = 10
"""Parts of `cross_fitted`."""

MOST_SAMPLES = 200
"""Posterior samples that `refitted_differences` uses: it fits as many intercepts."""

PAYS = 0.9
"""Share of draws in which recalibration must beat the model's own, to say that it pays: a site draws once."""

METRICS = ("log_loss", "brier", "ece")


def fit_intercept(logits: Tensor, labels: Tensor, *, slope: float) -> float:
    """The intercept b for which the mean of sigmoid(slope · z + b) over scans and samples is that of targets.

    For one sample a scan this is maximum likelihood against Platt's smoothed targets, whose mean it matches.
    With samples it matches the mean of the reported probabilities to the same.

    Args:
        logits: (L, B) sampled scan logits, or (B,).
        labels: (B,) in {0, 1}.
        slope: that stays.
    """
    z = slope * torch.atleast_2d(logits).double()  # (L, B)
    aim = float(smoothed_targets(labels).mean())
    # at either end every sample lies beyond `aim`, so that the root is between them
    edge = float(np.log(aim / (1 - aim)))
    low, high = edge - float(z.max()) - 1, edge - float(z.min()) + 1
    return float(brentq(lambda b: float(torch.sigmoid(z + b).mean()) - aim, low, high))


def _refit(logits: Tensor, labels: Tensor, calibration: Calibration, way: Way) -> Calibration | None:
    """None where the best slope is not above 0."""
    if way == "intercept":
        return _shifted(logits, labels, calibration)
    slope, intercept, _ = platt(logits, labels)
    if not slope > 0:
        return None
    return replace(calibration, method="platt", slope=slope, intercept=intercept, knots=())


def _shifted(logits: Tensor, labels: Tensor, calibration: Calibration) -> Calibration:
    """The sigmoid of the same slope with another intercept."""
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
    """What `_known` gives. `DataError` if all of it is of one patient."""
    z, y, keys = _known(logits, labels, patients)
    if len(set(keys)) < 2:
        raise DataError(f"recalibration: all {len(y)} labelled scans are of one patient; label others too")
    return z, y, keys


def recalibrate(logits: Tensor | np.ndarray, labels: np.ndarray, calibration: Calibration) -> Calibration:
    """Recalibrate to the labelled scans of a site, by the intercept.

    Args:
        logits: (L, B) sampled raw scan logits by the calibration's rule, as `scan_samples` gives them, or
            (B,).
        labels: (B,) in {0, 1} or `UNKNOWN`, which is left out.
        calibration: the model's own.

    Returns:
        The same rule, slope and slice map with a new intercept.

    Raises:
        DataError: fewer than `LEAST_SCANS` labelled scans; one label missing; logits that are not finite.
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
    """Probabilities of the scans of a site, each by an intercept fitted to scans of other patients.

    Args:
        logits: (L, B) or (B,), as in `recalibrate`.
        labels: (B,) in {0, 1}.
        patients: B patient keys.
        calibration: the model's own.
        seed: of the parts that patients are divided into.

    Returns:
        (B,) mean probabilities.

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
    """What recalibration changes, if other patients of the site had been labelled.

    In each resample patients are drawn with repetition, the intercept is fitted to their scans, and it and
    the model's own calibration are measured on the scans of the others. That a few scans may have an odd
    prevalence is in these numbers; a bootstrap that keeps the fit does not see it. So is the chance of whom
    they are measured on, about a third of the patients, and with few scans it is most of it: with 200 of
    which 5 % are positive, and an intercept off by 0.8, log-loss falls in 0.57 of the resamples, where the
    fit to all truly lowers it for 0.98 of such sites (simulated).

    Args:
        logits: (L, B) or (B,), as in `recalibrate`; at most `MOST_SAMPLES` samples are used.
        labels: (B,) in {0, 1}.
        patients: B patient keys.
        calibration: the model's own.
        resamples: of patients.
        seed: of the resamples.

    Returns:
        The new value less the old one, (resamples,) for each of `METRICS`.

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
    """The rows of n scans of whole patients, and of all scans of the patients not drawn.

    The last patient's scans beyond n are in neither, so no patient is in both.
    """
    order = generator.permutation(int(owner.max()) + 1)  # patients
    rank = np.argsort(order)[owner]  # (B,) place of each scan's patient
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
    """How well a calibration that was fitted to n scans of a site does on its other scans.

    In each repeat n scans are drawn by whole patients, whatever their labels: a site does not know these
    before it reads them. Both ways are fitted to them, and they and the model's own calibration are measured
    on the scans of all other patients. A draw with one label only cannot be used, nor one whose slope is not
    above 0 (platt only): both are counted, and take no part. Draws overlap, so the spread over repeats is
    that of a site's luck, not a confidence interval.

    Args:
        logits: (L, B) sampled raw scan logits by the calibration's rule, or (B,).
        labels: (B,) in {0, 1} or `UNKNOWN`, which is left out.
        patients: B patient keys.
        calibration: the model's own.
        sizes: n.
        repeats: draws for each n.
        seed: of the draws.

    Returns:
        A row a size, way and metric; columns `n`, `way`, `metric`, `own` (median of the model's own), `value`
        (median), `low` and `high` (5 and 95 % of draws), `better` (share of draws with a lower value than the
        model's own), `used`, `one_label` and `wrong_slope` (draws), `left` (median number of scans measured
        on), `note`. Numbers that are not defined are NaN, and the note says why.

    Raises:
        DataError: no scan is labelled; a label or logit that cannot be used.
        ValueError: arrays that do not fit, a size below 2, no repeat.
    """
    z, y, keys = _known(logits, labels, patients)
    if len(y) == 0:
        raise DataError("recalibration: no scan of the site is labelled")
    if repeats < 1 or not sizes or min(sizes) < 2:
        raise ValueError(f"need sizes of at least 2 and one repeat, got {list(sizes)} and {repeats}")
    owner = np.unique(keys, return_inverse=True)[1]
    rows = []
    for n in sizes:
        generator = np.random.default_rng([seed, n])  # a size's draws do not depend on the other sizes
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
    """The smallest n from which recalibration has a lower log-loss than the model's own, in most draws.

    That is in a share `PAYS` of them, at that n and at every larger one that could be measured; unusable
    draws count as not better.

    Args:
        curve: of `recalibration_curve`.
        way: 'intercept' or 'platt'.

    Returns:
        n, or None if it pays at no measured size.
    """
    rows = curve[(curve["way"] == way) & (curve["metric"] == "log_loss")].sort_values("n", ascending=False)
    found = None
    for row in rows[rows["used"] + rows["one_label"] + rows["wrong_slope"] > 0].to_dict("records"):
        tried = row["used"] + row["one_label"] + row["wrong_slope"]
        if not row["used"] or row["better"] * row["used"] / tried < PAYS:
            break
        found = int(row["n"])
    return found

"""Scan metrics after recalibration to n labelled scans of a new site, for increasing n.

*Intercept* refits the intercept and keeps the slope; *Platt* refits both. A row of the table shows how the
result depends on the draw of the n scans.

Shapes: B scans, L samples, n scans drawn.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.recalibration import (
    METRICS,
    calibrated_metrics,
    labelled_logits,
    refit_intercept,
)
from ich_mil.gp.calibration import Calibration, platt

Way = Literal["intercept", "platt"]
WAYS: tuple[Way, ...] = ("intercept", "platt")

SIZES = (10, 20, 50, 100, 200)
"""Numbers of labelled scans in the table."""

LEAST_LEFT = 20
"""Minimum of scans left for evaluation; a draw that leaves fewer is not evaluated."""

PAYS = 0.9
"""Recalibration pays if it improves at least this fraction of draws: a site has only one draw."""


def _refit(logits: Tensor, labels: Tensor, calibration: Calibration, way: Way) -> Calibration | None:
    """Calibration refitted by one method; None if the fitted slope is not above 0."""
    if way == "intercept":
        return refit_intercept(logits, labels, calibration)
    slope, intercept, _ = platt(logits, labels)
    if not slope > 0:
        return None
    return replace(calibration, slope=slope, intercept=intercept)


def _draw(owner: np.ndarray, n: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of n scans of randomly drawn whole patients, and rows of all scans of the other patients.

    If the last patient drawn has scans beyond n, these are in neither, so no patient is in both.
    """
    order = generator.permutation(int(owner.max()) + 1)  # patients
    rank = np.argsort(order)[owner]  # (B,) rank of each scan's patient
    rows = np.argsort(rank, kind="stable")
    return rows[:n], rows[rank[rows] > rank[rows[n - 1]]]


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

    In each of `repeats` draws, n scans are drawn by whole patients, regardless of their labels. Both methods
    are fitted to these scans and evaluated, beside the original model, on the scans of all other patients. A
    draw with one class only is not used, nor is a draw with a fitted slope not above 0; both are counted.
    Draws overlap, so the spread over draws is not a confidence interval. `logits` (L, B) are sampled raw scan
    logits under the rule of the calibration, or (B,).

    Returns:
        One row for each size, method and metric; columns `n`, `way` (method), `metric`, `own` (median of the
        original model), `value` (median after recalibration), `low` and `high` (5th and 95th percentile),
        `better` (fraction of draws with a lower value than the original model), the numbers of draws `used`,
        with `one_label` and with a `wrong_slope`, `left` (median number of scans for evaluation), `note`.
    """
    z, y, keys = labelled_logits(logits, labels, patients)
    if len(y) == 0:
        raise DataError("recalibration: no scan of the site is labelled")
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
            own = calibrated_metrics(z[:, rest], y[rest], calibration)
            for way in WAYS:
                found = _refit(z[:, drawn], torch.as_tensor(y[drawn]), calibration, way)
                if found is None:
                    refused[way] += 1
                else:
                    pairs[way].append((own, calibrated_metrics(z[:, rest], y[rest], found)))
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
    unusable draws count as not better. None if recalibration pays at no evaluated size.
    """
    rows = curve[(curve["way"] == way) & (curve["metric"] == "log_loss")].sort_values("n", ascending=False)
    found = None
    for row in rows.to_dict("records"):
        tried = row["used"] + row["one_label"] + row["wrong_slope"]
        if not tried:
            continue
        if not row["used"] or row["better"] * row["used"] / tried < PAYS:
            break
        found = int(row["n"])
    return found

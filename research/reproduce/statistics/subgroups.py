"""Scan metrics of subgroups: by number of slices, kind of series, subtype of hemorrhage, reader agreement.

Good overall performance may hide a group on which the model fails. Groups that are too small get no interval,
and a note.

Shapes: B scans.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.evaluate.bootstrap import RESAMPLES
from ich_mil.evaluate.metrics import SCAN, measured, metrics_of
from ich_mil.evaluate.model_metrics import estimates
from ich_mil.evaluate.scores import patient_keys
from ich_mil.ledger import Code
from ich_mil.sets.labels import UNKNOWN

COLUMNS = ["group", "n", "positives", "patients", "auc", "auc_low", "auc_high"]
COLUMNS += ["log_loss", "log_loss_low", "log_loss_high", "sensitivity", "sensitivity_low", "sensitivity_high"]
COLUMNS += ["specificity", "specificity_low", "specificity_high", "note"]

SERIES = {
    "another kind of series": Code.SERIES_KIND,
    "a part of a head": Code.PART_OF_HEAD,
    "averaged from thin slices": Code.AVERAGED,
    "tilted gantry": Code.TILTED,
    "gaps between slices": Code.GAP,
}
"""Ledger code of each group by series; contrast, kernel, plane, body part or length make another kind."""
EDGES = (20, 45, 100)
"""Largest number of slices in each group of scans by length; the last group has no limit."""
FEW = 10
"""A group with fewer patients with a positive scan, or with a negative scan, gets no interval."""


def _row(
    labels: np.ndarray, probability: np.ndarray, patients: np.ndarray, *, seed: int, resamples: int
) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS, np.nan)
    row |= {"n": len(labels), "positives": int(labels.sum()), "patients": len(np.unique(patients))}
    if not len(labels):
        return {**row, "note": "no labelled scan"}
    metrics = metrics_of(SCAN, "auc", "log_loss", "sensitivity", "specificity")
    row |= measured(metrics, labels, probability)
    notes = []
    with_positive, with_negative = (len(np.unique(patients[labels == kind])) for kind in (1, 0))
    if not with_positive:
        notes.append("no positive scan, so no AUC and sensitivity")
    if not with_negative:
        notes.append("no negative scan, so no AUC and specificity")
    if min(with_positive, with_negative) < FEW:
        notes.append(
            f"few: {with_positive} patients with a positive scan and {with_negative} with a negative one, "
            f"an interval needs {FEW} of each"
        )
    else:
        found = estimates(metrics, labels, [probability], patients, seed=seed, resamples=resamples)
        for name, estimate in found.items():
            assert estimate.interval is not None  # both classes are there
            row |= {f"{name}_low": estimate.interval.low, f"{name}_high": estimate.interval.high}
    return {**row, "note": "; ".join(notes)}


def subgroup_table(
    labels: np.ndarray,
    probability: np.ndarray,
    patients: Sequence[str] | np.ndarray,
    groups: Mapping[str, np.ndarray],
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Scan metrics of each group.

    The log-loss depends on the prevalence, so it differs between groups of different prevalence. With many
    groups, the best and the worst one look more extreme than they are.

    `groups` are the memberships (B,) bool by name of the group; groups may overlap.

    Returns:
        One row for each group, in the order given, with the columns `COLUMNS`: `n` labelled scans,
        `positives` and `patients` among them, `auc`, `log_loss`, and at `THRESHOLD` `sensitivity` and
        `specificity`, each with its interval, which is NaN for groups with fewer than `FEW` patients of a
        class.
    """
    owner = patient_keys(patients, len(labels))
    rows = []
    for name, members in groups.items():
        chosen = members & (labels != UNKNOWN)
        row = _row(labels[chosen], probability[chosen], owner[chosen], seed=seed, resamples=resamples)
        rows.append({**row, "group": name})
    return pd.DataFrame(rows, columns=COLUMNS)


def slice_count_groups(offsets: np.ndarray) -> dict[str, np.ndarray]:
    """Groups by number of slices, (B,) bool by name; each scan is in exactly one group."""
    names = [f"up to {EDGES[0]} slices"]
    names += [f"{low + 1} to {high} slices" for low, high in pairwise(EDGES)]
    names += [f"over {EDGES[-1]} slices"]
    place = np.searchsorted(EDGES, np.diff(offsets), side="left")  # (B,)
    return {name: place == k for k, name in enumerate(names)}


def series_groups(ledger: pd.DataFrame, scans: Sequence[str]) -> dict[str, np.ndarray]:
    """Groups of `SERIES` that are not empty, (B,) bool by name, from the ledger of a prepared set."""
    marked = {name: set(ledger.scan[ledger.code == code]) for name, code in SERIES.items()}
    groups = {name: np.array([scan in listed for scan in scans]) for name, listed in marked.items()}
    return {name: where for name, where in groups.items() if where.any()}


def subtype_groups(labels: np.ndarray, subtypes: pd.DataFrame) -> dict[str, np.ndarray]:
    """Groups by subtype of hemorrhage: the positive scans that show it, and all negative scans.

    `subtypes` has B rows and a bool column for each subtype; an unlabelled scan is in no group.
    """
    return {
        str(name): (labels == 0) | ((labels == 1) & subtypes[name].to_numpy()) for name in subtypes.columns
    }

"""Scan metrics of subgroups: by number of slices, kind of series, subtype of hemorrhage, reader agreement.

In: labels and probabilities of B scans, and groups of them, which may overlap. Out: one row for each group.
Good overall performance may hide a group on which the model fails. Groups that are too small get no interval,
and a note.

Shapes: B scans.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.evaluate.bootstrap import RESAMPLES, interval_of, patient_bootstrap, patients_behind
from ich_mil.evaluate.metrics import THRESHOLD, check_scores, patient_keys, scan_metrics
from ich_mil.evaluate.resampled_metrics import resampled_losses, resampled_ranking, resampled_recall
from ich_mil.ledger import Code

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
    called = (probability >= THRESHOLD).astype(np.int64)
    values = scan_metrics(labels, probability)
    row |= {name: values[name] for name in ("auc", "log_loss", "sensitivity", "specificity")}
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
        intervals = patient_bootstrap(
            lambda counts: {
                "auc": resampled_ranking(labels, probability, counts)["auc"],
                "log_loss": resampled_losses(labels, probability, counts)["log_loss"],
                "sensitivity": resampled_recall(labels, called, counts, 1),
                "specificity": resampled_recall(labels, called, counts, 0),
            },
            patients,
            resamples=resamples,
            seed=seed,
        )
        behind = patients_behind(labels, patients)
        for name, resampled in intervals.items():
            interval = interval_of(name, row[name], resampled, behind)
            row |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
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

    The log-loss depends on the prevalence, so it differs between groups of different prevalence. AUC,
    sensitivity and specificity do not depend on it. With many groups, the best and the worst one look more
    extreme than they are.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out.
        probability: (B,) in [0, 1].
        patients: B patient keys; the intervals resample the patients of the group.
        groups: (B,) bool by name of the group: membership of each scan.
        seed: seed of the resampling.
        resamples: number of resamples behind each interval.

    Returns:
        One row for each group, in the order given, with the columns `COLUMNS`: `n` labelled scans,
        `positives` and `patients` among them, `auc`, `log_loss`, and at `THRESHOLD` `sensitivity` and
        `specificity`, each with its 95 % interval. Metrics that are not defined are NaN, as are the intervals
        of groups with fewer than `FEW` patients of a class; `note` gives the reason.

    Raises:
        DataError: an invalid label or probability.
        ValueError: a group is not (B,) bool, or lengths do not match.
    """
    labels, probability = check_scores(labels, probability, what="scan probabilities", probability=True)
    owner = patient_keys(patients, len(labels))
    rows = []
    for name, members in groups.items():
        members = np.asarray(members)
        if members.dtype != np.bool_ or members.shape != labels.shape:
            raise ValueError(
                f"group {name!r} must be {labels.shape} bool, got {members.shape} {members.dtype}"
            )
        chosen = members & (labels != UNKNOWN)
        row = _row(labels[chosen], probability[chosen], owner[chosen], seed=seed, resamples=resamples)
        rows.append({**row, "group": name})
    return pd.DataFrame(rows, columns=COLUMNS)


def slice_count_groups(offsets: np.ndarray) -> dict[str, np.ndarray]:
    """Groups by number of slices: 'up to 20 slices', '21 to 45 slices', ..., 'over 100 slices'.

    Args:
        offsets: (B + 1,) scan b owns slices `offsets[b]:offsets[b + 1]`.

    Returns:
        (B,) bool by name; each scan is in exactly one group.
    """
    names = [f"up to {EDGES[0]} slices"]
    names += [f"{low + 1} to {high} slices" for low, high in pairwise(EDGES)]
    names += [f"over {EDGES[-1]} slices"]
    place = np.searchsorted(EDGES, np.diff(offsets), side="left")  # (B,)
    return {name: place == k for k, name in enumerate(names)}


def series_groups(ledger: pd.DataFrame, scans: Sequence[str]) -> dict[str, np.ndarray]:
    """Groups by ledger entries on the series that was chosen for a scan; a scan may be in several groups.

    Args:
        ledger: columns `scan` and `code`, as `PreparedSet.ledger`.
        scans: B scan ids.

    Returns:
        (B,) bool by name, for the groups of `SERIES` that are not empty.
    """
    said = {name: set(ledger.scan[ledger.code == code]) for name, code in SERIES.items()}
    groups = {name: np.array([scan in those for scan in scans]) for name, those in said.items()}
    return {name: where for name, where in groups.items() if where.any()}


def subtype_groups(labels: np.ndarray, subtypes: pd.DataFrame) -> dict[str, np.ndarray]:
    """Groups by subtype of hemorrhage: the positive scans that show it, and all negative scans.

    The AUC of a group is the probability that a scan with this subtype ranks above a scan without hemorrhage.
    A scan with two subtypes is in both groups; an unlabelled scan is in none.

    Args:
        labels: (B,) in {0, 1} or `UNKNOWN`.
        subtypes: B rows in the same order, a bool column for each subtype, for example columns of
            `data.layouts.cq500.read_cq500_findings`.

    Returns:
        (B,) bool by name of the column.

    Raises:
        ValueError: lengths do not match, or a column is not bool.
    """
    labels = np.asarray(labels)
    if len(subtypes) != len(labels):
        raise ValueError(f"{len(labels)} labels and {len(subtypes)} rows of subtypes do not fit")
    wrong = [name for name in subtypes if subtypes[name].dtype != np.bool_]
    if wrong:
        raise ValueError(f"columns of subtypes must be bool, {wrong[0]!r} is {subtypes[wrong[0]].dtype}")
    return {
        str(name): (labels == 0) | ((labels == 1) & subtypes[name].to_numpy()) for name in subtypes.columns
    }

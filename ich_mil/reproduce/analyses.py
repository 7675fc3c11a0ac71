"""Detailed analyses of the main head of a protocol on one scored set.

In: the scores of every model on the set with the first seed (`Look`). Out: sections of the report, and for
each section a CSV and a figure in the folder of the set. An analysis that is not possible (no slice labels,
one class, too few scans) is reported with the reason.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

from ich_mil.data.labels import UNKNOWN
from ich_mil.data.layouts.cq500 import FINDINGS
from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.recalibration import fit_intercept
from ich_mil.evaluate.event_rates import calibration_table, error_by_decile
from ich_mil.evaluate.metrics import THRESHOLD
from ich_mil.evaluate.uncertainty import CLOSENESS, risk_coverage, uncertainties, uncertainty_table
from ich_mil.report.figures import reliability
from ich_mil.reproduce.deployment import drift, recalibration, triage
from ich_mil.reproduce.figures import bars, curves
from ich_mil.reproduce.look import Look
from ich_mil.reproduce.page import Chapter, Section
from ich_mil.reproduce.statistics.compare import compare, compare_slices
from ich_mil.reproduce.statistics.groups import higher_where, higher_where_given_p
from ich_mil.reproduce.statistics.joint import joint_against_independent
from ich_mil.reproduce.statistics.subgroups import (
    series_groups,
    slice_count_groups,
    subgroup_table,
    subtype_groups,
)

FEW = 10
"""Minimum number of scans in a group, and outside it, for a comparison of their uncertainties."""
CURVES = ("CNN alone", "logistic regression, mean-pooled")
"""Models whose calibration is plotted beside that of the main head."""


def look_closely(look: Look) -> Chapter:
    """Run all analyses; a section without enough scans or labels states the reason instead."""
    if not {0, 1} <= set(look.labels.tolist()):
        known = sorted(set(look.labels.tolist()) - {UNKNOWN})
        text = f"Its scans have the labels {known} only: nothing can be compared."
        return Chapter(f"{look.main} on {look.name}", [Section("Not looked at", text)])
    sections: list[Section] = []
    for title, make in (
        ("Against the other models", _against_others),
        ("Calibration", _calibration),
        ("Slices inside positive scans", _inside),
        ("Groups of scans", _groups),
        ("Does the uncertainty find the errors?", _errors),
        ("Joint against independent samples", _joint),
        ("Where the uncertainty is higher", _higher),
        ("Triage in three", triage),
        ("Recalibration at a new site", recalibration),
        ("Drift against the training site", drift),
    ):
        try:
            sections += make(look, title)
        except DataError as error:
            sections.append(Section(title, f"Not available: {error}."))
    return Chapter(f"{look.main} on {look.name}", sections)


def _against_others(look: Look, title: str) -> Iterator[Section]:
    """Paired comparison of the other models with the main head."""
    scores = {title: one.scan for title, one in look.scored.items() if not np.isnan(one.scan).any()}
    frame = compare(look.labels, scores, look.bags.patients, reference=look.main, **look.resampling)
    look.table(frame, "comparison")
    shown = frame[frame.metric.isin(["auc", "log_loss"])]
    yield Section(
        title,
        f"Each model less {look.main}, on the same scans (first seed); 95 % intervals by resampling "
        f"patients, DeLong's test for AUCs. None is corrected for the {len(shown)} comparisons: one in "
        "twenty leaves out 0 by chance. All metrics are in the CSV.",
        shown[
            ["model", "metric", "value", "reference_value", "difference", "low", "high", "delong_p", "note"]
        ],
    )


def _calibration(look: Look, title: str) -> Iterator[Section]:
    """Calibration table and reliability diagram."""
    tables = {
        title: calibration_table(look.labels, one.scan, look.bags.patients, **look.resampling)
        for title, one in look.scored.items()
        if title in (look.main, *CURVES) and not np.isnan(one.scan).any()
    }
    yield Section(
        title,
        f"{look.main} in bins of about equally many scans; 95 % intervals by patient. Log-loss, Brier score "
        "and ECE are in the result table.",
        look.table(tables[look.main], "calibration"),
        (look.figure(reliability(tables), "reliability"),),
    )


def _inside(look: Look, title: str) -> Iterator[Section]:
    """Comparison of slice scores within positive scans."""
    scores = {title: one.slice for title, one in look.scored.items() if not np.isnan(one.slice).any()}
    text = (
        "AUC of the slices inside each positive scan, mean over scans. A bleed lies near mid-scan: position "
        "alone, without a picture, reaches 0.851 on the public RSNA test scans in their true order."
    )
    if "position only" not in scores:
        text += " This table of features does not say where a slice lies, so position cannot be ranked here."
    slice_labels = look.bags.slice_labels.numpy()
    if not (slice_labels != UNKNOWN).any():
        yield Section(title, "No slice is labelled.")
        return
    frame = compare_slices(
        slice_labels,
        scores,
        look.bags.patients,
        look.bags.offsets.numpy(),
        reference=look.main,
        **look.resampling,
    )
    look.table(frame, "slices")
    columns = ["model", "value", "reference_value", "difference", "low", "high", "n", "note"]
    yield Section(title, text, frame[columns])


def _groups(look: Look, title: str) -> Iterator[Section]:
    """Scan metrics of subgroups: number of slices, series kind, hemorrhage subtype, reader agreement."""
    groups = dict(slice_count_groups(look.bags.offsets.numpy()))
    text = "By number of slices."
    if look.ledger is not None:
        groups |= series_groups(look.ledger, look.bags.scans)
        text = "By number of slices and by what the ledger says of the series."
    findings = look.of_readers
    if findings is not None:
        groups |= subtype_groups(look.labels, findings[list(FINDINGS[1:])])
        groups |= {"readers agree": findings.readers_agree.to_numpy()}
        groups |= {"readers disagree": ~findings.readers_agree.to_numpy()}
        text = f"{text[:-1]}, by kind of bleed (its positives against all negatives), by readers."
    text += f" Sensitivity and specificity at {THRESHOLD}; 95 % intervals by patient."
    frame = subgroup_table(
        look.labels,
        look.probability,
        look.bags.patients,
        {name: where for name, where in groups.items() if where.any()},
        **look.resampling,
    )
    yield Section(title, text, look.table(frame, "groups"))


def _errors(look: Look, title: str) -> Iterator[Section]:
    """Risk-coverage analysis, and error rate by decile of the standard deviation."""
    known = look.labels != UNKNOWN
    main = look.scored[look.main]
    p, std = main.scan[known], main.scan_std[known]
    patients = np.asarray(look.bags.patients)[known]
    wrong = _wrong(look.labels[known], p)
    measures = uncertainties(p, std)
    frame = uncertainty_table(wrong, measures, patients, **look.resampling)
    frame.insert(0, "probabilities", "as given")
    set_right = _set_right(look.labels[known], p, std)
    again = uncertainty_table(
        _wrong(look.labels[known], set_right[0]), uncertainties(*set_right), patients, **look.resampling
    )
    again.insert(0, "probabilities", "recalibrated on these scans")
    frame = pd.concat([frame, again], ignore_index=True)
    lines = []
    for name, values in measures.items():
        found = risk_coverage(wrong, values)
        lines.append((name, pd.DataFrame({"coverage": found.coverage, "risk": found.risk})))
    png = curves(lines, x="coverage", y="risk", labels=("scans kept", "share wrong"), steps=True)
    yield Section(
        title,
        "Area under the risk-coverage curve (AURC, lower is better) when the least certain scans are sent "
        f"on, beside a random and the best possible order. '{CLOSENESS}' is what the probability alone says: "
        "only a difference below 0 is worth something beyond it. Where probabilities are off at a site, a "
        "deviation can look better for that alone, so both are shown again with the intercept set right on "
        "these very scans.",
        look.table(frame, "uncertainty"),
        (look.figure(png, "risk_coverage"),),
    )
    deciles = error_by_decile(wrong, std, patients, **look.resampling)
    png = bars(deciles, x="bin", y="error_rate", labels=("tenth of the scans by deviation", "share wrong"))
    yield Section(
        "Errors by decile of the standard deviation",
        "The most certain scans first; 95 % intervals by patient.",
        look.table(deciles, "deciles"),
        (look.figure(png, "deciles"),),
    )


def _joint(look: Look, title: str) -> Iterator[Section]:
    """Scan uncertainty from joint and from independent samples of the slices."""
    known, main = look.labels != UNKNOWN, look.scored[look.main]
    if np.isnan(main.scan_std_independent).any():
        return
    frame = joint_against_independent(
        main.scan_std[known],
        main.scan_std_independent[known],
        np.diff(look.bags.offsets.numpy())[known],
        _wrong(look.labels[known], main.scan[known]),
    )
    yield Section(
        title,
        "Independent samples (Eq. 36 of the paper) treat the slices of a scan as separate chances.",
        look.table(frame, "joint"),
    )


def _wrong(labels: np.ndarray, p: np.ndarray) -> np.ndarray:
    """(B,) 1 if the call at `THRESHOLD` is wrong, else 0."""
    return ((p >= THRESHOLD) != labels).astype(float)


def _set_right(labels: np.ndarray, p: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Recalibrate the intercept on these labels.

    Returns:
        Probabilities (B,) with the refitted intercept, and their standard deviations by the delta method.
    """
    logit = torch.logit(torch.from_numpy(p), eps=1e-6)
    moved = torch.sigmoid(logit + fit_intercept(logit, torch.from_numpy(labels), slope=1.0)).numpy()
    return moved, std * moved * (1 - moved) / np.clip(p * (1 - p), 1e-6, None)


def _higher(look: Look, title: str) -> Iterator[Section]:
    """Comparison of the uncertainty in groups of scans and outside them."""
    main, patients = look.scored[look.main], look.bags.patients
    every = slice_count_groups(look.bags.offsets.numpy())
    if look.ledger is not None:
        every |= series_groups(look.ledger, look.bags.scans)
    groups = {name: where for name, where in every.items() if min(where.sum(), (~where).sum()) >= FEW}
    if look.of_readers is not None:
        groups = {"readers disagree": ~look.of_readers.readers_agree.to_numpy()} | groups
    compared = [(name, main.scan_std, main.scan, where, patients) for name, where in groups.items()]
    if look.home is not None:
        home, there = look.home
        compared.append(
            (
                "this site against the training site",
                np.concatenate([main.scan_std, there.scan_std]),
                np.concatenate([main.scan, there.scan]),
                np.arange(len(main.scan) + len(there.scan)) < len(main.scan),
                [*patients, *home.patients],
            )
        )
    if not compared:
        yield Section(title, f"No group has {FEW} scans, with as many outside it.")
        return
    rows = []
    for name, std, p, where, owners in compared:
        plain = higher_where(std, where, owners, **look.resampling)
        given = higher_where_given_p(std, where, p, owners, **look.resampling)
        rows += [
            {"group": name, "compared": how, **vars(one)} for how, one in (("all", plain), ("like p", given))
        ]
    yield Section(
        title,
        "AUC: the chance that a scan of the group is less certain than one outside it; 0.5 is no difference. "
        "'like p' compares scans of like probability only: what the deviation knows beyond it.",
        look.table(pd.DataFrame(rows), "higher"),
    )

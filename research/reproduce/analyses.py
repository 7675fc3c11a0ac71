"""Detailed analyses of the main head of a protocol on one scored set.

In: the scores of every model on the set with the first seed. Out: sections of the report, and for each
section a CSV and a figure in the folder of the set. An analysis that is not possible (no slice labels, one
class, too few scans) is reported with the reason.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

from ich_mil.errors import DataError
from ich_mil.evaluate.curves import calibration_table
from ich_mil.evaluate.deployment.recalibration import fit_intercept
from ich_mil.ledger import THRESHOLD
from ich_mil.sets.labels import UNKNOWN
from ich_mil.sets.layouts.cq500 import FINDINGS
from research.reproduce.deployment import drift, recalibration, triage
from research.reproduce.figures import bars, curves, reliability
from research.reproduce.page import Chapter, Section
from research.reproduce.scored_set import ScoredSet, known
from research.reproduce.statistics.compare import compare, compare_slices
from research.reproduce.statistics.group_comparison import compare_groups
from research.reproduce.statistics.subgroups import (
    series_groups,
    slice_count_groups,
    subgroup_table,
    subtype_groups,
)
from research.reproduce.statistics.uncertainty import (
    CLOSENESS,
    error_by_decile,
    risk_coverage,
    uncertainties,
    uncertainty_table,
)

FEW = 10
"""Minimum number of scans in a group, and outside it, for a comparison of their uncertainties."""
CURVES = ("CNN alone", "logistic regression, mean-pooled")
"""Models whose calibration is plotted beside that of the main head."""


def analyse(scored: ScoredSet) -> Chapter:
    """Run all analyses; a section without enough scans or labels states the reason instead."""
    title = f"{scored.main} on {scored.name}"
    if not {0, 1} <= set(scored.labels.tolist()):
        labels = sorted(set(scored.labels.tolist()) - {UNKNOWN})
        text = f"Its scans have the labels {labels} only: nothing can be compared."
        return Chapter(title, [Section("Not analysed", text)])
    sections: list[Section] = []
    for name, analysis in (
        ("Against the other models", _against_others),
        ("Calibration", _calibration),
        ("Slices inside positive scans", _inside),
        ("Groups of scans", _groups),
        ("Does the uncertainty find the errors?", _errors),
        ("Where the uncertainty is higher", _higher),
        ("Three-way triage", triage),
        ("Recalibration at a new site", recalibration),
        ("Drift against the training site", drift),
    ):
        try:
            sections += analysis(scored, name)
        except DataError as error:
            sections.append(Section(name, f"Not available: {error}."))
    return Chapter(title, sections)


def _against_others(scored: ScoredSet, title: str) -> Iterator[Section]:
    """Paired comparison of the other models with the main head."""
    scores = {name: one.scan for name, one in scored.scores.items() if one.scan is not None}
    frame = compare(scored.labels, scores, scored.bags.patients, reference=scored.main, **scored.resampling)
    scored.table(frame, "comparison")
    shown = frame[frame.metric.isin(["auc", "log_loss"])]
    columns = ["model", "metric", "value", "reference_value", "difference", "low", "high", "delong_p", "note"]
    yield Section(
        title,
        f"Each model less {scored.main}, on the same scans (first seed); 95 % intervals by resampling "
        f"patients, DeLong's test for AUCs, without a correction for the {len(shown)} comparisons: one "
        "interval in twenty excludes 0 by chance. All metrics are in the CSV.",
        shown[columns],
    )


def _calibration(scored: ScoredSet, title: str) -> Iterator[Section]:
    """Calibration table and reliability diagram."""
    tables = {
        name: calibration_table(scored.labels, one.scan, scored.bags.patients, **scored.resampling)
        for name, one in scored.scores.items()
        if name in (scored.main, *CURVES) and one.scan is not None
    }
    yield Section(
        title,
        f"{scored.main} in bins of about equally many scans; 95 % intervals by patient. Log-loss, Brier "
        "score and ECE are in the result table.",
        scored.table(tables[scored.main], "calibration"),
        (scored.figure(reliability(tables), "reliability"),),
    )


def _inside(scored: ScoredSet, title: str) -> Iterator[Section]:
    """Comparison of slice scores within positive scans."""
    scores = {name: one.slice for name, one in scored.scores.items() if one.slice is not None}
    text = (
        "AUC of the slices inside each positive scan, mean over scans. A hemorrhage lies near mid-scan: the "
        "position alone reaches 0.851 on the public RSNA test scans in their true order."
    )
    if "position only" not in scores:
        text += " This feature table has no slice positions, so there is no position baseline."
    slice_labels = scored.bags.slice_labels.numpy()
    if not (slice_labels != UNKNOWN).any():
        yield Section(title, "No slice is labelled.")
        return
    frame = compare_slices(
        slice_labels,
        scores,
        scored.bags.patients,
        scored.bags.offsets.numpy(),
        reference=scored.main,
        **scored.resampling,
    )
    scored.table(frame, "slices")
    columns = ["model", "value", "reference_value", "difference", "low", "high", "n", "note"]
    yield Section(title, text, frame[columns])


def _scan_groups(scored: ScoredSet) -> dict[str, np.ndarray]:
    groups = slice_count_groups(scored.bags.offsets.numpy())
    return groups if scored.ledger is None else groups | series_groups(scored.ledger, scored.bags.scans)


def _groups(scored: ScoredSet, title: str) -> Iterator[Section]:
    """Scan metrics of subgroups: number of slices, series kind, hemorrhage subtype, reader agreement."""
    groups = _scan_groups(scored)
    text = "By number of slices" + ("" if scored.ledger is None else " and by ledger entries of the series")
    findings = scored.of_readers
    if findings is not None:
        groups |= subtype_groups(scored.labels, findings[list(FINDINGS[1:])])
        groups |= {"readers agree": findings.readers_agree.to_numpy()}
        groups |= {"readers disagree": ~findings.readers_agree.to_numpy()}
        text += ", by subtype of hemorrhage (its positives against all negatives), by reader agreement"
    frame = subgroup_table(
        scored.labels,
        scored.probability,
        scored.bags.patients,
        {name: where for name, where in groups.items() if where.any()},
        **scored.resampling,
    )
    text += f". Sensitivity and specificity at {THRESHOLD}; 95 % intervals by patient."
    yield Section(title, text, scored.table(frame, "groups"))


def _errors(scored: ScoredSet, title: str) -> Iterator[Section]:
    """Risk-coverage analysis, and error rate by decile of the standard deviation."""
    labelled = scored.labels != UNKNOWN
    labels, p, std = scored.labels[labelled], scored.probability[labelled], scored.std[labelled]
    patients = np.asarray(scored.bags.patients)[labelled]
    tables = []
    for name, pair in (
        ("as given", (p, std)),
        ("recalibrated on these scans", _recalibrated(labels, p, std)),
    ):
        loss = _wrong(labels, pair[0])
        frame = uncertainty_table(loss, uncertainties(*pair), patients, **scored.resampling)
        frame.insert(0, "probabilities", name)
        tables.append(frame)
    wrong, lines = _wrong(labels, p), []
    for name, values in uncertainties(p, std).items():
        found = risk_coverage(wrong, values)
        lines.append((name, pd.DataFrame({"coverage": found.coverage, "risk": found.risk})))
    png = curves(
        lines, x="coverage", y="risk", labels=("fraction of scans kept", "fraction wrong"), steps=True
    )
    yield Section(
        title,
        "Area under the risk-coverage curve (AURC, lower is better) when the least certain scans are left to "
        f"a reader, beside a random and the best possible order. '{CLOSENESS}' is the baseline that uses the "
        "probability alone; a difference below 0 is a gain over it. Probabilities that are miscalibrated at "
        "a site can cause such a gain, so the table is repeated with the intercept refitted to these scans.",
        scored.table(pd.concat(tables, ignore_index=True), "uncertainty"),
        (scored.figure(png, "risk_coverage"),),
    )
    deciles = error_by_decile(wrong, std, patients, **scored.resampling)
    png = bars(
        deciles, x="bin", y="error_rate", labels=("decile of the standard deviation", "fraction wrong")
    )
    yield Section(
        "Errors by decile of the standard deviation",
        "The most certain scans first; 95 % intervals by patient.",
        scored.table(deciles, "deciles"),
        (scored.figure(png, "deciles"),),
    )


def _wrong(labels: np.ndarray, p: np.ndarray) -> np.ndarray:
    """(B,) 1 if the call at `THRESHOLD` is wrong, else 0."""
    return ((p >= THRESHOLD) != labels).astype(float)


def _recalibrated(labels: np.ndarray, p: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities with the intercept refitted to these labels, and deviations by the delta method."""
    logit = torch.logit(torch.from_numpy(p), eps=1e-6)
    moved = torch.sigmoid(logit + fit_intercept(logit, torch.from_numpy(labels), slope=1.0)).numpy()
    return moved, std * moved * (1 - moved) / np.clip(p * (1 - p), 1e-6, None)


def _higher(scored: ScoredSet, title: str) -> Iterator[Section]:
    """Comparison of the uncertainty in groups of scans and outside them."""
    std, p, patients = scored.std, scored.probability, scored.bags.patients
    groups = {
        name: where for name, where in _scan_groups(scored).items() if min(where.sum(), (~where).sum()) >= FEW
    }
    if scored.of_readers is not None:
        groups = {"readers disagree": ~scored.of_readers.readers_agree.to_numpy()} | groups
    compared = [(name, std, p, where, patients) for name, where in groups.items()]
    if scored.home is not None:
        home, at_home = scored.home
        compared.append(
            (
                "this site against the training site",
                np.concatenate([std, known(at_home.scan_std)]),
                np.concatenate([p, known(at_home.scan)]),
                np.arange(len(p) + home.n_scans) < len(p),
                [*patients, *home.patients],
            )
        )
    if not compared:
        yield Section(title, f"No group has {FEW} scans, with as many outside it.")
        return
    rows = []
    for name, deviation, probability, where, owners in compared:
        for how, given in (("all", None), ("like p", probability)):
            found = compare_groups(deviation, where, owners, probability=given, **scored.resampling)
            rows.append({"group": name, "compared": how, **vars(found)})
    yield Section(
        title,
        "AUC: probability that a scan of the group is less certain than a scan outside it; 0.5 is no "
        "difference. 'like p' compares scans of similar probability only.",
        scored.table(pd.DataFrame(rows), "higher"),
    )

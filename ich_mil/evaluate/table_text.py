"""Format the result table for reading: blocks of three columns, and notes on sample sizes and methods.

In: the frame of `table.evaluate`, or one read from `metrics.csv`. Out: blocks and notes for the HTML report,
and the printed text. Metrics that an older `metrics.csv` lacks are left out.
"""

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.evaluate.metrics import CALIBRATION_BINS, THRESHOLD
from ich_mil.evaluate.model_metrics import INSIDE, SCAN, SLICE

FEW = 30
"""With fewer patients, positive scans or negative scans, a note says that the intervals are rough."""

_BLOCKS = (
    ("Scans", [(SCAN, "auc", "AUC"), (SCAN, "ap", "AP")]),
    (
        "Scan calls",
        [(SCAN, "accuracy", "accuracy"), (SCAN, "balanced_accuracy", "balanced"), (SCAN, "f1", "F1")],
    ),
    (
        "Scan calls by class",
        [(SCAN, "sensitivity", "sensitivity"), (SCAN, "specificity", "specificity")],
    ),
    ("Scan calls that are right", [(SCAN, "ppv", "PPV"), (SCAN, "npv", "NPV")]),
    (
        "Scan operating points",
        [
            (SCAN, "sensitivity_at_95", "sens. at 95 % spec."),
            (SCAN, "specificity_at_95", "spec. at 95 % sens."),
        ],
    ),
    ("Scan probabilities", [(SCAN, "log_loss", "log-loss"), (SCAN, "brier", "Brier"), (SCAN, "ece", "ECE")]),
    (
        "Scan calibration",
        [(SCAN, "calibration_intercept", "intercept"), (SCAN, "calibration_slope", "slope")],
    ),
    ("Slices", [(INSIDE, "auc", "AUC inside scans"), (SLICE, "auc", "AUC all"), (SLICE, "ap", "AP all")]),
    (
        "Slice probabilities",
        [(SLICE, "log_loss", "log-loss"), (SLICE, "brier", "Brier"), (SLICE, "ece", "ECE")],
    ),
)
_BASELINES = {
    "CNN alone, calibrated": "a sigmoid over its probability, fitted to the scans that calibrate the head",
    "position only": "each scan gets the share of positive training scans, a slice more the nearer mid-scan",
    "slice prevalence": "each slice gets the share of these very slices with a bleed, which no model is told",
}
"""Explanations of baselines of `pipeline.validate.score_rows` whose names are not self-explanatory."""
_NAME_WIDTH = 34
_TEXT_WIDTH = 106


@dataclass(frozen=True)
class Block:
    """One part of the table: each row has the name of a model and a text for each of `columns`."""

    title: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]


def format_value(value: float, low: float, high: float) -> str:
    """Format as '0.911 [0.886, 0.936]'; a dash if there is no value, no brackets if there is no interval."""
    if np.isnan(value):
        return "–"
    return f"{value:.3f}" if np.isnan(low) else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def table_blocks(frame: pd.DataFrame) -> list[Block]:
    """Blocks of up to three columns with a row for each model; empty rows and blocks are left out."""
    texts = {
        (row["model"], row["level"], row["metric"]): format_value(row["value"], row["low"], row["high"])
        for row in frame.to_dict("records")
    }
    blocks = []
    for title, columns in _BLOCKS:
        rows = [
            (str(model), [texts.get((model, level, metric), "–") for level, metric, _ in columns])
            for model in dict.fromkeys(frame["model"])
        ]
        rows = [(model, cells) for model, cells in rows if any(text != "–" for text in cells)]
        if rows:
            blocks.append(Block(title=title, columns=[label for _, _, label in columns], rows=rows))
    return blocks


def _rests_on(frame: pd.DataFrame) -> list[str]:
    notes = []
    for level, noun in ((SCAN, "scans"), (SLICE, "slices")):
        row: Any = frame[frame["level"] == level].iloc[0]
        if row["n"]:
            text = f"{row['n']:,} {noun} ({row['positives']:,} positive) of {row['patients']:,} patients"
            left_out = f"; {row['unlabelled']:,} without a label left out" if row["unlabelled"] else ""
            notes.append(text + left_out)
    inside = frame[frame["level"] == INSIDE]["n"].max()
    if inside > 0:
        notes.append(f"AUC inside scans: mean over the {inside:,} scans with slices of both kinds")
    return notes


def _right_calls(frame: pd.DataFrame) -> list[str]:
    """Number of correct calls by class for each model: the counts behind sensitivity and specificity."""
    shares = frame[frame["metric"].isin(["sensitivity", "specificity"]) & frame["value"].notna()]
    texts: dict[str, list[str]] = {}
    for row in shares.to_dict("records"):
        positive = row["metric"] == "sensitivity"
        of = row["positives"] if positive else row["n"] - row["positives"]
        text = f"{round(row['value'] * of):,} of {of:,} {'positive' if positive else 'negative'}"
        texts.setdefault(row["model"], []).append(text)
    told = "; ".join(f"{model} {' and '.join(parts)}" for model, parts in texts.items())
    return [f"Right calls of scans: {told}"] if told else []


def _not_available(frame: pd.DataFrame) -> list[str]:
    absent: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for note in dict.fromkeys(frame["note"]):
        for title, columns in _BLOCKS if note else ():
            for level, metric, label in columns:
                here = (frame["note"] == note) & (frame["level"] == level) & (frame["metric"] == metric)
                if here.any():
                    absent.setdefault((note, tuple(frame["model"][here])), []).append(f"{title} {label}")
    everyone = frame["model"].nunique()
    return [
        f"Not available{'' if len(models) == everyone else ' for ' + '; '.join(models)}: "
        f"{', '.join(labels)} ({note})"
        for (note, models), labels in absent.items()
    ]


def table_notes(frame: pd.DataFrame) -> list[str]:
    """Notes on an `evaluate` frame: sample sizes, methods, and why some numbers are not available."""
    notes = [
        *_rests_on(frame),
        *_right_calls(frame),
        f"95 % intervals: {frame['resamples'].max():,} resamples of patients, of losses and of the "
        "calibration line their percentiles, of AUC, AP, F1 and shares Student's t of the log odds, exact "
        "where these are 0 or 1, of balanced accuracy those of both its shares; "
        f"calls at probability {THRESHOLD}; "
        f"ECE: {CALIBRATION_BINS} equal-mass bins",
    ]
    notes += [f"{name}: {says}" for name, says in _BASELINES.items() if name in set(frame["model"])]
    points = frame["metric"].isin(["sensitivity_at_95", "specificity_at_95"])
    if frame["value"][points].notna().any():
        notes.append(
            "sens. at 95 % spec.: the best sensitivity of a threshold whose specificity is at least 95 %; "
            "spec. at 95 % sens.: the reverse; thresholds chosen on these very scans, so optimistic"
        )
    if frame["value"][frame["metric"] == "calibration_intercept"].notna().any():
        notes.append(
            "intercept: how far the log odds of a bleed lie above those told (0 if calibrated); slope: how "
            "much they rise for each unit told (1 if calibrated; below it probabilities are too extreme)"
        )
    of_calls = frame[frame["metric"].isin(["ppv", "npv"]) & frame["value"].notna()]
    if len(of_calls):
        share = of_calls["positives"].iloc[0] / of_calls["n"].iloc[0]
        notes.append(
            "PPV, NPV: of the scans called positive (negative) the share that is; where other than "
            f"{100 * share:.0f} % of scans are positive these are others"
        )
    used = frame[(frame["n"] > 0) & (frame["note"] == "")]
    scans = used[used["level"] == SCAN]
    rests_on = {
        "patients": used["patients"][used["level"] != INSIDE].min(),
        "positive scans": scans["positives"].min(),
        "negative scans": (scans["n"] - scans["positives"]).min(),
        "scans with slices of both kinds": used["n"][used["level"] == INSIDE].min(),
    }
    if used["patients"].max() == 1:
        notes.append(
            "All scans are of one patient, by PatientID: there are no intervals (other people with the same "
            "PatientID need another)"
        )
        rests_on = {}
    for what, least in rests_on.items():
        if 0 < least < FEW:
            notes.append(
                f"Few {what} ({least:.0f}): the intervals are rough, those of losses rather too narrow"
            )
    if frame["ignored"].max() > 0:
        notes.append(
            f"Up to {frame['ignored'].max():,} resamples in which a number is not defined were ignored: one "
            "class only, for PPV and NPV no such call, for the slope classes that do not overlap"
        )
    if frame["value"][frame["metric"] == "ece"].notna().any():
        notes.append(
            "ECE: never negative, so chance adds to it; its interval allows for that and reaches lower"
        )
    return notes + _not_available(frame)


def format_table(frame: pd.DataFrame) -> str:
    """Format the table as text: blocks, then notes, in at most 110 columns."""
    lines = []
    for block in table_blocks(frame):
        lines.append(f"{block.title:<{_NAME_WIDTH}}" + "".join(f"  {column:<23}" for column in block.columns))
        for name, cells in block.rows:
            short = name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + "…"
            lines.append(f"{short:<{_NAME_WIDTH}}" + "".join(f"  {cell:<23}" for cell in cells))
        lines.append("")
    notes = [textwrap.fill(note, _TEXT_WIDTH, subsequent_indent="  ") for note in table_notes(frame)]
    return "\n".join([*(line.rstrip() for line in lines), *notes])

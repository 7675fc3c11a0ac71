"""Result table of all models and baselines on one data set, with intervals by patient bootstrap.

`evaluate` gives a tidy data frame with one row for each number, the content of `metrics.csv`. `table_blocks`
and `table_notes` prepare it for reading: blocks of up to three columns, notes on sample sizes and methods.

Shapes: B scans, N slices (packed).
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.evaluate.metrics import INSIDE, METRICS, SCAN, SLICE
from ich_mil.evaluate.model_metrics import measure
from ich_mil.evaluate.sample import CALIBRATION_BINS
from ich_mil.evaluate.scores import Scores
from ich_mil.ledger import THRESHOLD
from ich_mil.sets.features import FeatureSet

METRIC_COLUMNS = ["model", "level", "metric", "value", "low", "high", "n", "positives", "patients"]
METRIC_COLUMNS += ["unlabelled", "resamples", "ignored", "note"]

FEW = 30
"""With fewer patients, positive scans or negative scans, a note says that the intervals are rough."""

_BASELINES = {
    "CNN alone, calibrated": "Platt scaling of its probability, fitted to the scans that calibrate the head",
    "position only": "share of positive scans in training, for each scan; closeness to mid-scan for slices",
    "slice prevalence": "fraction of positive slices in this set, for each slice; no model knows it",
}
"""Explanations of baselines of `commands.validate.score_rows` whose names are not self-explanatory."""
_NAME_WIDTH = 34
_TEXT_WIDTH = 106


def evaluate(scores: Sequence[Scores], features: FeatureSet, *, seed: int, resamples: int) -> pd.DataFrame:
    """Compute the metrics of every model on the same scans, with shared resamples.

    Args:
        scores: the models and baselines, in the order of the table; names must differ.
        features: the scans, of which labels and patients are read. Those without a label are left out and
            counted; the intervals resample patients.
        seed: seed of the resampling.
        resamples: number of resamples behind each interval.

    Returns:
        One row for each number, with the columns `METRIC_COLUMNS`; see `model_metrics.measure`.

    Raises:
        DataError: a score is invalid (the message names the model), or a scan has no patient.
    """
    rows = [
        {**row, "model": model.name, "value": row["values"][0]}
        for model in scores
        for row in measure([model], features, seed=seed, resamples=resamples)
    ]
    return pd.DataFrame(rows).assign(resamples=resamples)[METRIC_COLUMNS]


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
    for title in dict.fromkeys(metric.block for metric in METRICS if metric.block):
        columns = [metric for metric in METRICS if metric.block == title]
        rows = [
            (str(model), [texts.get((model, metric.level, metric.name), "–") for metric in columns])
            for model in dict.fromkeys(frame["model"])
        ]
        rows = [(model, cells) for model, cells in rows if any(text != "–" for text in cells)]
        if rows:
            blocks.append(Block(title, [metric.title for metric in columns], rows))
    return blocks


def _sample_sizes(frame: pd.DataFrame) -> list[str]:
    notes = []
    for level, noun in ((SCAN, "scans"), (SLICE, "slices")):
        row: Any = frame[frame["level"] == level].iloc[0]
        if row["n"]:
            text = f"{row['n']:,} {noun} ({row['positives']:,} positive) of {row['patients']:,} patients"
            left_out = f"; {row['unlabelled']:,} without a label left out" if row["unlabelled"] else ""
            notes.append(text + left_out)
    inside = frame[frame["level"] == INSIDE]["n"].max()
    if inside > 0:
        notes.append(f"AUC inside scans: mean over the {inside:,} scans with slices of both classes")
    return notes


def _correct_calls(frame: pd.DataFrame) -> list[str]:
    shares = frame[frame["metric"].isin(["sensitivity", "specificity"]) & frame["value"].notna()]
    texts: dict[str, list[str]] = {}
    for row in shares.to_dict("records"):
        positive = row["metric"] == "sensitivity"
        of = row["positives"] if positive else row["n"] - row["positives"]
        text = f"{round(row['value'] * of):,} of {of:,} {'positive' if positive else 'negative'}"
        texts.setdefault(row["model"], []).append(text)
    counts = "; ".join(f"{model} {' and '.join(calls)}" for model, calls in texts.items())
    return [f"Correct calls of scans: {counts}"] if counts else []


def _not_available(frame: pd.DataFrame) -> list[str]:
    absent: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for note in filter(None, dict.fromkeys(frame["note"])):
        noted = frame[frame["note"] == note]
        for metric in METRICS:
            rows = (noted["level"] == metric.level) & (noted["metric"] == metric.name)
            if metric.block and rows.any():
                models = tuple(noted["model"][rows])
                absent.setdefault((note, models), []).append(f"{metric.block} {metric.title}")
    everyone = frame["model"].nunique()
    return [
        f"Not available{'' if len(models) == everyone else ' for ' + '; '.join(models)}: "
        f"{', '.join(labels)} ({note})"
        for (note, models), labels in absent.items()
    ]


def _small_samples(frame: pd.DataFrame) -> list[str]:
    used = frame[(frame["n"] > 0) & (frame["note"] == "")]
    if used["patients"].max() == 1:
        return [
            "All scans have the same PatientID, so there are no intervals; if they are of several people, "
            "give each a PatientID of its own"
        ]
    scans = used[used["level"] == SCAN]
    counts = {
        "patients": used["patients"][used["level"] != INSIDE].min(),
        "positive scans": scans["positives"].min(),
        "negative scans": (scans["n"] - scans["positives"]).min(),
        "scans with slices of both classes": used["n"][used["level"] == INSIDE].min(),
    }
    return [
        f"Few {what} ({least:.0f}): the intervals are approximate, and those of losses tend to be too narrow"
        for what, least in counts.items()
        if 0 < least < FEW
    ]


def table_notes(frame: pd.DataFrame) -> list[str]:
    """Notes on an `evaluate` frame: sample sizes, methods, and why some numbers are not available."""
    shown = set(frame["metric"][frame["value"].notna()])
    notes = [
        *_sample_sizes(frame),
        *_correct_calls(frame),
        f"95 % intervals: {frame['resamples'].max():,} resamples of patients; percentiles for losses and the "
        "calibration line, Student's t of the log odds for AUC, AP, F1 and proportions (exact at 0 and 1), "
        f"from both proportions for balanced accuracy; calls at probability {THRESHOLD}; "
        f"ECE: {CALIBRATION_BINS} equal-mass bins",
        *(f"{name}: {text}" for name, text in _BASELINES.items() if name in set(frame["model"])),
    ]
    if any(name.endswith("_at_95") for name in shown):
        notes.append(
            "sens. at 95 % spec.: the best sensitivity of a threshold with a specificity of at least 95 %; "
            "spec. at 95 % sens.: the reverse; thresholds are chosen on these scans, so both are optimistic"
        )
    if "calibration_intercept" in shown:
        notes.append(
            "intercept: log odds of a hemorrhage minus the predicted log odds (0 if calibrated); slope: "
            "change of the log odds for each predicted unit (1 if calibrated, less if they are too extreme)"
        )
    of_calls = frame[frame["metric"].isin(["ppv", "npv"]) & frame["value"].notna()]
    if len(of_calls):
        share = of_calls["positives"].iloc[0] / of_calls["n"].iloc[0]
        notes.append(
            "PPV, NPV: fraction of the positive (negative) calls that are correct; they hold for a "
            f"prevalence of {100 * share:.0f} %"
        )
    notes += _small_samples(frame)
    if frame["ignored"].max() > 0:
        notes.append(
            f"Up to {frame['ignored'].max():,} resamples were ignored because a number is not defined in "
            "them: one class only; for PPV and NPV no such call; for the slope classes that do not overlap"
        )
    if "ece" in shown:
        notes.append("ECE: never negative, so chance adds to it; its interval holds the truth in 50 to 90 %")
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

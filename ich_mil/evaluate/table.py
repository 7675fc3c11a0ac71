"""The result table: every model and baseline of one data set side by side, with intervals by patient.

In: the scores of each model on the same scans, and what is known of those scans. Out: a tidy frame with one
row a number, its layout in blocks (also what the HTML report shows), and the text that is printed.

Shapes: B scans, N slices (packed).
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import Interval, patient_bootstrap
from ich_mil.evaluate.metrics import (
    CALIBRATION_BINS,
    THRESHOLD,
    auc_inside,
    check_scores,
    scan_metrics,
    slice_metrics,
    slice_probability_metrics,
)
from ich_mil.evaluate.weighted import resampled_losses, resampled_ranking, resampled_scan_metrics

SCAN, SLICE, INSIDE = "scan", "slice", "slice inside positive scans"
COLUMNS = ["model", "level", "metric", "value", "low", "high", "n", "positives", "patients", "unlabelled"]
COLUMNS += ["resamples", "ignored", "note"]
FEW_PATIENTS = 20
"""Below this many patients the table says that its intervals are rough."""

_SCAN_METRICS = ("auc", "accuracy", "f1", "log_loss", "brier", "ece")
_BLOCKS = (
    ("Scans", [(SCAN, "auc", "AUC"), (SCAN, "accuracy", "accuracy"), (SCAN, "f1", "F1")]),
    ("Scan probabilities", [(SCAN, "log_loss", "log-loss"), (SCAN, "brier", "Brier"), (SCAN, "ece", "ECE")]),
    ("Slices", [(INSIDE, "auc", "AUC inside scans"), (SLICE, "auc", "AUC all"), (SLICE, "ap", "AP all")]),
    ("Slice probabilities", [(SLICE, "log_loss", "log-loss"), (SLICE, "brier", "Brier")]),
)
_NUMBERS = ("value", "low", "high")
_NAME_WIDTH = 34
_TEXT_WIDTH = 106

_Row = dict[str, Any]
_Statistic = Callable[[np.ndarray], Mapping[str, np.ndarray]]
_Bootstrap = Callable[[_Statistic, np.ndarray], dict[str, Interval]]


@dataclass(frozen=True)
class Scores:
    """What one model or baseline says of the B scans and their N slices.

    Attributes:
        name: the model's name, as the tables show it.
        scan: (B,), or None where the model says nothing of scans.
        slice: (N,), or None where the model says nothing of slices.
        scan_is_probability: whether `scan` is a probability; if not, only its ranks are measured.
        slice_is_probability: the same for `slice`.
    """

    name: str
    scan: np.ndarray | None
    slice: np.ndarray | None
    scan_is_probability: bool = True
    slice_is_probability: bool = False


@dataclass(frozen=True)
class Block:
    """One part of the table: each row is a model's name and one text for each of `columns`."""

    title: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]


def known_or_none(values: np.ndarray) -> np.ndarray | None:
    """None if every value is NaN, which is how `FeatureSet` writes "not known"; else `values` unchanged."""
    values = np.asarray(values)
    return None if np.isnan(values).all() else values


def _why_nan(level: str, metric: str) -> str:
    if level == INSIDE:
        return "no scan has slices of both kinds"
    return "no scan is positive or called positive" if metric == "f1" else "one class only"


def _measured(
    name: str, level: str, facts: _Row, values: Mapping[str, float], intervals: Mapping[str, Interval]
) -> list[_Row]:
    rows = []
    for metric, value in values.items():
        row = {**facts, "model": name, "level": level, "metric": metric, "value": value}
        if np.isnan(value):
            row |= {"low": np.nan, "high": np.nan, "ignored": 0, "note": _why_nan(level, metric)}
        else:
            low, high, ignored = intervals[metric].low, intervals[metric].high, intervals[metric].ignored
            row |= {"low": low, "high": high, "ignored": ignored, "note": ""}
        rows.append(row)
    return rows


def _missing(name: str, level: str, metrics: Sequence[str], facts: _Row, note: str) -> list[_Row]:
    empty = {**facts, "value": np.nan, "low": np.nan, "high": np.nan, "ignored": 0, "note": note}
    return [{**empty, "model": name, "level": level, "metric": metric} for metric in metrics]


def _facts(labels: np.ndarray, patients: np.ndarray) -> _Row:
    known = labels != UNKNOWN
    return {
        "n": int(known.sum()),
        "positives": int((labels == 1).sum()),
        "patients": len(np.unique(patients[known])),
        "unlabelled": int((~known).sum()),
    }


def _scan_rows(scores: Scores, labels: np.ndarray, patients: np.ndarray, bootstrap: _Bootstrap) -> list[_Row]:
    facts = _facts(labels, patients)
    if scores.scan is None:
        return _missing(scores.name, SCAN, _SCAN_METRICS, facts, "gives no scan score")
    what = f"model {scores.name!r}, scan scores"
    labels, score = check_scores(labels, scores.scan, what=what, probability=scores.scan_is_probability)
    known = labels != UNKNOWN
    if not known.any():
        return _missing(scores.name, SCAN, _SCAN_METRICS, facts, "no scan labels")
    labels, score = labels[known], score[known]
    if scores.scan_is_probability:
        intervals = bootstrap(partial(resampled_scan_metrics, labels, score), patients[known])
        return _measured(scores.name, SCAN, facts, scan_metrics(labels, score), intervals)
    # a scan score ranks scans as a slice score ranks slices
    values = {"auc": slice_metrics(labels, score, np.zeros(len(labels)))["slice_auc"]}
    intervals = bootstrap(partial(resampled_ranking, labels, score), patients[known])
    note = "its scan score is not a probability"
    return [
        *_measured(scores.name, SCAN, facts, values, intervals),
        *_missing(scores.name, SCAN, _SCAN_METRICS[1:], facts, note),
    ]


def _slice_rows(
    scores: Scores, labels: np.ndarray, patients: np.ndarray, bags: np.ndarray, bootstrap: _Bootstrap
) -> list[_Row]:
    owner = patients[bags]  # (N,)
    facts = _facts(labels, owner)
    known = labels != UNKNOWN
    if scores.slice is None or not known.any():
        note = "gives no slice score" if known.any() else "no slice labels"
        metrics = ("auc", "ap", *(("log_loss", "brier") if scores.slice_is_probability else ()))
        return [
            *_missing(scores.name, SLICE, metrics, facts, note),
            *_missing(scores.name, INSIDE, ("auc",), {**facts, "n": 0}, note),
        ]
    what = f"model {scores.name!r}, slice scores"
    labels, score = check_scores(labels, scores.slice, what=what, probability=scores.slice_is_probability)
    labels, score, bags = labels[known], score[known], bags[known]
    single = slice_metrics(labels, score, bags)
    values = {"auc": single["slice_auc"], "ap": single["slice_ap"]}
    if scores.slice_is_probability:
        values |= slice_probability_metrics(labels, score)

    def resampled(counts: np.ndarray) -> dict[str, np.ndarray]:
        ranking = resampled_ranking(labels, score, counts)
        return ranking | (resampled_losses(labels, score, counts) if scores.slice_is_probability else {})

    rows = _measured(scores.name, SLICE, facts, values, bootstrap(resampled, owner[known]))
    scans, inside = auc_inside(labels, score, bags)
    facts |= {"n": len(scans), "positives": len(scans), "patients": len(np.unique(patients[scans]))}
    if not len(scans):
        return rows + _missing(scores.name, INSIDE, ("auc",), facts, _why_nan(INSIDE, "auc"))
    intervals = bootstrap(lambda counts: {"auc": inside @ counts / counts.sum(axis=0)}, patients[scans])
    return rows + _measured(scores.name, INSIDE, facts, {"auc": single["slice_auc_inside"]}, intervals)


def evaluate(
    scores: Sequence[Scores],
    *,
    labels: np.ndarray,
    patients: Sequence[str],
    offsets: np.ndarray,
    slice_labels: np.ndarray | None = None,
    seed: int,
    resamples: int = 2000,
) -> pd.DataFrame:
    """Measure every model on the same scans.

    Args:
        scores: the models and baselines, in the order the tables show them; names must differ.
        labels: (B,) in {0, 1} or `UNKNOWN`; unlabelled scans are left out and counted.
        patients: B patient keys; the intervals resample patients.
        offsets: (B + 1,) scan b owns slices `offsets[b]:offsets[b + 1]`.
        slice_labels: (N,) in {0, 1} or `UNKNOWN`; None where no slice is labelled.
        seed: seed of the resampling; all models share the resamples.
        resamples: number of resamples behind each interval.

    Returns:
        One row a number, with the columns `COLUMNS`: `model`, `level` ('scan', 'slice' or 'slice inside
        positive scans'), `metric`, `value`, `low`, `high`, `n` (scans or slices it rests on; scans for the
        last level), `positives` and `patients` among them, `unlabelled` left out, `resamples`, those
        `ignored` because the number is not defined in them, and `note`: why `value` is NaN, else empty.

    Raises:
        DataError: a score is NaN or infinite, or a probability outside [0, 1]; the message names the model.
        ValueError: sizes or names do not fit together.
    """
    labels, offsets, owner = np.asarray(labels), np.asarray(offsets), np.asarray(patients, dtype=str)
    if not len(labels) == len(owner) == len(offsets) - 1:
        raise ValueError(f"{len(labels)} labels, {len(owner)} patients and {len(offsets)} offsets do not fit")
    bags = np.repeat(np.arange(len(labels)), np.diff(offsets))  # (N,)
    truth = np.full(len(bags), UNKNOWN) if slice_labels is None else np.asarray(slice_labels)
    if len(truth) != len(bags):
        raise ValueError(f"{len(truth)} slice labels for {len(bags)} slices")
    names = [one.name for one in scores]
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"need at least one model, each under its own name, got {names}")

    def bootstrap(statistic: _Statistic, rows: np.ndarray) -> dict[str, Interval]:
        return patient_bootstrap(statistic, rows, resamples=resamples, seed=seed)

    rows: list[_Row] = []
    for one in scores:
        rows += _scan_rows(one, labels, owner, bootstrap)
        rows += _slice_rows(one, truth, owner, bags, bootstrap)
    return pd.DataFrame(rows).assign(resamples=resamples)[COLUMNS]


def read_table(path: Path) -> pd.DataFrame:
    """An `evaluate` frame that was written with `to_csv(path, index=False)`.

    Raises:
        DataError: there is no such file, or it is something else.
    """
    texts = {"model": str, "level": str, "metric": str, "note": str}
    try:
        frame = pd.read_csv(
            path, dtype=texts, keep_default_na=False, na_values={name: [""] for name in _NUMBERS}
        )
        return frame[COLUMNS].astype(dict.fromkeys(_NUMBERS, np.float64))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: cannot be read as a result table ({error})") from error


def format_value(value: float, low: float, high: float) -> str:
    """'0.911 [0.886, 0.936]'; a dash where there is no value, no brackets where there is no interval."""
    if np.isnan(value):
        return "–"
    return f"{value:.3f}" if np.isnan(low) else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def table_blocks(frame: pd.DataFrame) -> list[Block]:
    """The numbers of an `evaluate` frame in blocks of three columns, a row a model; no empty block."""
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
        if any(text != "–" for _, cells in rows for text in cells):
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
    """What the numbers of an `evaluate` frame rest on, how they were made, what is not available and why."""
    notes = [
        *_rests_on(frame),
        f"95 % intervals: {frame['resamples'].max():,} resamples of patients; "
        f"accuracy and F1 at probability {THRESHOLD}; ECE: {CALIBRATION_BINS} equal-mass bins",
    ]
    used = frame[(frame["n"] > 0) & (frame["note"] == "")]
    if len(used) and used["patients"].min() < FEW_PATIENTS:
        notes.append(
            f"Few patients ({used['patients'].min()}): the intervals are rough and rather too narrow"
        )
    if frame["ignored"].max() > 0:
        notes.append(f"Up to {frame['ignored'].max():,} resamples held one class only and were ignored")
    if ((frame["metric"] == "ece") & (frame["value"] < frame["low"])).any():
        notes.append("ECE cannot be negative and resampling adds to it, so its interval can lie above it")
    return notes + _not_available(frame)


def format_table(frame: pd.DataFrame) -> str:
    """The table as text: blocks of three numbers then the notes, in at most 110 columns."""
    lines = []
    for block in table_blocks(frame):
        lines.append(f"{block.title:<{_NAME_WIDTH}}" + "".join(f"  {column:<22}" for column in block.columns))
        for name, cells in block.rows:
            short = name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + "…"
            lines.append(f"{short:<{_NAME_WIDTH}}" + "".join(f"  {cell:<22}" for cell in cells))
        lines.append("")
    notes = [textwrap.fill(note, _TEXT_WIDTH, subsequent_indent="  ") for note in table_notes(frame)]
    return "\n".join([*(line.rstrip() for line in lines), *notes])

"""The two pages people read: one for a study, one for a run. Each is one offline file without a script.

In: numbers, pictures and texts. Out: HTML as a string. Every text may come from a DICOM file or a label
table, so all of it is escaped by Jinja2; a Content-Security-Policy in the page forbids anything but its own
styles and embedded pictures. A patient's name has no place here: a page knows the scan id only.

Shapes: n slices of one scan, B scans of a set, H, W pixels.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ich_mil.data.labels import UNKNOWN
from ich_mil.evaluate.metrics import THRESHOLD
from ich_mil.evaluate.show import format_value, table_blocks, table_notes
from ich_mil.evaluate.table import SCAN, Scores
from ich_mil.files import write_text
from ich_mil.ledger import LedgerEntry
from ich_mil.predictions import NOTICE
from ich_mil.report import figures
from ich_mil.report.text import printable

MAX_PICTURES = 4
"""Slices shown as pictures on a study page; more would outgrow a page that opens at once."""
MAX_SCANS = 2000
"""Scans listed on a run page; the rest are in predictions.csv."""
MAX_LEDGER = 500
"""Ledger lines on a study page; the rest are in ledger.csv."""

_SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class ModelCard:
    """Which model spoke.

    Attributes:
        name: what kind of model, such as 'G-VGPMIL α=1 β=2.5'.
        version: version of the program and digest of the weights.
        config_hash: hash of the configuration it was trained with.
        calibration: how scan probabilities were calibrated and on how many scans; empty if they were not.
    """

    name: str
    version: str
    config_hash: str
    calibration: str = ""


@dataclass(frozen=True)
class SlicePicture:
    """One slice to show.

    Attributes:
        image: (H, W) in [0, 1], brain window.
        index: place in the scan, 0 = lowest slice; shown from 1.
        probability: slice probability.
        std: its standard deviation; None where the model gives none.
        mean_map: evidence for blood, of the same field of view at any resolution; None where there is none.
        std_map: standard deviation of that evidence; None where there is none.
        position_mm: place along the scan in mm; None where unknown.
    """

    image: np.ndarray
    index: int
    probability: float
    std: float | None = None
    mean_map: np.ndarray | None = None
    std_map: np.ndarray | None = None
    position_mm: float | None = None


@dataclass(frozen=True)
class StudyPage:
    """All that a study page shows.

    Attributes:
        scan: scan id.
        model: which model spoke.
        probability: scan probability.
        std: its standard deviation over posterior samples; None where the model gives no uncertainty.
        low: lower end of its central 95 % interval; None where there is none.
        high: upper end.
        slice_probability: (n,) from the lowest slice up; None where the model says nothing of slices.
        slice_low: (n,) lower ends of the slices' 95 % intervals; None where there are none.
        slice_high: (n,) upper ends.
        slice_labels: (n,) in {0, 1} or `UNKNOWN`; None where no slice is labelled.
        label: scan label in {0, 1} or `UNKNOWN`.
        pictures: slices that can be shown; the `MAX_PICTURES` most probable are.
        ledger: what was refused, corrected or noted in the input of this scan.
        run_link: relative address of the run's page; empty for none.
    """

    scan: str
    model: ModelCard
    probability: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    slice_probability: np.ndarray | None = None
    slice_low: np.ndarray | None = None
    slice_high: np.ndarray | None = None
    slice_labels: np.ndarray | None = None
    label: int = UNKNOWN
    pictures: Sequence[SlicePicture] = ()
    ledger: Sequence[LedgerEntry] = ()
    run_link: str = ""


@dataclass(frozen=True)
class SplitCount:
    """How much data one split holds; `positive` and `unlabelled` count scans."""

    name: str
    scans: int
    patients: int
    slices: int
    positive: int
    unlabelled: int = 0


@dataclass(frozen=True)
class EvaluatedSet:
    """One evaluated data set.

    Attributes:
        name: its name.
        table: the frame of `ich_mil.evaluate.table.evaluate`; its first model is the run's own.
        labels: (B,) scan labels for the ROC and calibration plots; None draws none.
        scores: the models behind the table, in its order.
    """

    name: str
    table: pd.DataFrame
    labels: np.ndarray | None = None
    scores: Sequence[Scores] = ()


@dataclass(frozen=True)
class ScanRow:
    """One scan in the run page's list; `link` is the relative address of its study page, empty for none."""

    scan: str
    probability: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    label: int = UNKNOWN
    link: str = ""


@dataclass(frozen=True)
class RunPage:
    """All that a run page shows.

    Attributes:
        name: name of the run.
        model: which model it trained.
        config: the whole configuration as text (YAML).
        splits: size of each split.
        sets: the evaluated data sets, the most important first.
        scans: predicted scans, in any order.
        curves: training curves (index = epoch, a column each); None for none.
        ledger: number of ledger lines by code (`ich_mil.ledger.Code`).
        limits: what the model must not be taken for, a sentence each.
    """

    name: str
    model: ModelCard
    config: str
    splits: Sequence[SplitCount] = ()
    sets: Sequence[EvaluatedSet] = ()
    scans: Sequence[ScanRow] = ()
    curves: pd.DataFrame | None = None
    ledger: Mapping[str, int] = field(default_factory=dict)
    limits: Sequence[str] = ()


def percent(probability: float) -> str:
    """'87 %'; '< 1 %' and '> 99 %' at the ends, where whole numbers would claim certainty."""
    if probability < 0.01:
        return f"<{_SPACE}1{_SPACE}%"
    if probability > 0.99:
        return f">{_SPACE}99{_SPACE}%"
    return f"{100 * probability:.0f}{_SPACE}%"


def relative_link(address: str) -> str:
    """`address` quoted, so that it can only name a file beside the page.

    Raises:
        ValueError: it starts with a slash or backslash.
    """
    if PurePosixPath(address).is_absolute() or address.startswith("\\"):
        raise ValueError(f"a link in a report must be relative, got {address!r}")
    return quote(address.encode("utf-8", "replace"), safe="/._-~")


def study_file_name(scan: str) -> str:
    """File name of a scan's page: readable, the same each time, and different for different scans."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", scan).strip("-")[:60]
    if plain == scan:
        return f"scan-{plain}.html"
    return f"scan-{plain}-{hashlib.sha256(scan.encode('utf-8', 'replace')).hexdigest()[:8]}.html"


def write_page(html: str, path: Path) -> None:
    """Write a page to `path`, whole or not at all."""
    write_text(path, html)


def _shown(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ich_mil.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters.update(percent=percent, relative=relative_link, uri=figures.data_uri)
    environment.globals.update(notice=NOTICE, threshold=THRESHOLD)
    return environment


def verdict(page: StudyPage) -> str:
    """'Hemorrhage likely', 'Hemorrhage unlikely', or 'Undecided' where the interval holds the threshold."""
    low = page.probability if page.low is None else page.low
    high = page.probability if page.high is None else page.high
    if low >= THRESHOLD:
        return "Hemorrhage likely"
    return "Hemorrhage unlikely" if high < THRESHOLD else "Undecided"


def _runs(places: np.ndarray) -> str:
    """'3, 7–12' for slices 3 and 7 to 12; the first eight runs."""
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    texts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs[:8]]
    return ", ".join(texts) + (" …" if len(runs) > 8 else "")


def summary(page: StudyPage) -> list[str]:
    """The result in plain sentences."""
    sentences = []
    if page.low is None or page.high is None:
        sentences.append("This model gives no uncertainty for its scan probability.")
    elif page.low < THRESHOLD <= page.high:
        sentences.append(
            f"The 95{_SPACE}% interval reaches from {percent(page.low)} to {percent(page.high)} and holds "
            f"{percent(THRESHOLD)}: the model does not decide this scan."
        )
    else:
        side = "above" if page.low >= THRESHOLD else "below"
        sentences.append(
            f"The whole 95{_SPACE}% interval, {percent(page.low)} to {percent(page.high)}, lies {side} "
            f"{percent(THRESHOLD)}."
        )
    if page.slice_probability is None:
        sentences.append("This model says nothing of single slices.")
    else:
        n, top = len(page.slice_probability), int(np.argmax(page.slice_probability))
        above = np.flatnonzero(page.slice_probability >= THRESHOLD) + 1
        where = f"{len(above)} of {n} slices reach {percent(THRESHOLD)}"
        where = (
            where + f" (slice{'s' * (len(above) > 1)} {_runs(above)})"
            if len(above)
            else f"None of {n} slices reaches {percent(THRESHOLD)}"
        )
        sentences.append(
            f"{where}; the highest is slice {top + 1} at {percent(page.slice_probability[top])}."
        )
    if page.label != UNKNOWN:
        known = "hemorrhage" if page.label == 1 else "no hemorrhage"
        sentences.append(f"The label of this scan in its data set: {known}.")
    return sentences


def _map_top(maps: Sequence[np.ndarray | None]) -> float:
    """Largest finite value of the maps; 0 where there is none above 0."""
    return max(
        (float(np.nanmax(m, initial=0.0, where=np.isfinite(m))) for m in maps if m is not None), default=0.0
    )


def _pictures(page: StudyPage) -> dict[str, Any]:
    shown = sorted(page.pictures, key=lambda one: -one.probability)[:MAX_PICTURES]
    mean_top, std_top = _map_top([one.mean_map for one in shown]), _map_top([one.std_map for one in shown])

    def overlaid(one: SlicePicture, overlay: np.ndarray | None, colours: Any, top: float) -> str | None:
        if overlay is None:
            return None
        return figures.data_uri(figures.slice_picture(one.image, overlay, colours=colours, top=top))

    rows = [
        {
            "slice": one,
            "plain": figures.data_uri(figures.slice_picture(one.image)),
            "mean": overlaid(one, one.mean_map, figures.MEAN_COLOURS, mean_top),
            "std": overlaid(one, one.std_map, figures.STD_COLOURS, std_top),
        }
        for one in shown
    ]
    return {
        "pictures": rows,
        "shown": [one.index for one in shown],
        "has_mean": any(row["mean"] for row in rows),
        "has_std": any(row["std"] for row in rows),
        "mean_top": mean_top,
        "std_top": std_top,
        "mean_key": figures.data_uri(figures.colour_key(figures.MEAN_COLOURS)),
        "std_key": figures.data_uri(figures.colour_key(figures.STD_COLOURS)),
    }


def render_study(study: StudyPage) -> str:
    """The study page as one HTML document.

    Raises:
        ValueError: a probability is NaN or outside [0, 1], the arrays of slices differ in length, or
            `run_link` is not relative.
    """
    if not 0 <= study.probability <= 1:
        raise ValueError(f"scan {study.scan!r}: the probability must lie in [0, 1], got {study.probability}")
    pictures = _pictures(study)
    strip = None
    if study.slice_probability is not None:
        if not ((study.slice_probability >= 0) & (study.slice_probability <= 1)).all():
            raise ValueError(f"scan {study.scan!r}: slice probabilities must lie in [0, 1]")
        for other in (study.slice_low, study.slice_high, study.slice_labels):
            if other is not None and len(other) != len(study.slice_probability):
                raise ValueError(
                    f"scan {study.scan!r}: {len(study.slice_probability)} slice probabilities, "
                    f"but {len(other)} interval ends or labels"
                )
        strip = figures.slice_strip(
            study.slice_probability,
            study.slice_low,
            study.slice_high,
            shown=pictures["shown"],
            labels=study.slice_labels,
        )
    return (
        _environment()
        .get_template("study.html.j2")
        .render(
            page=study,
            verdict=verdict(study),
            sentences=summary(study),
            strip=strip,
            labelled=study.slice_labels is not None and bool((np.asarray(study.slice_labels) == 1).any()),
            has_interval=study.slice_low is not None and study.slice_high is not None,
            max_ledger=MAX_LEDGER,
            **pictures,
        )
    )


def _evaluated(one: EvaluatedSet) -> dict[str, Any]:
    """The headline, tables and plots of one evaluated set."""
    own: Any = one.table[(one.table["level"] == SCAN) & (one.table["metric"] == "auc")].iloc[0]
    roc = reliability = None
    if one.labels is not None:
        labels = np.asarray(one.labels)
        scores = {s.name: np.asarray(s.scan) for s in one.scores if s.scan is not None}
        calibrated = {
            s.name: np.asarray(s.scan) for s in one.scores if s.scan is not None and s.scan_is_probability
        }
        if scores and {0, 1} <= set(labels.tolist()):
            roc = figures.roc_curves(labels, scores)
        if calibrated and (labels != UNKNOWN).any():
            reliability = figures.reliability(labels, calibrated)
    return {
        "name": one.name,
        "auc": format_value(own["value"], own["low"], own["high"]),
        "scans": int(own["n"]),
        "blocks": table_blocks(one.table),
        "notes": table_notes(one.table),
        "roc": roc,
        "reliability": reliability,
    }


def render_run(run: RunPage) -> str:
    """The run page as one HTML document.

    Raises:
        ValueError: a link is not relative.
    """
    ordered = sorted(run.scans, key=lambda row: (-row.probability, row.scan))
    curves = None if run.curves is None or run.curves.empty else figures.training_curves(run.curves)
    return (
        _environment()
        .get_template("run.html.j2")
        .render(
            page=run,
            sets=[_evaluated(one) for one in run.sets],
            curves=curves,
            scans=ordered[:MAX_SCANS],
            n_scans=len(ordered),
        )
    )

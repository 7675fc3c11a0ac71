"""Three-way triage of predictions: thresholds from labelled scans, decisions for new scans.

In: the folder of `ich-mil validate` or `ich-mil predict` with its `predictions.json`. Out: `triage.json`, the
thresholds with their guarantee and the digest of their model; or `decisions.csv`, one row per scan in reading
order.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.errors import DataError, ModelError, named
from ich_mil.evaluate.deployment.triage import Triage, fit_triage
from ich_mil.files import write_csv, write_json
from ich_mil.ledger import DECISIONS, LOOK, NEGATIVE, NOTICE, POSITIVE, Code, incomplete, whole_only
from ich_mil.model.predictions import Results, read_results, worklist
from ich_mil.progress import say
from ich_mil.sets.labels import UNKNOWN, name_some
from ich_mil.sets.preparation.identifying_texts import study_texts
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.sets.scan_labels import ScanLabels, unlabelled
from ich_mil.sets.scan_names import Kind, Name, ScanNames, folder_names
from ich_mil.sets.store import open_prepared

_KINDS: dict[str, Kind] = {"AccessionNumber": "accession", "SeriesInstanceUID": "series"}
"""Kinds of names in DICOM files, by keyword."""


def calibrate_triage(folder: Path, labels: ScanLabels | None, out: Path, **guarantee: Any) -> Triage:
    """Fit thresholds to predictions on labelled scans, and write them to `out`.

    Args:
        folder: folder of `predictions.json`, with scans the model was neither trained nor calibrated on.
        labels: table of labels, optionally with a column patient; None: labels of the predictions.
        out: path of the JSON file to write.
        guarantee: sensitivity, specificity and confidence of `fit_triage`.
    """
    results = read_results(folder)
    if results.set == "validation":
        raise DataError(
            f"{folder}: the model was stopped and calibrated on these scans, which rules out a guarantee; "
            "name a folder of 'validate'"
        )
    if seen := [scan.scan for scan in results.scans if Code.LEARNED_FROM in {e.code for e in scan.ledger}]:
        raise DataError(
            f"{folder}: the model was trained or calibrated on patients of {len(seen)} of its scans: "
            f"{name_some(seen)}, which rules out a guarantee; predict scans of other patients"
        )
    scans = [scan.scan for scan in results.scans]
    if labels is None:
        known = [UNKNOWN if scan.label is None else scan.label for scan in results.scans]
        patients = [scan.patient for scan in results.scans]
        if set(known) == {UNKNOWN}:
            raise DataError(f"{folder}: no scan has a label; name a file with --labels")
    else:
        given = _labels(labels, results, folder)
        known = given.label.reindex(scans, fill_value=UNKNOWN).tolist()
        patients = [given.patient.get(scan.scan, scan.patient) for scan in results.scans]
    with named(labels.path if labels else folder):
        triage = fit_triage(
            np.array(known),
            np.array([scan.probability for scan in results.scans]),
            patients=patients,
            **guarantee,
        )
    called = _called(_decided(results, triage))
    metadata = {"called": called, "model_weights": results.model.weights, "notice": NOTICE}
    write_json(out, triage.as_dict() | metadata)
    say(f"{out}: {triage.guarantees}", f"of the {len(scans)} scans: {_in_words(called)}")
    return triage


def _decided(results: Results, triage: Triage) -> Results:
    """The results with the decisions of `triage`; a scan that was not seen whole is never called negative."""
    calls = triage.decide(np.array([scan.probability for scan in results.scans])).tolist()
    scans = zip(results.scans, calls, strict=True)
    return replace(
        results, scans=tuple(replace(scan, decision=whole_only(call, scan.ledger)) for scan, call in scans)
    )


def _called(results: Results) -> dict[str, int]:
    """Number of scans by decision."""
    return {word: sum(scan.decision == word for scan in results.scans) for word in DECISIONS}


def _in_words(called: Mapping[str, int]) -> str:
    return (
        f"{called[POSITIVE]} called positive, {called[NEGATIVE]} called negative, {called[LOOK]} left to a "
        f"person ({LOOK})"
    )


def _labels(table: ScanLabels, results: Results, folder: Path) -> pd.DataFrame:
    """Label and patient of each labelled scan."""
    folders = [(scan.scan, scan.folder) for scan in results.scans]

    def more() -> Iterator[Name]:
        """Accession numbers and series, while the DICOM files are there."""
        with suppress(DataError):
            prepared = open_prepared(folder / "prepared")
            for scan in results.scans:
                texts = study_texts(prepared_study(prepared, scan.scan), [*_KINDS])
                yield from (Name(scan.scan, text, _KINDS[keyword]) for keyword, text in texts.items())

    given, reading = table.match(ScanNames(folder_names(folders)), more)
    say(f"{reading}{unlabelled(len(folders) - len(given))}")
    if "patient" not in given:
        return given.assign(patient=pd.Series({scan.scan: scan.patient for scan in results.scans}))
    if (given.patient == "").any():
        first = given.index[given.patient == ""][0]
        raise DataError(
            f"{table.path}: scan {first}: patient is empty; fill it for each scan, or drop the column"
        )
    return given


def read_triage(thresholds: Path, *, weights: str) -> Triage:
    """Read the thresholds that `calibrate_triage` has written.

    Raises:
        DataError: a file that cannot be used.
        ModelError: the thresholds belong to a model with other `weights` (`Provenance.weights`).
    """
    try:
        content: dict[str, Any] = {**json.loads(thresholds.read_text(encoding="utf-8"))}
        model_weights = content.pop("model_weights")
        content.pop("notice")
        content.pop("called", None)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{thresholds}: cannot be read as triage thresholds ({error}); name a file of 'ich-mil triage'"
        ) from error
    if model_weights != weights:
        raise ModelError(
            f"{thresholds}: was calibrated for the model {model_weights}, the predictions are of {weights}; "
            "calibrate on predictions of the same model"
        )
    with named(thresholds):
        return Triage.from_dict(content)


def apply_triage(folder: Path, thresholds: Path, out: Path) -> pd.DataFrame:
    """Decide on predicted scans, and write them in reading order (`worklist`).

    A scan of which a part was not seen is never called negative; the column `incomplete` gives the reasons.

    Returns:
        The table: scan, folder, decision, probability, std, incomplete.
    """
    results = read_results(folder)
    triage = read_triage(thresholds, weights=results.model.weights)
    decided = _decided(results, triage)
    rows = [
        (scan.scan, scan.folder, scan.decision, scan.probability, scan.std, "|".join(incomplete(scan.ledger)))
        for scan in worklist(decided)
    ]
    table = pd.DataFrame(rows, columns=["scan", "folder", "decision", "probability", "std", "incomplete"])
    write_csv(out, table)
    say(f"{out}: {_in_words(_called(decided))}")
    calls = triage.decide(np.array([scan.probability for scan in results.scans])).tolist()
    held_back = sum(scan.decision != call for scan, call in zip(decided.scans, calls, strict=True))
    if held_back:
        say(f"{held_back} scans below the thresholds were not seen whole: look instead of negative")
    say(triage.guarantees)
    say(
        f"scans.csv and the pages in {folder} are unchanged; 'ich-mil predict ... --triage "
        f"{thresholds}' writes these decisions there"
    )
    return table

"""Assembly of results: features, predictions and ledger entries to the result of each scan."""

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.triage import Triage
from ich_mil.files import digest
from ich_mil.gp.predict import Predictions
from ich_mil.heads.counterfactual import Counterfactuals
from ich_mil.ledger import (
    BY_INTERVAL,
    LOOK,
    NEGATIVE,
    POSITIVE,
    THRESHOLD,
    WHOLE_ONLY,
    Code,
    LedgerEntry,
    ledger_entries,
    whole_only,
)
from ich_mil.model.predictions import DIGITS, Interval, Provenance, Results, Run, ScanPrediction, SliceResult
from ich_mil.sets.extras import ExtraInstance
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.labels import UNKNOWN, name_some
from ich_mil.sets.splits import content_of, scan_keys
from ich_mil.sets.store import PreparedSet
from ich_mil.study.study import Study


def make_results(
    features: FeatureSet,
    predictions: Predictions,
    explained: Counterfactuals,
    prepared: PreparedSet | None,
    *,
    set_name: str,
    model: Provenance,
    triage: Triage | None = None,
    learned: Collection[str] = (),
    unlikeness: np.ndarray,
) -> Results:
    """Combine features, predictions and ledger entries to the results of each scan.

    Args:
        features: features of B scans.
        predictions: predictions of the same scans.
        explained: counterfactual probabilities of the same scans.
        prepared: prepared set that contains these scans, possibly among others; None for a feature table.
        set_name: see `Results.set`.
        model: identity of the model.
        triage: thresholds of the decision; None: decision by the interval.
        learned: keys (`ich_mil.sets.splits.keys_of`) of the scans the model was trained or calibrated on; a
            scan with one of these keys gets a ledger entry.
        unlikeness: (B,) from `TrainedModel.unlikeness`, NaN where unknown; a scan above 1 gets a ledger entry
            and is never negative.
    """
    lines = {} if prepared is None else prepared.ledger_by_scan
    folders = {} if prepared is None else prepared.folders
    scans = []
    for b, scan in enumerate(features.scans):
        facts = ScanFacts()
        if prepared is not None:
            ledger, content = ledger_entries(lines.get(scan, [])), prepared.scans.content[scan]
            facts = ScanFacts(ledger, content, folders.get(scan, ""), prepared.slices(scan))
        arguments = (features, predictions, explained, b, facts)
        scans.append(
            scan_result(*arguments, model=model, triage=triage, learned=learned, unlikeness=unlikeness[b])
        )
    general = () if prepared is None else general_ledger(prepared)
    return Results(set_name, model, decision_rule(triage, model), tuple(scans), general)


def general_ledger(prepared: PreparedSet) -> tuple[LedgerEntry, ...]:
    """Ledger entries of files and studies that belong to no scan of a prepared set."""
    return ledger_entries(
        line | ({"file": prepared.folders.get(scan, "")} if line["code"] == Code.SCAN_EMPTY else {})
        for scan, entries in prepared.ledger_by_scan.items()
        if scan not in prepared.scans.index
        for line in entries
    )


class ScanFacts(NamedTuple):
    """Facts of a scan beside its features; empty for a feature table.

    Attributes:
        ledger: ledger entries of its files.
        content: digest of its slices (`ich_mil.sets.splits.content_of`).
        folder: folder below the root that holds files of this scan alone.
        slices: one row per slice, columns position_mm, corrections and content.
    """

    ledger: tuple[LedgerEntry, ...] = ()
    content: str = ""
    folder: str = ""
    slices: pd.DataFrame | None = None

    @classmethod
    def of(cls, study: Study) -> Self:
        """Facts of a study in memory."""
        slices = study.slices
        return cls(study.ledger, content_of(slices.content, least=1), study.folder, slices)


def decision_rule(triage: Triage | None, model: Provenance) -> str:
    """The rule of decisions in words."""
    if triage is None:
        rare = f"; negative below {100 * model.cut:.2g} %, where {100 * THRESHOLD:.0f} % was before"
        return f"{BY_INTERVAL}{rare if model.cut < THRESHOLD else ''}; {WHOLE_ONLY}"
    return f"{triage.guarantees} {WHOLE_ONLY.capitalize()}."


def scan_result(
    features: FeatureSet,
    predictions: Predictions,
    explained: Counterfactuals,
    b: int,
    facts: ScanFacts,
    *,
    model: Provenance,
    triage: Triage | None,
    learned: Collection[str],
    unlikeness: float,
) -> ScanPrediction:
    """Result of scan `b`; arguments as in `make_results`."""
    scan = features.scans[b]
    probability, std, interval = _numbers(predictions, "scan", b)
    ledger = facts.ledger
    if not scan_keys(scan, features.patients[b], facts.content).isdisjoint(learned):
        ledger += (LedgerEntry(scan, "", Code.LEARNED_FROM, "accuracy on it may exceed that on new scans"),)
    if unlikeness > 1:
        detail = f"{unlikeness:.1f} times the threshold distance; its probability may mislead"
        ledger += (LedgerEntry(scan, "", Code.UNLIKE, detail),)
    return ScanPrediction(
        scan=scan,
        patient=features.patients[b],
        probability=probability,
        std=std,
        interval_95=interval,
        decision=whole_only(_decision(probability, interval, triage, model.cut), ledger),
        label=_label(features.labels[b]),
        runs=tuple(Run(run.first, run.last, _or_none(run.scan_without)) for run in explained.runs[b]),
        slices=tuple(_slices(features, predictions, explained, facts.slices, b)),
        ledger=ledger,
        pixels="" if facts.slices is None else _pixels(facts.slices),
        unlikeness=_or_none(unlikeness),
        extras=tuple(map(_extra, explained.extras[b])),
        folder=facts.folder,
    )


def unlike_scans(results: Results) -> str:
    """Count of the scans unlike the training scans, in words; '' where the model has no such check."""
    checked = [scan for scan in results.scans if scan.unlikeness is not None]
    unlike = sum(Code.UNLIKE in {entry.code for entry in scan.ledger} for scan in checked)
    return f"{unlike} of {len(checked)} scans are {Code.UNLIKE.text}" if checked else ""


def check_judged(results: Results, prepared: PreparedSet) -> None:
    """Raise `DataError` unless the prepared slices and their pixels are those of the predictions."""

    def same(scan: ScanPrediction) -> bool:
        if scan.scan not in prepared.scans.index:
            return False
        now = prepared.slices(scan.scan)
        return now.sop.tolist() == [slice_.name for slice_ in scan.slices] and _pixels(now) == scan.pixels

    if changed := [scan.scan for scan in results.scans if not same(scan)]:
        raise DataError(
            f"{prepared.folder}: the slices of {len(changed)} scans are not those of the predictions "
            f"({name_some(changed)}); predict or validate again"
        )


def _slices(
    features: FeatureSet,
    predictions: Predictions,
    explained: Counterfactuals,
    slices: pd.DataFrame | None,
    b: int,
) -> Iterator[SliceResult]:
    start, stop = features.offsets[b : b + 2].tolist()
    for n in range(start, stop):
        probability, std, interval = _numbers(predictions, "slice", n)
        position, codes = None, ""
        if slices is not None:
            position = round(float(slices.position_mm.iloc[n - start]), 3)
            codes = slices.corrections.iloc[n - start]
        yield SliceResult(
            slice=n - start,
            name=features.slice_names[n],
            position_mm=position,
            probability=probability,
            std=std,
            interval_95=interval,
            scan_without=_or_none(explained.scan_without[n]),
            label=_label(features.slice_labels[n]),
            corrections=tuple(filter(None, codes.split("|"))),
        )


def _decision(probability: float, interval: Interval, triage: Triage | None, cut: float) -> str:
    if triage is not None:
        return str(triage.decide(np.array([probability]))[0])
    low, high = interval
    return POSITIVE if low >= THRESHOLD else NEGATIVE if high < min(THRESHOLD, cut) else LOOK


def _pixels(slices: pd.DataFrame) -> str:
    return digest(*(content.encode() for content in slices.content))


def _numbers(predictions: Predictions, level: str, index: int) -> tuple[float, float, Interval]:
    """Mean, standard deviation and interval of a scan or slice, rounded as in the files."""
    mean, std, low, high = (
        round(float(getattr(predictions, f"{level}_{what}")[index]), DIGITS)
        for what in ("mean", "std", "low", "high")
    )
    return mean, std, (low, high)


def _label(value: Any) -> int | None:
    return None if int(value) == UNKNOWN else int(value)


def _extra(extra: ExtraInstance) -> ExtraInstance:
    primary, without = round(extra.primary, DIGITS), round(extra.scan_without, DIGITS)
    return replace(extra, primary=primary, scan_without=without)


def _or_none(value: Any) -> float | None:
    return None if math.isnan(value) else round(float(value), DIGITS)

"""Assembly of results: features, predictions and ledger entries to the result of each scan."""

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.triage import Triage
from ich_mil.files import digest
from ich_mil.gp.counterfactual import Counterfactuals
from ich_mil.gp.predict import Predictions
from ich_mil.ledger import (
    BY_INTERVAL,
    LOOK,
    NEGATIVE,
    POSITIVE,
    THRESHOLD,
    WHOLE_ONLY,
    Code,
    LedgerEntry,
    whole_only,
)
from ich_mil.model.predictions import (
    DIGITS,
    Interval,
    Provenance,
    Results,
    Run,
    ScanResult,
    SliceResult,
    ledger_entries,
)
from ich_mil.sets.extras import ExtraInstance
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.labels import UNKNOWN, name_some
from ich_mil.sets.splits import scan_keys
from ich_mil.sets.store import PreparedSet


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
        probability, std, interval = _numbers(predictions, "scan", b)
        ledger = ledger_entries(lines.get(scan, []))
        content = "" if prepared is None else prepared.scans.content[scan]
        if not scan_keys(scan, features.patients[b], content).isdisjoint(learned):
            ledger += (
                LedgerEntry(scan, "", Code.LEARNED_FROM, "it says more of this one than of a new one"),
            )
        if unlikeness[b] > 1:
            detail = f"{unlikeness[b]:.1f} times as far from them as they are; its probability may mislead"
            ledger += (LedgerEntry(scan, "", Code.UNLIKE, detail),)
        scans.append(
            ScanResult(
                scan=scan,
                patient=features.patients[b],
                probability=probability,
                std=std,
                interval_95=interval,
                decision=whole_only(_decision(probability, interval, triage), ledger),
                label=_label(features.labels[b]),
                runs=tuple(Run(run.first, run.last, _or_none(run.scan_without)) for run in explained.runs[b]),
                slices=tuple(_slices(features, predictions, explained, prepared, b)),
                ledger=ledger,
                pixels="" if prepared is None else _pixels(prepared.slices(scan)),
                unlikeness=_or_none(unlikeness[b]),
                extras=tuple(map(_extra, explained.extras[b])),
                folder=folders.get(scan, ""),
            )
        )
    known = set() if prepared is None else set(prepared.scans.index)
    general = [
        line | ({"file": folders.get(scan, "")} if line["code"] == Code.SCAN_EMPTY else {})
        for scan, own in lines.items()
        if scan not in known
        for line in own
    ]
    decided_by = f"{BY_INTERVAL}; {WHOLE_ONLY}"
    if triage is not None:
        decided_by = f"{triage.guarantees} {WHOLE_ONLY.capitalize()}."
    return Results(set_name, model, decided_by, tuple(scans), ledger_entries(general))


def check_judged(results: Results, prepared: PreparedSet) -> None:
    """Raise `DataError` unless the prepared slices and their pixels are those of the predictions."""

    def same(scan: ScanResult) -> bool:
        if scan.scan not in prepared.scans.index:
            return False
        now = prepared.slices(scan.scan)
        return now.sop.tolist() == [one.name for one in scan.slices] and _pixels(now) == scan.pixels

    if changed := [scan.scan for scan in results.scans if not same(scan)]:
        raise DataError(
            f"{prepared.folder}: the slices of {len(changed)} scans are not those of the predictions "
            f"({name_some(changed)}); predict or validate again"
        )


def _slices(
    features: FeatureSet,
    predictions: Predictions,
    explained: Counterfactuals,
    prepared: PreparedSet | None,
    b: int,
) -> Iterator[SliceResult]:
    start, stop = features.offsets[b : b + 2].tolist()
    about = None if prepared is None else prepared.slices(features.scans[b])
    for n in range(start, stop):
        probability, std, interval = _numbers(predictions, "slice", n)
        position, codes = None, ""
        if about is not None:
            position, codes = (
                round(float(about.position_mm.iloc[n - start]), 3),
                about.corrections.iloc[n - start],
            )
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


def _decision(probability: float, interval: Interval, triage: Triage | None) -> str:
    if triage is not None:
        return str(triage.decide(np.array([probability]))[0])
    low, high = interval
    return POSITIVE if low >= THRESHOLD else NEGATIVE if high < THRESHOLD else LOOK


def _pixels(slices: pd.DataFrame) -> str:
    return digest(*(one.encode() for one in slices.content))


def _numbers(predictions: Predictions, level: str, place: int) -> tuple[float, float, Interval]:
    """Mean, standard deviation and interval of a scan or slice, rounded as in the files."""
    mean, std, low, high = (
        round(float(getattr(predictions, f"{level}_{what}")[place]), DIGITS)
        for what in ("mean", "std", "low", "high")
    )
    return mean, std, (low, high)


def _label(value: Any) -> int | None:
    return None if int(value) == UNKNOWN else int(value)


def _extra(one: ExtraInstance) -> ExtraInstance:
    return replace(one, primary=round(one.primary, DIGITS), scan_without=round(one.scan_without, DIGITS))


def _or_none(value: Any) -> float | None:
    return None if math.isnan(value) else round(float(value), DIGITS)

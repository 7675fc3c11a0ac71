"""Results of a prediction: probability, uncertainty and decision of each scan and slice.

In: features, the head's predictions, and for prepared scans the origin of each slice. Out: `Results`, stored
field by field in `predictions.json`, and `predictions.csv`, one row per scan or slice. Pages and DICOM
results are written from `Results` alone.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ich_mil.data.features import FeatureSet
from ich_mil.data.labels import UNKNOWN, name_some
from ich_mil.data.splits import scan_keys
from ich_mil.data.store import PreparedSet
from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.triage import DECISIONS, LOOK, NEGATIVE, POSITIVE, Triage
from ich_mil.evaluate.metrics import THRESHOLD
from ich_mil.files import digest, write_json, write_text
from ich_mil.gp.counterfactual import Counterfactuals, ExtraInstance
from ich_mil.gp.predict import Predictions
from ich_mil.ledger import INCOMPLETE, REFUSED, Code, LedgerEntry

FORMAT = "ich_mil.predictions.5"
NOTICE = "For research only, not for diagnosis."
BY_INTERVAL = f"where the 95 % interval lies against {100 * THRESHOLD:.0f} %; nothing is promised"
"""Decision rule without triage thresholds, for users."""
WHOLE_ONLY = "a scan that was not seen whole, or is unlike the training scans, is never called negative"
"""Addition to every decision rule, for users; see `ich_mil.ledger.INCOMPLETE`."""
COLUMNS = [
    "level",
    "scan",
    "patient",
    "slice",
    "name",
    "position_mm",
    "probability",
    "std",
    "low",
    "high",
    "decision",
    "decided_by",
    "unlikeness",
    "trained_on",
    "scan_without",
    "label",
    "corrections",
]
DIGITS = 6
"""Decimals of probabilities in both files."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Provenance:
    """Identity of the model behind some results.

    Attributes:
        name: kind of model, such as 'G-VGPMIL α=1 β=2.5'.
        version: version of `ich_mil`.
        weights: digest of all that determines predictions: CNN and head with windows and calibration,
            thickness, samples and seed. Models with equal digests give equal predictions.
        config: hash of the training configuration.
        calibration: method of calibration of scan probabilities; empty if they are not calibrated.
        trained_on: training sets with their numbers of scans.
    """

    name: str
    version: str
    weights: str
    config: str
    calibration: str
    trained_on: str


@dataclass(frozen=True)
class SliceResult:
    """Result of a slice.

    Attributes:
        slice: index in the scan, 0 = lowest.
        name: SOPInstanceUID; for an average of thin slices, that of the middle slice.
        position_mm: position along the scan in mm; None where unknown.
        probability: mean over posterior samples.
        std: standard deviation over posterior samples.
        interval_95: central 95 % of posterior samples.
        scan_without: scan probability without this slice; None for the only slice of a scan.
        label: 0, 1 or None.
        corrections: ledger codes of corrections to the slice.
    """

    slice: int
    name: str
    position_mm: float | None
    probability: float
    std: float
    interval_95: Interval
    scan_without: float | None
    label: int | None
    corrections: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """Run of consecutive slices whose probability reaches `THRESHOLD`.

    Attributes:
        first: index of the lowest slice.
        last: index of the highest slice, inclusive.
        scan_without: scan probability without these slices; None where no other slice is left.
    """

    first: int
    last: int
    scan_without: float | None


@dataclass(frozen=True)
class KindResult:
    """One kind of bleed of a scan, if there is a bleed.

    Attributes:
        name: kind, such as `subdural`.
        probability: posterior mean.
        std: posterior standard deviation.
        interval_95: central 95 % of a Beta distribution with this mean and deviation.
        source: the network with the largest weight for this kind.
        share: posterior mean share of its weight.
        auc: held-out AUC of the kind on the training scans.
    """

    name: str
    probability: float
    std: float
    interval_95: Interval
    source: str
    share: float
    auc: float


@dataclass(frozen=True)
class ScanResult:
    """Result of a scan.

    Attributes:
        scan: scan id.
        patient: patient key; for duplicate scans all patient names, joined (`ich_mil.data.duplicates`).
        probability: calibrated mean over posterior samples.
        std: standard deviation over posterior samples.
        interval_95: central 95 % of posterior samples.
        decision: `positive`, `negative`, or `look`: undecided, for a radiologist to read
            (`ich_mil.evaluate.deployment.triage`). A scan of which a part was not seen is never `negative`.
        label: 0, 1 or None.
        runs: runs of positive slices, from the lowest up.
        slices: slices, from the lowest up.
        ledger: ledger entries of refusals, corrections and notes on its input.
        pixels: digest of the pixels of its slices, from the lowest up; empty for a feature table.
        unlikeness: distance of its texture from the training scans, divided by the threshold that at most
            5 % of similar scans exceed (`evaluate.deployment.out_of_distribution`); None without this check.
        kinds: kinds of bleed of a scan that is not called negative; empty where no model of kinds was given.
        extras: sentences and covariates that a multimodal head used.
    """

    scan: str
    patient: str
    probability: float
    std: float
    interval_95: Interval
    decision: str
    label: int | None
    runs: tuple[Run, ...]
    slices: tuple[SliceResult, ...]
    ledger: tuple[LedgerEntry, ...]
    pixels: str
    unlikeness: float | None = None
    kinds: tuple[KindResult, ...] = ()
    extras: tuple[ExtraInstance, ...] = ()


@dataclass(frozen=True)
class Results:
    """Content of `predictions.json`.

    Attributes:
        set: `new`, or the set of a run (`validation`, `test`, `external`).
        model: identity of the model.
        decided_by: decision rule, in words.
        scans: results of scans, in the order of the features.
        ledger: ledger entries of files and studies that belong to no scan of the prepared set.
    """

    set: str
    model: Provenance
    decided_by: str
    scans: tuple[ScanResult, ...]
    ledger: tuple[LedgerEntry, ...]


def is_promised(decided_by: str) -> bool:
    """Whether the decision rule `Results.decided_by` is that of triage thresholds with a guarantee."""
    return not decided_by.startswith(BY_INTERVAL)


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
        learned: keys (`ich_mil.data.splits.keys_of`) of the scans the model was trained or calibrated on; a
            scan with one of these keys gets a ledger entry.
        unlikeness: (B,) from `TrainedModel.unlikeness`, NaN where unknown; a scan above 1 gets a ledger entry
            and is never negative.

    Returns:
        Results of the B scans, in their order.
    """
    lines = {} if prepared is None else prepared.ledger_by_scan
    scans = []
    for b, scan in enumerate(features.scans):
        probability = _rounded(predictions.scan_mean[b])
        interval = _interval(predictions.scan_low[b], predictions.scan_high[b])
        own = _entries(lines.get(scan, []))
        content = "" if prepared is None else prepared.scans.content[scan]
        if not scan_keys(scan, features.patients[b], content).isdisjoint(learned):
            own += (LedgerEntry(scan, "", Code.LEARNED_FROM, "it says more of this one than of a new one"),)
        if unlikeness[b] > 1:
            detail = f"{unlikeness[b]:.1f} times as far from them as they are; its probability may mislead"
            own += (LedgerEntry(scan, "", Code.UNLIKE, detail),)
        scans.append(
            ScanResult(
                scan=scan,
                patient=features.patients[b],
                probability=probability,
                std=_rounded(predictions.scan_std[b]),
                interval_95=interval,
                decision=whole_only(_decision(probability, interval, triage), own),
                label=_label(int(features.labels[b])),
                runs=tuple(Run(run.first, run.last, _or_none(run.scan_without)) for run in explained.runs[b]),
                slices=tuple(_slices(features, predictions, explained, prepared, b)),
                ledger=own,
                pixels="" if prepared is None else _pixels(prepared.slices(scan)),
                unlikeness=_or_none(float(unlikeness[b])),
                extras=tuple(map(_extra, explained.extras[b])) if explained.extras else (),
            )
        )
    known = set() if prepared is None else set(prepared.scans.index)
    general = [line for scan, own in lines.items() if scan not in known for line in own]
    decided_by = f"{BY_INTERVAL}; {WHOLE_ONLY}"
    if triage is not None:
        decided_by = f"{triage.guarantees} {WHOLE_ONLY.capitalize()}."
    return Results(set_name, model, decided_by, tuple(scans), _entries(general))


def _pixels(slices: pd.DataFrame) -> str:
    return digest(*(one.encode() for one in slices.content))


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


def _decision(probability: float, interval: Interval, triage: Triage | None) -> str:
    if triage is not None:
        return str(triage.decide(np.array([probability]))[0])
    low, high = interval
    return POSITIVE if low >= THRESHOLD else NEGATIVE if high < THRESHOLD else LOOK


def whole_only(decision: str, ledger: Iterable[LedgerEntry]) -> str:
    """Replace the decision `NEGATIVE` by `LOOK` for a scan of which a part was not seen."""
    return LOOK if decision == NEGATIVE and incomplete(ledger) else decision


def incomplete(ledger: Iterable[LedgerEntry]) -> list[Code]:
    """Ledger codes of the reasons why a part of a scan was not seen; empty for a complete scan."""
    return sorted({entry.code for entry in ledger} & INCOMPLETE)


def in_no_study(ledger: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Refused files that may be slices of an unknown scan."""
    return [entry for entry in ledger if not entry.scan and entry.code in REFUSED & INCOMPLETE]


def _slices(
    features: FeatureSet,
    predictions: Predictions,
    explained: Counterfactuals,
    prepared: PreparedSet | None,
    b: int,
) -> list[SliceResult]:
    start, stop = int(features.offsets[b]), int(features.offsets[b + 1])
    about = None if prepared is None else prepared.slices(features.scans[b])
    return [
        SliceResult(
            slice=n - start,
            name=features.slice_names[n],
            position_mm=None if about is None else round(float(about.position_mm.iloc[n - start]), 3),
            probability=_rounded(predictions.slice_mean[n]),
            std=_rounded(predictions.slice_std[n]),
            interval_95=_interval(predictions.slice_low[n], predictions.slice_high[n]),
            scan_without=_or_none(float(explained.scan_without[n])),
            label=_label(int(features.slice_labels[n])),
            corrections=()
            if about is None
            else tuple(code for code in about.corrections.iloc[n - start].split("|") if code),
        )
        for n in range(start, stop)
    ]


def results_table(results: Results) -> pd.DataFrame:
    """Convert results to a table: a row per scan, followed by a row per slice from the lowest up.

    Columns as in `COLUMNS`. `low` and `high` bound the central 95 % of the posterior samples. `decided_by` is
    `thresholds` (of a triage) or `interval` (no guarantee). `label` is empty where unknown. `unlikeness`
    above 1 marks a scan unlike those of `trained_on`.
    """
    rows: list[dict[str, Any]] = []
    decided_by = "thresholds" if is_promised(results.decided_by) else "interval"
    for scan in results.scans:
        codes = sorted({code for one in scan.slices for code in one.corrections})
        about = {"unlikeness": scan.unlikeness, "trained_on": results.model.trained_on}
        own = {"name": scan.scan, "decision": scan.decision, "decided_by": decided_by, **about}
        rows.append({"level": "scan", **own, **_row(scan, scan, codes)})
        rows += [
            {
                "level": "slice",
                "slice": one.slice,
                "name": one.name,
                "position_mm": one.position_mm,
                "scan_without": one.scan_without,
                **_row(scan, one, one.corrections),
            }
            for one in scan.slices
        ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.astype(
        {
            "slice": "Int64",
            "label": "Int64",
            "position_mm": "Float64",
            "unlikeness": "Float64",
            "scan_without": "Float64",
        }
    )


def _row(scan: ScanResult, one: ScanResult | SliceResult, corrections: Sequence[str]) -> dict[str, Any]:
    return {
        "scan": scan.scan,
        "patient": scan.patient,
        "probability": one.probability,
        "std": one.std,
        "low": one.interval_95[0],
        "high": one.interval_95[1],
        "label": one.label,
        "corrections": "|".join(corrections),
    }


def write_results(results: Results, folder: Path) -> None:
    """Write `predictions.csv` and `predictions.json` into `folder`."""
    table = results_table(results).to_csv(index=False, float_format=f"%.{DIGITS}f")
    write_text(folder / "predictions.csv", table)
    write_json(folder / "predictions.json", {"format": FORMAT, "notice": NOTICE, **asdict(results)})


def read_results(folder: Path) -> Results:
    """Read the results that `write_results` wrote.

    Raises:
        DataError: the file is missing, damaged or of another version, has no scan, or has a scan twice.
    """
    path = folder / "predictions.json"
    try:
        content: dict[str, Any] = {**json.loads(path.read_text(encoding="utf-8"))}
        found = content.pop("format")
        if found != FORMAT:
            raise DataError(f"{path}: is of another version ({found}, this one: {FORMAT}); predict again")
        results = Results(
            set=content["set"],
            model=Provenance(**content["model"]),
            decided_by=content["decided_by"],
            scans=tuple(_read_scan(one) for one in content["scans"]),
            ledger=_entries(content["ledger"]),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path}: cannot be read as predictions ({error}); name a folder of 'validate' or 'predict'"
        ) from error
    if not results.scans:
        raise DataError(f"{path}: holds no scan; predict again")
    twice = sorted(scan for scan, count in Counter(one.scan for one in results.scans).items() if count > 1)
    if twice:
        raise DataError(f"{path}: scans are there twice: {name_some(twice)}; predict again")
    return results


def _read_scan(content: dict[str, Any]) -> ScanResult:
    slices = tuple(
        SliceResult(**{**one, **_numbers(one), "corrections": tuple(one["corrections"])})
        for one in content["slices"]
    )
    runs = tuple(Run(**one) for one in content["runs"])
    if content["decision"] not in DECISIONS:
        raise ValueError(f"decision {content['decision']!r} is none of {', '.join(DECISIONS)}")
    kinds = tuple(KindResult(**{**one, **_numbers(one)}) for one in content["kinds"])
    extras = tuple(ExtraInstance(**one) for one in content.get("extras", ()))
    changed = {"slices": slices, "runs": runs, "ledger": _entries(content["ledger"]), "kinds": kinds}
    changed["extras"] = extras
    return ScanResult(**{**content, **_numbers(content), **changed})


def _numbers(content: dict[str, Any]) -> dict[str, Any]:
    """Probability, deviation and interval. Raises `ValueError` for one that is not a number in range."""
    low, high = map(float, content["interval_95"])
    probability, std = float(content["probability"]), float(content["std"])
    if not all(0 <= value <= 1 for value in (low, high, probability)):
        raise ValueError(f"probabilities must lie in [0, 1], got {probability}, {low} to {high}")
    return {"probability": probability, "std": std, "interval_95": (low, high)}


def _entries(lines: Sequence[dict[str, str]]) -> tuple[LedgerEntry, ...]:
    return tuple(
        LedgerEntry(line["scan"], line["file"], Code(line["code"]), line["detail"]) for line in lines
    )


def _extra(one: ExtraInstance) -> ExtraInstance:
    return replace(one, primary=_rounded(one.primary), scan_without=_rounded(one.scan_without))


def _label(value: int) -> int | None:
    return None if value == UNKNOWN else value


def _rounded(value: Any) -> float:
    return round(float(value), DIGITS)


def _interval(low: Any, high: Any) -> Interval:
    return _rounded(low), _rounded(high)


def _or_none(value: float) -> float | None:
    return None if pd.isna(value) else round(value, DIGITS)

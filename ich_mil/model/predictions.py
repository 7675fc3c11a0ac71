"""Results of a prediction: probability, uncertainty and decision of each scan and slice.

`Results` are assembled by `ich_mil.model.assembly` and stored field by field in `predictions.json`, beside
`scans.csv` and `slices.csv`. Pages and DICOM results are written from `Results` alone. Slices are counted
from 0 in memory, as their pictures are, and from 1 in every file.
"""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ich_mil.errors import DataError
from ich_mil.files import write_csv, write_json
from ich_mil.ledger import DECISIONS, NOTICE, THRESHOLD, Code, LedgerEntry, has_guarantee, ledger_entries
from ich_mil.sets.extras import ExtraInstance
from ich_mil.sets.labels import name_some
from ich_mil.sets.scan_names import short_name

FORMAT = "ich_mil.predictions.7"
SAMPLED = ["probability", "std", "low", "high"]
SCAN_COLUMNS = ["scan", "folder", "patient", *SAMPLED, "decision", "decided_by", "unlikeness", "prevalence"]
SCAN_COLUMNS += ["label", "corrections", "trained_on"]
"""Columns of `scans.csv`."""
SLICE_COLUMNS = ["scan", "slice", "name", "position_mm", *SAMPLED, "scan_without", "label", "corrections"]
"""Columns of `slices.csv`."""
DIGITS = 6
"""Decimals of probabilities in all files."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Provenance:
    """Identity of the model behind some results.

    Attributes:
        name: kind of model, such as 'G-VGPMIL α=1 β=2.5'.
        version: version of `ich_mil`.
        weights: digest of all that determines predictions: CNN and head with windows and calibration,
            prevalence, thickness, samples and seed. Models with equal digests give equal predictions.
        config: hash of the training configuration.
        calibration: method of calibration of scan probabilities; empty if they are not calibrated.
        trained_on: training sets with their numbers of scans.
        prevalence: share of positive scans at which the probabilities hold; None: unknown.
        cut: what a probability of `THRESHOLD` became by a stated prevalence; negative scans lie below both.
    """

    name: str
    version: str
    weights: str
    config: str
    calibration: str
    trained_on: str
    prevalence: float | None = None
    cut: float = THRESHOLD


@dataclass(frozen=True)
class SliceResult:
    """Result of a slice.

    Attributes:
        slice: index in the scan, 0 = lowest.
        name: SOPInstanceUID; for an average of thin slices, that of the middle slice.
        position_mm: position along the scan; None where unknown.
        probability: mean over posterior samples.
        std: standard deviation over posterior samples.
        interval_95: central 95 % of posterior samples.
        scan_without: scan probability without this slice; None for the only slice of a scan.
        label: 0, 1 or None.
        corrections: ledger codes of corrections to the slice, and of notes on it.
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
        probability: mean over the posterior, or over refits of logistic regression.
        std: standard deviation over the same.
        interval_95: central 95 % of a Beta distribution with this mean and deviation.
        source: the network with the largest weight for this kind.
        share: mean share of its weight.
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
class ScanPrediction:
    """Result of a scan.

    Attributes:
        scan: scan id.
        patient: patient key; for duplicate scans all keys, joined (`ich_mil.sets.splits`).
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
        folder: folder below the root that holds files of this scan alone; '' where there is none.
    """

    scan: str
    patient: str
    probability: float
    std: float
    interval_95: Interval
    decision: str
    label: int | None
    runs: tuple[Run, ...]
    slices: tuple[SliceResult, ...] = field(repr=False)
    ledger: tuple[LedgerEntry, ...] = field(repr=False)
    pixels: str
    unlikeness: float | None = None
    kinds: tuple[KindResult, ...] = ()
    extras: tuple[ExtraInstance, ...] = field(default=(), repr=False)
    folder: str = ""

    @property
    def title(self) -> str:
        """Folder and short id of the scan, or its short id alone."""
        name = short_name(self.scan)
        return f"{self.folder} ({name})" if self.folder else name


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
    scans: tuple[ScanPrediction, ...] = field(repr=False)
    ledger: tuple[LedgerEntry, ...] = field(repr=False)


def worklist(results: Results) -> list[ScanPrediction]:
    """The scans in reading order: positive, then all others, each by decreasing probability."""
    return sorted(
        results.scans, key=lambda scan: (scan.decision != DECISIONS[0], -scan.probability, scan.scan)
    )


def scan_table(results: Results) -> pd.DataFrame:
    """Table with a row per scan, columns `SCAN_COLUMNS`.

    `low` and `high` bound the central 95 % of the posterior samples. `decided_by` is `thresholds` (of a
    triage) or `interval` (no guarantee). `label` is empty where unknown.
    """
    decided_by = "thresholds" if has_guarantee(results.decided_by) else "interval"
    of_all = {name: getattr(results.model, name) for name in ("prevalence", "trained_on")}
    rows = []
    for scan in results.scans:
        codes = "|".join(sorted({code for slice_ in scan.slices for code in slice_.corrections}))
        rows.append(vars(scan) | _bounds(scan) | of_all | {"decided_by": decided_by, "corrections": codes})
    return _table(rows, SCAN_COLUMNS, floats=("unlikeness", "prevalence"))


def slice_table(results: Results) -> pd.DataFrame:
    """Table with a row per slice, columns `SLICE_COLUMNS`; `slice` counts from 1, the lowest of a scan."""
    rows = []
    for scan in results.scans:
        for slice_ in scan.slices:
            row = {"scan": scan.scan, "slice": slice_.slice + 1, "corrections": "|".join(slice_.corrections)}
            rows.append(vars(slice_) | _bounds(slice_) | row)
    return _table(rows, SLICE_COLUMNS, floats=("position_mm", "scan_without"))


def _bounds(result: ScanPrediction | SliceResult) -> dict[str, Any]:
    return dict(zip(("low", "high"), result.interval_95, strict=True))


def _table(rows: list[dict[str, Any]], columns: list[str], *, floats: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns).astype({"label": "Int64"} | dict.fromkeys(floats, "Float64"))


def _numbered(content: Any, by: int) -> Any:
    """The JSON tree of `Results` with its slice numbers shifted."""
    for scan in content["scans"]:
        for slice_ in scan["slices"]:
            slice_["slice"] += by
        for run in scan["runs"]:
            run |= {"first": run["first"] + by, "last": run["last"] + by}
    return content


def write_results(results: Results, folder: Path) -> None:
    """Write `scans.csv`, `slices.csv` and `predictions.json` into `folder`."""
    for name, table in (("scans", scan_table(results)), ("slices", slice_table(results))):
        write_csv(folder / f"{name}.csv", table, float_format=f"%.{DIGITS}f")
    content = _numbered(asdict(results), 1)
    write_json(folder / "predictions.json", {"format": FORMAT, "notice": NOTICE, **content})


def read_results(folder: str | Path) -> Results:
    """Read results. `DataError`: file missing, damaged or of another version, no scan, or a scan twice."""
    path = Path(folder) / "predictions.json"
    try:
        content: dict[str, Any] = {**json.loads(path.read_text(encoding="utf-8"))}
        if (version := content.pop("format")) != FORMAT:
            raise DataError(f"{path}: is of another version ({version}, this one: {FORMAT}); predict again")
        content = _numbered(content, -1)
        results = Results(
            set=content["set"],
            model=Provenance(**content["model"]),
            decided_by=content["decided_by"],
            scans=tuple(map(_read_scan, content["scans"])),
            ledger=ledger_entries(content["ledger"]),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path}: cannot be read as predictions ({error}); name a folder of 'validate' or 'predict'"
        ) from error
    if not results.scans:
        raise DataError(f"{path}: holds no scan; predict again")
    counts = Counter(scan.scan for scan in results.scans)
    if twice := sorted(scan for scan, count in counts.items() if count > 1):
        raise DataError(f"{path}: duplicate scans {name_some(twice)}; predict again")
    return results


def _read_scan(content: dict[str, Any]) -> ScanPrediction:
    if content["decision"] not in DECISIONS:
        raise ValueError(f"decision {content['decision']!r} is none of {', '.join(DECISIONS)}")
    fields = {
        "runs": tuple(Run(**run) for run in content["runs"]),
        "slices": tuple(
            SliceResult(**_checked(slice_) | {"corrections": tuple(map(Code, slice_["corrections"]))})
            for slice_ in content["slices"]
        ),
        "ledger": ledger_entries(content["ledger"]),
        "kinds": tuple(KindResult(**_checked(kind)) for kind in content["kinds"]),
        "extras": tuple(ExtraInstance(**extra) for extra in content.get("extras", ())),
    }
    return ScanPrediction(**_checked(content) | fields)


def _checked(content: dict[str, Any]) -> dict[str, Any]:
    """`content` with its numbers checked: `ValueError` for a probability outside [0, 1]."""
    low, high = map(float, content["interval_95"])
    probability, std = float(content["probability"]), float(content["std"])
    if not all(0 <= value <= 1 for value in (low, high, probability)):
        raise ValueError(f"probabilities must lie in [0, 1], got {probability}, {low} to {high}")
    return content | {"probability": probability, "std": std, "interval_95": (low, high)}

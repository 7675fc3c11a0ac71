"""Patients and splits: duplicate scans, splits by patient, and checks that no patient is in two splits.

Duplicate scans are detected by a digest of their slices, and their patients are merged. CQ500 contains one
scan under two names; a study that was sent or pseudonymised twice is another case. All slices must be
bit-identical, in any order. In a feature table, scans of one slice are not compared: two patients may have
equal features by chance.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ich_mil.errors import DataError
from ich_mil.files import digest, write_csv
from ich_mil.sets.labels import UNKNOWN, binary, name_some, read_label_csv

SPLITS = ("train", "validation", "test")
INHERITED = "inherited"
"""Entry of `split` for a scan that an earlier network learned, whose weights this run started from."""
SPLIT_COLUMNS = ["scan", "patient", "label", "split", "learn", "content"]
"""Columns of `splits.csv`; `learn` is what the scan trains (`SetSettings.learn`), `content` a digest of its
slices (`content_of`)."""

AND = " = "
"""Separator between the keys of a patient who has several."""


def content_of(slices: Iterable[str], *, least: int = 2) -> str:
    """Digest of the slice digests of a scan, in any order; '' if fewer than `least` slices differ.

    A `least` of 1 is safe for pixels.
    """
    distinct = sorted(set(slices))
    return digest(*(name.encode() for name in distinct)) if len(distinct) >= least else ""


def one_patient(scans: pd.DataFrame) -> pd.Series:
    """Patient of each scan (columns `patient`, `content`); patients who share a content are merged."""
    patient, patients = pd.factorize(scans.patient)
    content, contents = pd.factorize(scans.content.mask(scans.content == ""))  # -1: no digest
    known = content >= 0
    nodes = len(patients) + len(contents)
    edges = (np.ones(known.sum()), (patient[known], len(patients) + content[known]))
    _, group = connected_components(coo_array(edges, shape=(nodes, nodes)), directed=False)
    joined = pd.Series(patients).groupby(group[: len(patients)]).agg(AND.join)  # one row per group
    return pd.Series(joined.to_numpy()[group[patient]], index=scans.index)


def check_twins(scans: pd.DataFrame, source: str) -> None:
    """Raise `DataError` if scans of the same slices have different labels (columns `label`, `content`)."""
    known = scans[(scans.label != UNKNOWN) & (scans.content != "")]
    differ = known[known.groupby("content").label.transform("nunique") > 1].sort_values("content")
    if len(differ):
        told = [f"{scan} ({label})" for scan, label in differ.label.items()]
        raise DataError(
            f"{source}: scans of the same slices have different labels: {name_some(told, 6)}; correct them"
        )


def names_of(patient: str) -> list[str]:
    """Keys of a patient; several where duplicate scans have different PatientIDs."""
    return patient.split(AND)


def patient_key(patient_id: str) -> str:
    """Pseudonymous key of a PatientID: equal for equal identifiers, '' for an empty identifier."""
    return f"P{digest(patient_id.encode())}" if patient_id else ""


def draw_splits(
    scans: pd.DataFrame,
    *,
    validation: float,
    test: float,
    seed: int,
    kept: Mapping[str, str] = MappingProxyType({}),
) -> pd.DataFrame:
    """Draw a random split by patient, stratified by whether the patient has a positive scan.

    Patients who have a scan of several slices and patients who have only single slices are further strata,
    unless both are too few for every split. `validation` and `test` are shares of patients in [0, 1). `scans`
    is indexed by scan id and has columns `patient`, `label`, `content`, and optionally `slices`, the number,
    and `learn`. Patients in `kept` (`splits_before`) are not drawn.

    Returns:
        A table with columns `SPLIT_COLUMNS`, in the order of `scans`.

    Raises:
        DataError: a scan has no label, or a label has too few patients to be in every split.
    """
    unlabelled = scans.index[scans.label == UNKNOWN]
    if len(unlabelled):
        raise DataError(f"{len(unlabelled)} scans to train on have no label: {name_some(list(unlabelled))}")
    patients = scans.groupby("patient").label.max()
    several = (scans.slices > 1 if "slices" in scans else scans.label >= 0).groupby(scans.patient).any()
    shares = {name: share for name, share in (("test", test), ("validation", validation)) if share}
    generator = np.random.default_rng(seed)
    split = dict.fromkeys(patients.index, "train") | {**kept}
    for label in (0, 1):
        of_label = patients.index[(patients == label) & ~patients.index.isin([*kept])]
        sizes = {name: max(round(share * len(of_label)), 1) for name, share in shares.items()}
        if sum(sizes.values()) >= len(of_label) and not kept:
            raise DataError(
                f"{len(of_label)} patients with label {label} are too few for the shares "
                f"validation {validation:g} and test {test:g}: every split needs one; add scans of that "
                f"label, or lower the shares"
            )
        kinds = [of_label[several[of_label]], of_label[~several[of_label]]]
        if max(map(len, kinds)) <= len(shares):  # neither stratum has enough patients for every split
            kinds = [of_label]
        for part in map(generator.permutation, kinds):
            least = int(len(part) > len(shares) and not kept)
            sizes = {name: max(round(share * len(part)), least) for name, share in shares.items()}
            for name, size in sizes.items():
                split.update(dict.fromkeys(part[:size], name))
                part = part[size:]
    table = scans.assign(learn=scans.get("learn", "all")).rename_axis("scan").reset_index()
    return table.assign(split=table.patient.map(split))[SPLIT_COLUMNS]


def splits_before(scans: pd.DataFrame, before: pd.DataFrame) -> dict[str, str]:
    """Split of the patients of `scans` who are in `before`, rows of the `splits.csv` of an earlier run.

    A network remembers what it was trained on, so its training scans cannot be held out from a run that
    starts from its weights. Scans of `INHERITED` are its training scans too.
    """
    known: dict[str, str] = {}
    for split in reversed(SPLITS):  # the first takes precedence
        rows = before.split.replace(INHERITED, SPLITS[0]) == split
        known |= dict.fromkeys(_keys(before[rows]), split)
    split_of: dict[str, str] = {}
    for scan, patient, content in zip(scans.index, scans.patient, scans.content, strict=True):
        splits = [known[key] for key in scan_keys(scan, patient, content) if key in known]
        if splits:
            split_of[patient] = min([*splits, split_of.get(patient, SPLITS[-1])], key=SPLITS.index)
    return split_of


def network_learned(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `splits.csv` of scans that a network was trained on, or an earlier one of its weights."""
    trained = table.split.isin(["train", "validation"]) & table.learn.isin(("all", "sources"))
    return table[trained | (table.split == INHERITED)]


def with_inherited(splits: pd.DataFrame, earlier: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """`splits` with the scans that networks of the `earlier` tables learned, as rows of split `INHERITED`."""
    rows = [network_learned(table).assign(split=INHERITED) for table in earlier]
    return pd.concat([splits, *rows], ignore_index=True).drop_duplicates()


def _keys(table: pd.DataFrame) -> dict[str, str]:
    return keys_of(table.set_index("scan"))


def read_scan_list(path: Path) -> pd.DataFrame:
    """Read the distinct rows of a CSV file with columns `scan,split`. `DataError` for an unknown split.

    In the `splits.csv` of a run, rows of scans that only earlier networks learned are left out.
    """
    table = read_label_csv(path, ["scan", "split"])[["scan", "split"]].drop_duplicates()
    table = table[table.split != INHERITED]
    wrong = table[~table.split.isin(SPLITS)]
    if len(wrong):
        raise DataError(f"{path}: split must be one of {', '.join(SPLITS)}, got {wrong.split.iloc[0]!r}")
    return table


def read_splits(
    path: Path, scans: pd.DataFrame, *, kept: Mapping[str, str] = MappingProxyType({})
) -> pd.DataFrame:
    """Read a user-defined split, a CSV file with columns `scan,split`; scans without a row are left out.

    `DataError`: an unknown split or scan, a patient held out who was not in `kept` (`splits_before`), or as
    in `check_splits`.
    """
    table = read_scan_list(path)
    if unknown := sorted(set(table.scan) - set(scans.index)):
        raise DataError(
            f"{path}: names {len(unknown)} scans that are not among those to train on: {name_some(unknown)}; "
            "take these rows out"
        )
    table = table.join(scans.assign(learn=scans.get("learn", "all")), on="scan")
    check_splits(table, str(path))
    earlier = table.patient.map(kept).map(SPLITS.index, na_action="ignore")
    if len(leaked := table.scan[table.split.map(SPLITS.index) > earlier]):
        raise DataError(
            f"{path}: holds out {len(leaked)} scans that the networks to start from were trained on: "
            f"{name_some(list(leaked))}; put them into train, or start from other networks"
        )
    return table[SPLIT_COLUMNS]


def check_splits(table: pd.DataFrame, source: str) -> None:
    """Raise `DataError` if a patient or scan is in two splits, or train or validation lacks a label.

    An empty validation split is accepted.
    """
    spread = table.groupby("patient").split.nunique()
    if twice := sorted(spread.index[spread > 1]):
        scans = sorted(table.scan[table.patient.isin(twice)].unique())
        raise DataError(
            f"{source}: patients in two splits: {name_some(twice)} (scans {name_some(scans, 6)}); "
            "keep all scans of a patient together"
        )
    for split in ("train", "validation"):
        labels = set(table.label[table.split == split])
        if not {0, 1} <= labels and (labels or split == "train"):
            raise DataError(
                f"{source}: the {split} split needs scans of both labels, it has {sorted(labels) or 'none'}; "
                "divide them otherwise"
            )


def scan_keys(scan: str, patient: str, content: str) -> set[str]:
    """Keys that identify a scan: its id, all keys of its patient, the digest of its slices."""
    return {scan, *names_of(patient), content} - {""}


def keys_of(scans: pd.DataFrame) -> dict[str, str]:
    """Map each of the `scan_keys` of scans (columns `patient`, `content`) to the scan id."""
    rows = zip(scans.index, scans.patient, scans.content, strict=True)
    return {key: scan for scan, patient, content in rows for key in scan_keys(scan, patient, content)}


def learned_from(table: pd.DataFrame) -> dict[str, str]:
    """`keys_of` the scans that were used for training or calibration: all rows but the test scans."""
    return _keys(table[table.split != "test"])


def check_unseen(scans: pd.DataFrame, learned: Mapping[str, str], source: str) -> None:
    """Raise `DataError` if a test scan, or its patient, was used for training or calibration.

    Scans without a PatientID are compared by scan id and slices. `scans` is indexed by scan id and has
    columns `patient`, `content`; `learned` are the `keys_of` the scans used; `source` is the set of `scans`.
    """
    names = {name for patient in scans.patient for name in names_of(patient)}
    if both := sorted({*learned} & names) or sorted({*learned} & {*scans.index}):
        raise DataError(
            f"{source}: {len(both)} of its patients were trained or calibrated on: {name_some(both)}; "
            "scans to be measured on must be of others (other people with the same PatientID need another)"
        )
    if twins := [
        f"{scan} (those of {learned[key]})" for scan, key in scans.content.items() if key in learned
    ]:
        raise DataError(
            f"{source}: {len(twins)} of its scans have the slices of one that was trained or calibrated on: "
            f"{name_some(twins)}; take them out"
        )


def write_splits(table: pd.DataFrame, path: Path) -> None:
    """Write a split as CSV."""
    write_csv(path, table)


def load_splits(path: Path) -> pd.DataFrame:
    """Read the split of a run, written by `write_splits`. `DataError` as in `check_splits`."""
    table = load_learned(path)
    return table[table.split != INHERITED].reset_index(drop=True)


def load_learned(path: Path) -> pd.DataFrame:
    """Read `splits.csv` with the scans that earlier networks learned. `DataError` as in `check_splits`."""
    table = read_label_csv(path, SPLIT_COLUMNS)
    table = table.assign(label=binary(table.label, path)).reset_index(drop=True)
    check_splits(table[table.split != INHERITED], str(path))
    return table


def check_current(table: pd.DataFrame, scans: pd.DataFrame, source: str) -> None:
    """Raise `DataError` if a scan of the split is missing, or its patient, label or slices have changed."""
    known = ["patient", "label", "content"]
    now = scans[known].reindex(table.scan)
    changed = table.scan[(now.to_numpy() != table[known].to_numpy()).any(1)]
    if len(changed):
        raise DataError(
            f"{source}: {len(changed)} scans are gone or have another patient, label or slices now: "
            f"{name_some(list(changed))}; start a new run"
        )


def check_same(table: pd.DataFrame, listed: pd.DataFrame, source: str) -> None:
    """Raise `DataError` if the user-defined split of a run has changed since the run began."""
    began, now = (set(zip(part.scan, part.split, strict=True)) for part in (table, listed))
    if changed := sorted({scan for scan, _ in began ^ now}):
        raise DataError(
            f"{source}: divides {len(changed)} scans otherwise than when the run began: "
            f"{name_some(changed)}; start a new run"
        )

"""Train, validation and test scans, never a patient in two of them.

In: scans with patient, label and a digest of what they show. Out: a table of `COLUMNS`. Patients are drawn,
stratified by whether they have a positive scan; all scans of a patient go together.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from ich_mil.data.labels import UNKNOWN, binary, name_some, read_label_csv
from ich_mil.data.twins import names_of
from ich_mil.errors import DataError
from ich_mil.files import digest, write_text

SPLITS = ("train", "validation", "test")
COLUMNS = ["scan", "patient", "label", "split", "content"]
"""Of a run's `splits.csv`; content is that of `ich_mil.data.twins`."""


def patient_key(patient_id: str) -> str:
    """A pseudonymous key of a PatientID: equal for equal identifiers, '' for an empty one."""
    return f"P{digest(patient_id.encode())}" if patient_id else ""


def draw_splits(scans: pd.DataFrame, *, validation: float, test: float, seed: int) -> pd.DataFrame:
    """Draw a split by patient, stratified by label.

    Args:
        scans: index scan id; columns `patient`, `label` (0 or 1), `content`, and `slices` where known.
            Patients with a scan of several slices and those of single slices alone are divided each by
            themselves.
        validation: share of patients for early stopping and calibration, in [0, 1).
        test: share of patients held out, in [0, 1).
        seed: of the draw.

    Returns:
        `COLUMNS`, in the order of `scans`.

    Raises:
        DataError: an unlabelled scan, or too few patients of a label for every split to have one.
    """
    unlabelled = scans.index[scans.label == UNKNOWN]
    if len(unlabelled):
        raise DataError(f"{len(unlabelled)} scans to train on have no label: {name_some(list(unlabelled))}")
    patients = scans.groupby("patient").label.max()
    several = (scans.slices > 1 if "slices" in scans else scans.label >= 0).groupby(scans.patient).any()
    shares = {name: share for name, share in (("test", test), ("validation", validation)) if share}
    generator = np.random.default_rng(seed)
    split = dict.fromkeys(patients.index, "train")
    for label in (0, 1):
        own = patients.index[patients == label]
        sizes = {name: max(round(share * len(own)), 1) for name, share in shares.items()}
        if sum(sizes.values()) >= len(own):
            raise DataError(
                f"{len(own)} patients with label {label} are too few for the shares "
                f"validation {validation:g} and test {test:g}: every split needs one; add scans of that "
                f"label, or lower the shares{_one_for_all(scans)}"
            )
        kinds = [own[several[own]], own[~several[own]]]
        if max(map(len, kinds)) <= len(shares):  # no kind has enough for every split
            kinds = [own]
        for part in map(generator.permutation, kinds):
            least = int(len(part) > len(shares))
            sizes = {name: max(round(share * len(part)), least) for name, share in shares.items()}
            for name, size in sizes.items():
                split.update(dict.fromkeys(part[:size], name))
                part = part[size:]
    table = scans.rename_axis("scan").reset_index()
    return table.assign(split=table.patient.map(split))[COLUMNS]


def _one_for_all(scans: pd.DataFrame) -> str:
    """What else may help where most scans are of one patient, as after an anonymisation; else ''."""
    most = int(scans.patient.value_counts().max()) if len(scans) else 0
    if 2 * most <= len(scans) or most < 2:
        return ""
    return f" ({most} of {len(scans)} scans have one PatientID: other people with the same need another)"


def read_scan_list(path: Path) -> pd.DataFrame:
    """A CSV with columns `scan,split`, each row once. `DataError` for an unknown split."""
    table = read_label_csv(path, ["scan", "split"])[["scan", "split"]].drop_duplicates()
    wrong = table[~table.split.isin(SPLITS)]
    if len(wrong):
        raise DataError(f"{path}: split must be one of {', '.join(SPLITS)}, got {wrong.split.iloc[0]!r}")
    return table


def read_splits(path: Path, scans: pd.DataFrame) -> pd.DataFrame:
    """A split chosen by the user: a CSV with columns `scan,split`; scans it does not name are left out.

    Raises:
        DataError: an unknown split or scan, a scan in two splits, a patient in two splits, scans to train or
            validate on without both labels.
    """
    table = read_scan_list(path)
    unknown = sorted(set(table.scan) - set(scans.index))
    if unknown:
        raise DataError(
            f"{path}: names {len(unknown)} scans that are not among those to train on: {name_some(unknown)}; "
            "take these rows out"
        )
    table = table.join(scans[["patient", "label", "content"]], on="scan")
    check_splits(table, str(path))
    return table[COLUMNS]


def check_splits(table: pd.DataFrame, source: str) -> None:
    """Raise `DataError` if a patient or scan sits in two splits, naming both, or a split lacks a label."""
    spread = table.groupby("patient").split.nunique()
    twice = sorted(spread.index[spread > 1])
    if twice:
        scans = sorted(table.scan[table.patient.isin(twice)].unique())
        raise DataError(
            f"{source}: patients in two splits: {name_some(twice)} (scans {name_some(scans, 6)}); "
            "keep all scans of a patient together"
        )
    for split in ("train", "validation"):
        labels = set(table.label[table.split == split])
        if split == "validation" and not labels:
            continue
        if not {0, 1} <= labels:
            raise DataError(
                f"{source}: the {split} split needs scans of both labels, it has {sorted(labels) or 'none'}; "
                "divide them otherwise"
            )


def scan_keys(scan: str, patient: str, content: str) -> set[str]:
    """All that tells a scan again: its id, each name of its patient, its slices (`ich_mil.data.twins`)."""
    return {scan, *names_of(patient), content} - {""}


def keys_of(scans: pd.DataFrame) -> dict[str, str]:
    """The `scan_keys` of these scans, each with the scan it belongs to.

    Args:
        scans: index scan id; columns `patient`, `content`.
    """
    rows = zip(scans.index, scans.patient, scans.content, strict=True)
    return {key: scan for scan, patient, content in rows for key in scan_keys(scan, patient, content)}


def learned_from(table: pd.DataFrame) -> dict[str, str]:
    """The `keys_of` the scans of a split that were trained or calibrated on."""
    return keys_of(table[table.split != "test"].set_index("scan"))


def check_unseen(scans: pd.DataFrame, learned: Mapping[str, str], source: str) -> None:
    """Raise `DataError` if a scan of `source`, or its patient, is among those learned from, naming them.

    A scan whose files name no patient is known by its own id and its slices.

    Args:
        scans: index scan id; columns `patient`, `content`.
        learned: `keys_of` the scans learned from.
        source: what the scans were read from, for messages.
    """
    names = {name for patient in scans.patient for name in names_of(patient)}
    both = sorted({*learned} & names) or sorted({*learned} & {*scans.index})
    if both:
        raise DataError(
            f"{source}: {len(both)} of its patients were trained or calibrated on: {name_some(both)}; "
            "scans to be measured on must be of others (other people with the same PatientID need another)"
        )
    twins = [f"{scan} (those of {learned[key]})" for scan, key in scans.content.items() if key in learned]
    if twins:
        raise DataError(
            f"{source}: {len(twins)} of its scans have the slices of one that was trained or calibrated on: "
            f"{name_some(twins)}; take them out"
        )


def load_splits(path: Path) -> pd.DataFrame:
    """The split of a run, as `write_splits` wrote it. `DataError` if a patient now sits in two splits."""
    table = read_label_csv(path, COLUMNS)
    table = table.assign(label=binary(table.label, path)).reset_index(drop=True)
    check_splits(table, str(path))
    return table


def check_current(table: pd.DataFrame, scans: pd.DataFrame, source: str) -> None:
    """Raise `DataError` if a scan of the split is gone, or has another patient, label or slices by now."""
    known = ["patient", "label", "content"]
    now = scans[known].reindex(table.scan)
    changed = table.scan[(now.to_numpy() != table[known].to_numpy()).any(1)]
    if len(changed):
        raise DataError(
            f"{source}: {len(changed)} scans are gone or have another patient, label or slices now: "
            f"{name_some(list(changed))}; start a new run"
        )


def check_same(table: pd.DataFrame, listed: pd.DataFrame, source: str) -> None:
    """Raise `DataError` if the list a run was divided by now names other scans, or divides them otherwise."""
    began, now = (set(zip(one.scan, one.split, strict=True)) for one in (table, listed))
    if changed := sorted({scan for scan, _ in began ^ now}):
        raise DataError(
            f"{source}: divides {len(changed)} scans otherwise than when the run began: "
            f"{name_some(changed)}; start a new run"
        )


def write_splits(table: pd.DataFrame, path: Path) -> None:
    """Write the table as CSV."""
    write_text(path, table.to_csv(index=False))

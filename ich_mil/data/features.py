"""Feature sets: slice features of the frozen CNN, the input of the Gaussian process.

In: (N, D) features of N slices, packed by scan, with labels, names and positions. Out: one safetensors file;
strings are stored in its JSON metadata. Public feature tables are read into the same class. They are CSV
files with columns `feature_0 ... feature_{D-1}, bag_name, bag_label, instance_name` and optionally
`instance_label`, `bag_cnn_probability`, `patient`. Without a column `patient`, each bag counts as a separate
patient in splits, folds and intervals. Bags with the same slices (at least two different ones) are assigned
to one patient, whatever the table says: CQ500 contains one scan under two names.

Shapes: B scans (bags), N slices (instances) of all scans, D features.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ich_mil.data.duplicates import content_of, one_patient
from ich_mil.data.extras import Extras
from ich_mil.data.labels import UNKNOWN, name_some, read_label_csv
from ich_mil.data.splits import check_unseen, patient_key
from ich_mil.errors import DataError
from ich_mil.files import digest, whole_file
from ich_mil.kernels.rbf_gram import measurable
from ich_mil.kernels.segments import take_bags
from ich_mil.progress import say_once

FORMAT = "ich_mil.features.1"


@dataclass(frozen=True)
class FeatureSet:
    """Packed features of B scans. Scan b has the rows `offsets[b]:offsets[b + 1]`.

    Attributes:
        x: (N, D) float32 features.
        offsets: (B + 1,) int64 offsets of the scans.
        scans: B scan ids.
        patients: B pseudonymous patient keys; the scan id where no patient is known. Duplicate scans with
            different patient keys have all of these keys, joined (`ich_mil.data.duplicates`).
        labels: (B,) int64 scan labels in {0, 1} or `UNKNOWN`.
        slice_names: N slice ids (SOP instance UID or source name).
        slice_labels: (N,) int64 slice labels in {0, 1} or `UNKNOWN`.
        positions: (N,) float32 relative position along the scan, 0 = lowest slice, 1 = highest; NaN where
            unknown.
        cnn_scan: (B,) float32 scan probability of the CNN; NaN where unknown.
        cnn_slice: (N,) float32 slice probability of the CNN; NaN where unknown.
        attention: (N,) float32 attention weight of the slice in its scan; NaN where unknown.
        positions_mm: (N,) float64 position along the scan in mm, from an arbitrary origin; None where
            unknown.
        texture: (N, T) float32 channel statistics of a low feature map of the CNN
            (`ich_mil.encoders.frozen.texture_of`); None without a CNN.
        extras: inputs of scans beside their slices, possibly of other scans too; they are not stored.
    """

    x: Tensor
    offsets: Tensor
    scans: list[str]
    patients: list[str]
    labels: Tensor
    slice_names: list[str]
    slice_labels: Tensor
    positions: Tensor
    cnn_scan: Tensor
    cnn_slice: Tensor
    attention: Tensor
    positions_mm: Tensor | None = None
    texture: Tensor | None = None
    extras: Extras = field(default_factory=Extras)

    @property
    def n_scans(self) -> int:
        """Number of scans B."""
        return len(self.scans)

    @property
    def table(self) -> pd.DataFrame:
        """One row per scan, index `scan`: patient, label, content digest (`ich_mil.data.duplicates`)."""
        slices = np.split(self.x.numpy() + 0.0, self.offsets[1:-1].tolist())  # + 0.0 turns -0.0 into 0.0
        return pd.DataFrame(
            {
                "patient": self.patients,
                "label": self.labels.tolist(),
                "content": [content_of(digest(row.tobytes()) for row in rows) for rows in slices],
            },
            index=pd.Index(self.scans, name="scan"),
        )

    def as_slices(self, scans: Collection[str]) -> "FeatureSet":
        """Turn each slice of the given scans into a scan of one slice, with the label of the slice.

        The new scans are named `<scan>/<slice>`. They keep the patient, and take the CNN's probability of the
        slice as their scan probability. All other scans are unchanged.

        Raises:
            DataError: a slice of the given scans has no label.
        """
        chosen = {*scans}
        if not chosen:
            return self
        alone = torch.tensor([scan in chosen for scan in self.scans])  # (B,)
        scan_of = torch.arange(self.n_scans).repeat_interleave(self.offsets.diff())  # (N,)
        alone = alone[scan_of]  # (N,)
        begins = alone.clone()
        begins[self.offsets[:-1]] = True
        first = begins.nonzero().squeeze(1)  # (B',) first slice of each new scan
        scan_of, is_slice = scan_of[first], alone[first]  # (B',)
        if bool((self.slice_labels[alone] == UNKNOWN).any()):
            n = int((alone & (self.slice_labels == UNKNOWN)).nonzero()[0])
            raise DataError(f"slice {self.slice_names[n]!r} has no label to be trained on")
        names = zip(scan_of.tolist(), first.tolist(), is_slice.tolist(), strict=True)
        return replace(
            self,
            offsets=torch.cat([first, self.offsets[-1:]]),
            scans=[f"{self.scans[b]}/{self.slice_names[n]}" if one else self.scans[b] for b, n, one in names],
            patients=[self.patients[b] for b in scan_of.tolist()],
            labels=torch.where(is_slice, self.slice_labels[first], self.labels[scan_of]),
            cnn_scan=torch.where(is_slice, self.cnn_slice[first], self.cnn_scan[scan_of]),
            attention=torch.where(alone & ~self.attention.isnan(), 1.0, self.attention),
        )

    def select(self, scans: list[str]) -> "FeatureSet":
        """Select scans by id, in the order given. `DataError` for an unknown id."""
        place = {scan: b for b, scan in enumerate(self.scans)}
        missing = [scan for scan in scans if scan not in place]
        if missing:
            raise DataError(f"{len(missing)} scans are not among the features, the first is {missing[0]!r}")
        chosen = [place[scan] for scan in scans]
        bags = torch.tensor(chosen, dtype=torch.int64)
        rows, offsets = take_bags(self.offsets, bags)
        return FeatureSet(
            x=self.x[rows],
            offsets=offsets,
            scans=list(scans),
            patients=[self.patients[b] for b in chosen],
            labels=self.labels[bags],
            slice_names=[self.slice_names[n] for n in rows.tolist()],
            slice_labels=self.slice_labels[rows],
            positions=self.positions[rows],
            cnn_scan=self.cnn_scan[bags],
            cnn_slice=self.cnn_slice[rows],
            attention=self.attention[rows],
            positions_mm=None if self.positions_mm is None else self.positions_mm[rows],
            texture=None if self.texture is None else self.texture[rows],
            extras=self.extras,
        )


def bare_features(
    x: np.ndarray, sizes: np.ndarray, scans: list[str], labels: np.ndarray, slice_names: list[str]
) -> FeatureSet:
    """Feature set from features (N, D), slices per scan (B,), names and scan labels (B,) alone.

    Each scan counts as a separate patient. Slice labels, positions and CNN outputs are set to unknown.
    """
    unknown = torch.full((len(x),), torch.nan)
    return FeatureSet(
        x=torch.tensor(x, dtype=torch.float32),
        offsets=torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int64),
        scans=scans,
        patients=list(scans),
        labels=torch.tensor(labels, dtype=torch.int64),
        slice_names=slice_names,
        slice_labels=torch.full((len(x),), UNKNOWN, dtype=torch.int64),
        positions=unknown,
        cnn_scan=torch.full((len(scans),), torch.nan),
        cnn_slice=unknown.clone(),  # safetensors refuses to save tensors that share memory
        attention=unknown.clone(),
    )


_TENSORS = ("x", "offsets", "labels", "slice_labels", "positions", "cnn_scan", "cnn_slice", "attention")
_OPTIONAL = ("positions_mm", "texture")
_STRINGS = ("scans", "patients", "slice_names")


def check_features(features: FeatureSet, source: str) -> None:
    """Raise `DataError`, naming `source`, if scans are missing or empty, or a slice is not `measurable`."""
    sizes = features.offsets.diff()
    if features.n_scans == 0:
        raise DataError(f"{source}: holds no scan")
    if bool((sizes <= 0).any()):
        raise DataError(f"{source}: scan {features.scans[int((sizes <= 0).nonzero()[0])]!r} has no slice")
    bad = ~measurable(features.x)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        limit = f"{torch.finfo(torch.float32).max:.1e}"
        raise DataError(
            f"{source}: {int(bad.sum())} slices have features that are NaN or infinite, or beyond {limit}, "
            f"the first is {features.slice_names[first]!r}; extract the features again"
        )


def write_features(features: FeatureSet, path: str | Path, *, source: str = "") -> None:
    """Write `features` to the safetensors file `path`; `source` identifies the inputs they depend on."""
    check_features(features, str(path))
    metadata = {
        "format": FORMAT,
        "source": source,
        **{name: json.dumps(getattr(features, name)) for name in _STRINGS},
    }
    with whole_file(Path(path)) as temporary:
        tensors = {name: getattr(features, name) for name in (*_TENSORS, *_OPTIONAL)}
        known = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
        save_file(known, temporary, metadata)


def read_features(path: str | Path) -> FeatureSet:
    """Read a file written by `write_features`. `DataError`, naming the file, for any other file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise DataError(
                    f"{path}: not a feature file of this version ({FORMAT}); extract the features again"
                )
            there = [name for name in _OPTIONAL if name in file.keys()]  # noqa: SIM118  (a safetensors file)
            tensors = {name: file.get_tensor(name) for name in (*_TENSORS, *there)}
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: cannot be read as a feature file ({error})") from error
    features = FeatureSet(**tensors, **{name: json.loads(metadata[name]) for name in _STRINGS})
    check_features(features, str(path))
    return features


def made_from(path: Path, source: str) -> bool:
    """Whether `path` is a feature file written with this `source`."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError):
        return False
    return metadata.get("format") == FORMAT and metadata.get("source") == source


def _feature_columns(table: pd.DataFrame) -> list[str]:
    """The names `feature_0 ... feature_{D-1}`, D being the number of columns that start with `feature_`."""
    return [f"feature_{i}" for i in range(sum(str(c).startswith("feature_") for c in table))]


def _read_table(path: Path) -> pd.DataFrame:
    """Read the rows of a public feature table, labels and features as numbers.

    The index is the line number minus 2. The rows of a scan may contradict each other.
    """
    table = read_label_csv(path, ["feature_0", "bag_name", "bag_label", "instance_name"])
    columns = _feature_columns(table)
    if missing := [column for column in columns if column not in table]:
        raise DataError(f"{path}: column {name_some(missing)} is missing, though others follow it")
    for column in [*columns, "bag_label", "instance_label", "bag_cnn_probability"]:
        if column in table:
            table[column] = _numbers(table[column], path, labels=column.endswith("_label"))
    empty = table[(table.bag_label == UNKNOWN) | (table.bag_name == "")]
    if len(empty):
        raise DataError(f"{path}: line {empty.index[0] + 2}: bag_name or bag_label is empty")
    if "patient" in table and (table.patient == "").any():
        line = table.index[table.patient == ""][0] + 2
        raise DataError(f"{path}: line {line}: patient is empty; where it is not known write the bag_name")
    repeated = table[table.duplicated(["bag_name", "instance_name"])]
    if len(repeated):
        bag, name = repeated[["bag_name", "instance_name"]].iloc[0]
        raise DataError(
            f"{path}: line {repeated.index[0] + 2}: slice {name!r} of scan {bag!r} is there twice"
        )
    if "bag_cnn_probability" in table:
        odd = table.bag_cnn_probability[~table.bag_cnn_probability.fillna(0).between(0, 1)]
        if len(odd):
            raise DataError(
                f"{path}: line {odd.index[0] + 2}: bag_cnn_probability must be in [0, 1], got {odd.iloc[0]:g}"
            )
    return table


def read_feature_csv(path: str | Path) -> FeatureSet:
    """Read a public feature table; scans in order of first appearance, slices in row order.

    Raises:
        DataError: no such file; a missing column; a label other than 0 or 1; a label, patient or CNN
            probability that differs within a scan; a positive slice in a negative scan; a repeated slice; a
            NaN feature; a probability outside [0, 1], or given for some scans only.
    """
    path = Path(path)
    table = _read_table(path)
    code, scans = pd.factorize(table.bag_name)
    table = table.iloc[np.argsort(code, kind="stable")].reset_index(drop=True)
    grouped = table.groupby("bag_name", sort=False)
    of_scans = {
        "bag_label": "is labelled both 0 and 1",
        "patient": "has more than one patient",
        "bag_cnn_probability": "has more than one bag_cnn_probability",
    }
    for column in [name for name in of_scans if name in table]:
        mixed = grouped[column].nunique()
        if (mixed > 1).any():
            raise DataError(f"{path}: scan {mixed.index[mixed > 1][0]!r} {of_scans[column]}")
    with np.errstate(over="ignore"):  # values that overflow float32 are refused below
        x = table[_feature_columns(table)].to_numpy(np.float32)
    labels = grouped.bag_label.first().to_numpy()
    features = bare_features(x, grouped.size().to_numpy(), list(scans), labels, table.instance_name.tolist())
    if "patient" in table:
        features = replace(features, patients=[patient_key(name) for name in grouped.patient.first()])
    if "instance_label" in table:
        wrong = np.flatnonzero((table.bag_label == 0) & (table.instance_label == 1))
        if len(wrong):
            scan, name = table.loc[wrong[0], ["bag_name", "instance_name"]]
            raise DataError(
                f"{path}: scan {scan!r} is labelled 0, but its slice {name!r} is labelled 1; "
                "correct one of them"
            )
        features = replace(features, slice_labels=torch.tensor(table.instance_label.to_numpy(np.int64)))
    if "bag_cnn_probability" in table:
        said = grouped.bag_cnn_probability.first()
        if said.isna().any() and not said.isna().all():
            raise DataError(
                f"{path}: scan {said.index[said.isna()][0]!r} has no bag_cnn_probability, but others have; "
                "fill it in, or leave the column out"
            )
        features = replace(features, cnn_scan=torch.tensor(said.to_numpy(np.float32)))
    check_features(features, str(path))
    return _with_twins(features, str(path))


def read_unseen_csv(path: str | Path, *, width: int, learned: Mapping[str, str]) -> FeatureSet:
    """Read a public feature table of test scans, and check that none of them was used for training.

    Args:
        path: the CSV file.
        width: number D of features per slice that the head was fitted to.
        learned: `ich_mil.data.splits.keys_of` the training scans of the head.

    Raises:
        DataError: as in `read_feature_csv`; another width; a scan or patient that was used for training.
    """
    features = read_feature_csv(path)
    if features.x.shape[1] != width:
        raise DataError(
            f"{path}: has {features.x.shape[1]} features a slice, the head is fitted to {width}; extract "
            "both with one network"
        )
    check_unseen(features.table, learned, str(path))
    return features


def _with_twins(features: FeatureSet, source: str) -> FeatureSet:
    """Assign scans with identical slices to one patient, and report them in one line."""
    scans = features.table
    known = scans[scans.content != ""]
    first = known.groupby("content").content.transform(lambda same: same.index[0])
    twins = [f"{scan} (those of {other})" for scan, other in first.items() if scan != other]
    if twins:
        say_once(
            f"{source}: scans with the slices of another, taken to be of its patient: {len(twins)}, "
            f"{name_some(twins)}"
        )
    return replace(features, patients=one_patient(scans).tolist())


def _numbers(column: pd.Series, path: Path, *, labels: bool) -> pd.Series:
    """Parse text as numbers; empty becomes NaN, or `UNKNOWN` for labels. `DataError` names the wrong line."""
    numbers = pd.to_numeric(column, errors="coerce")
    wrong = numbers.isna() & ~column.str.lower().isin(["", "nan"])
    if labels:
        wrong |= ~(numbers.isin([0, 1]) | numbers.isna())
    if wrong.any():
        row = column.index[wrong][0]
        allowed = "0 or 1" if labels else "a number"
        raise DataError(f"{path}: line {row + 2}: {column.name} must be {allowed}, got {column[row]!r}")
    return numbers.fillna(UNKNOWN).astype(np.int64) if labels else numbers

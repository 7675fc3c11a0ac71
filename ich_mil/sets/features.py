"""Feature sets: slice features of the frozen CNN, the input of the Gaussian process.

Stored as one safetensors file, with the strings in its JSON metadata. Feature files of others are read by
`read_feature_table`. Without a column `patient`, each bag counts as a patient; bags with the same slices
belong to one patient, whatever the file says.

Shapes: B scans (bags), N slices (instances) of all scans, D features.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.files import digest, whole_file
from ich_mil.kernels.rbf_gram import measurable
from ich_mil.kernels.segments import take_bags
from ich_mil.progress import say_once
from ich_mil.sets.extras import Extras
from ich_mil.sets.feature_files import read_rows
from ich_mil.sets.labels import UNKNOWN, name_some
from ich_mil.sets.splits import check_unseen, content_of, one_patient, patient_key

FORMAT = "ich_mil.features.1"
_STRINGS = ("scans", "patients", "slice_names")
_OF_SCANS = ("labels", "cnn_scan")
_OF_SLICES = ("x", "slice_labels", "positions", "cnn_slice", "attention", "positions_mm", "texture")


@dataclass(frozen=True)
class FeatureSet:
    """Packed features of B scans. Scan b has the rows `offsets[b]:offsets[b + 1]`.

    Attributes:
        x: (N, D) float32 features.
        offsets: (B + 1,) int64 offsets of the scans.
        scans: B scan ids.
        patients: B pseudonymous patient keys; the scan id where no patient is known.
        labels: (B,) int64 scan labels in {0, 1} or `UNKNOWN`.
        slice_names: N slice ids (SOP instance UID or source name).
        slice_labels: (N,) int64 slice labels in {0, 1} or `UNKNOWN`.
        positions: (N,) float32 relative position along the scan, 0 = lowest slice, 1 = highest; NaN: unknown.
        cnn_scan: (B,) float32 scan probability of the CNN; NaN: unknown.
        cnn_slice: (N,) float32 slice probability of the CNN; NaN: unknown.
        attention: (N,) float32 attention weight of the slice in its scan; NaN: unknown.
        positions_mm: (N,) float64 position along the scan in mm, from an arbitrary origin.
        texture: (N, T) float32 channel statistics of a low feature map of the CNN
            (`ich_mil.network.frozen.texture_of`).
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
        """One row per scan, index `scan`: patient, label, content digest (`content_of`)."""
        slices = np.split(self.x.numpy() + 0.0, self.offsets[1:-1].tolist())  # + 0.0 turns -0.0 into 0.0
        contents = [content_of(digest(row.tobytes()) for row in rows) for rows in slices]
        columns = {"patient": self.patients, "label": self.labels.tolist(), "content": contents}
        return pd.DataFrame(columns, index=pd.Index(self.scans, name="scan"))

    def as_slices(self, scans: Collection[str]) -> "FeatureSet":
        """Turn each slice of the given scans into a scan of one slice, with the label of the slice.

        The new scans are named `<scan>/<slice>`. They keep the patient, and take the CNN's probability of the
        slice as their scan probability. `DataError` if a slice of the given scans has no label.
        """
        if not (chosen := {*scans}):
            return self
        scan_of = torch.arange(self.n_scans).repeat_interleave(self.offsets.diff())  # (N,)
        alone = torch.tensor([scan in chosen for scan in self.scans])[scan_of]  # (N,)
        unlabelled = (alone & (self.slice_labels == UNKNOWN)).nonzero()
        if len(unlabelled):
            raise DataError(f"slice {self.slice_names[int(unlabelled[0])]!r} has no label to be trained on")
        begins = alone.clone()
        begins[self.offsets[:-1]] = True
        first = begins.nonzero().squeeze(1)  # (B',) first slice of each new scan
        scan_of, is_slice = scan_of[first], alone[first]  # (B',)
        names = zip(scan_of.tolist(), first.tolist(), is_slice.tolist(), strict=True)
        return replace(
            self,
            offsets=torch.cat([first, self.offsets[-1:]]),
            scans=[f"{self.scans[b]}/{self.slice_names[n]}" if k else self.scans[b] for b, n, k in names],
            patients=[self.patients[b] for b in scan_of.tolist()],
            labels=torch.where(is_slice, self.slice_labels[first], self.labels[scan_of]),
            cnn_scan=torch.where(is_slice, self.cnn_slice[first], self.cnn_scan[scan_of]),
            attention=torch.where(alone & ~self.attention.isnan(), 1.0, self.attention),
        )

    def select(self, scans: list[str]) -> "FeatureSet":
        """Select scans by id, in the order given. `DataError` for an unknown id."""
        row = {scan: b for b, scan in enumerate(self.scans)}
        if missing := [scan for scan in scans if scan not in row]:
            raise DataError(f"{len(missing)} scans are not among the features, the first is {missing[0]!r}")
        chosen = [row[scan] for scan in scans]
        bags = torch.tensor(chosen, dtype=torch.int64)
        rows, offsets = take_bags(self.offsets, bags)
        of_scans = {name: getattr(self, name)[bags] for name in _OF_SCANS}
        patients = [self.patients[b] for b in chosen]
        return replace(self.select_slices(rows, offsets), scans=list(scans), patients=patients, **of_scans)

    def select_slices(self, rows: Tensor, offsets: Tensor) -> "FeatureSet":
        """Select slices by row, and set the offsets of the scans in the selection."""
        values = {name: getattr(self, name) for name in _OF_SLICES}
        kept = {name: value[rows] for name, value in values.items() if value is not None}
        names = [self.slice_names[n] for n in rows.tolist()]
        return replace(self, offsets=offsets, slice_names=names, **kept)


def join_features(sets: Sequence[FeatureSet]) -> FeatureSet:
    """Join features of different scans."""
    joined: dict[str, Any] = {
        name: [text for features in sets for text in getattr(features, name)] for name in _STRINGS
    }
    for name in (*_OF_SCANS, *_OF_SLICES):
        values = [getattr(features, name) for features in sets]
        joined[name] = None if values[0] is None else torch.cat(values)
    sizes = torch.cat([features.offsets.diff() for features in sets])
    return replace(sets[0], offsets=torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), **joined)


def bare_features(
    x: np.ndarray, sizes: np.ndarray, scans: list[str], labels: np.ndarray, slice_names: list[str]
) -> FeatureSet:
    """Feature set from features (N, D), slices per scan (B,), names and scan labels (B,) alone."""
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


def check_features(features: FeatureSet, source: str) -> None:
    """Raise `DataError`, naming `source`, if scans are missing or empty, or a slice is not `measurable`."""
    if features.n_scans == 0:
        raise DataError(f"{source}: holds no scan")
    empty = (features.offsets.diff() <= 0).nonzero()
    if len(empty):
        raise DataError(f"{source}: scan {features.scans[int(empty[0])]!r} has no slice")
    bad = (~measurable(features.x)).nonzero()
    if len(bad):
        limit = f"{torch.finfo(torch.float32).max:.1e}"
        raise DataError(
            f"{source}: {len(bad)} slices have features that are NaN or infinite, or beyond {limit}, "
            f"the first is {features.slice_names[int(bad[0])]!r}; extract the features again"
        )


def write_features(features: FeatureSet, path: str | Path, *, source: str = "") -> None:
    """Write `features` to the safetensors file `path`; `source` identifies the inputs they depend on."""
    check_features(features, str(path))
    strings = {name: json.dumps(getattr(features, name)) for name in _STRINGS}
    tensors = {name: value for name, value in vars(features).items() if isinstance(value, Tensor)}
    known = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with whole_file(Path(path)) as temporary:
        save_file(known, temporary, {"format": FORMAT, "source": source, **strings})


def read_features(path: str | Path) -> FeatureSet:
    """Read a file written by `write_features`. `DataError`, naming the file, for any other file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise DataError(
                    f"{path}: not a feature file of this version ({FORMAT}); extract the features again"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: cannot be read as a feature file ({error})") from error
    features = FeatureSet(**tensors, **{name: json.loads(metadata[name]) for name in _STRINGS})
    check_features(features, str(path))
    return features


def made_from(path: Path, source: str) -> bool:
    """Whether `path` is a feature file written with this `source`."""
    try:
        with safe_open(path, framework="pt") as file:
            return {"format": FORMAT, "source": source}.items() <= (file.metadata() or {}).items()
    except (SafetensorError, OSError):
        return False


def read_feature_table(path: str | Path, columns: Mapping[str, str] = MappingProxyType({})) -> FeatureSet:
    """Read a feature file of others, in any format of `ich_mil.sets.feature_files`.

    Scans are in order of first appearance, their slices in row order. `columns` names columns that are called
    otherwise in the file. `DataError`, naming file and line or scan, for values that are missing, invalid or
    contradict each other.
    """
    path = Path(path)
    table, x = read_rows(path, columns)
    code, scans = pd.factorize(table.bag_name)
    order = np.argsort(code, kind="stable")
    table, x = table.iloc[order].reset_index(drop=True), x[order]
    grouped = table.groupby("bag_name", sort=False)
    for column in ("bag_label", "patient", "bag_cnn_probability"):
        if column in table and (several := grouped[column].nunique() > 1).any():
            raise DataError(f"{path}: scan {several.idxmax()!r} has more than one {column}")
    labels = grouped.bag_label.first().to_numpy()
    features = bare_features(x, grouped.size().to_numpy(), list(scans), labels, table.instance_name.tolist())
    if "patient" in table:
        features = replace(features, patients=[patient_key(name) for name in grouped.patient.first()])
    if "instance_label" in table:
        if len(wrong := np.flatnonzero((table.bag_label == 0) & (table.instance_label == 1))):
            scan, name = table.loc[wrong[0], ["bag_name", "instance_name"]]
            reason = f"is labelled 0, but its slice {name!r} is labelled 1; correct one of them"
            raise DataError(f"{path}: scan {scan!r} {reason}")
        features = replace(features, slice_labels=torch.tensor(table.instance_label.to_numpy(np.int64)))
    if "bag_cnn_probability" in table:
        known = grouped.bag_cnn_probability.first()
        if known.isna().any() and not known.isna().all():
            reason = "has no bag_cnn_probability, but others have; fill it in, or leave the column out"
            raise DataError(f"{path}: scan {known.isna().idxmax()!r} {reason}")
        features = replace(features, cnn_scan=torch.tensor(known.to_numpy(np.float32)))
    check_features(features, str(path))
    return _merge_twins(features, str(path))


def read_unseen_table(
    path: str | Path,
    columns: Mapping[str, str] = MappingProxyType({}),
    *,
    width: int,
    learned: Mapping[str, str],
) -> FeatureSet:
    """Read a feature file of test scans, and check that none of them was used for training.

    `width` is the D that the head was fitted to, `learned` the `keys_of` its training scans.
    """
    features = read_feature_table(path, columns)
    if (n := features.x.shape[1]) != width:
        reason = f"has {n} features a slice, the head is fitted to {width}; extract both with one network"
        raise DataError(f"{path}: {reason}")
    check_unseen(features.table, learned, str(path))
    return features


def _merge_twins(features: FeatureSet, source: str) -> FeatureSet:
    """Assign scans with identical slices to one patient, and report them in one line."""
    scans = features.table
    first = scans[scans.content != ""].groupby("content").content.transform(lambda same: same.index[0])
    if twins := [f"{scan} (those of {other})" for scan, other in first.items() if scan != other]:
        say_once(
            f"{source}: scans with the slices of another, assigned to its patient: {len(twins)}, "
            f"{name_some(twins)}"
        )
    return replace(features, patients=one_patient(scans).tolist())

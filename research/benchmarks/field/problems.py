"""Bags on which all models are compared: training and test parts of frozen features.

* RSNA-150: folds by patient over 150 scans, features of the authors' network 2.
* CQ500: fitted to RSNA-150, the same network.
* RSNA-1000: fitted to 999 scans on which the authors' networks were trained, measured on RSNA-150 and CQ500;
  seed k is network k.
* CT-ICH: folds by patient over 55 CT-ICH scans and 20 RSNA studies, 96 features of the three networks of a
  run of `configs/headct_base.yaml`, which learned from no label of a CT-ICH scan.
* MUSK1, MUSK2, tiger: folds over bags.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ich_mil.gp.inference.folds import folds_of
from ich_mil.sets.features import FeatureSet, join_features, read_feature_table, read_features
from research.benchmarks.public_features import DATA
from research.reproduce.mil import read_musk

FOLDS = 5
"""Number of outer folds."""

NETWORKS = Path(__file__).resolve().parents[3] / "checkpoints" / "headct_base"
"""Run whose features are those of the problem CT-ICH."""


@dataclass(frozen=True)
class Problem:
    """Bags to compare on.

    Attributes:
        test: test bags of each network; all have the same scans.
        parts: for each network, pairs of training and test bags; the test parts together are `test`.
    """

    test: FeatureSet
    parts: list[list[tuple[FeatureSet, FeatureSet]]]


def in_folds(features: FeatureSet) -> Problem:
    """Every bag scored by a model that was fitted to the other folds."""
    folds = folds_of(features.labels, features.patients, folds=FOLDS, seed=0)
    pairs = [tuple(features.select([features.scans[b] for b in part]) for part in fold) for fold in folds]
    return Problem(features, [[(learn, out) for learn, out in pairs]])


def table(name: str, network: int = 2) -> FeatureSet:
    """Public features by one of the authors' networks."""
    return read_feature_table(DATA / "features" / f"{name}_d8_run{network}.csv")


def from_1000() -> Problem:
    """Fitted to the 1,000 scans but the one that is a test scan too, by each network."""
    parts = []
    for network in range(3):
        bags, test = table("rsna1000", network), table("rsna150", network)
        learn = bags.select([scan for scan in bags.scans if scan not in {*test.scans}])
        parts.append([(learn, join_features([test, table("cq500", network)]))])
    return Problem(parts[0][0][1], parts)


def head_ct(networks: Path = NETWORKS) -> FeatureSet:
    """Whole scans with the features of all members of a run side by side."""
    members = [read_features(path) for path in sorted(networks.glob("member_*/features/train.safetensors"))]
    whole = [scan for scan, n in zip(members[0].scans, members[0].offsets.diff(), strict=True) if n > 1]
    members = [member.select(whole) for member in members]
    return replace(members[0], x=torch.cat([member.x for member in members], 1))


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "RSNA-150": lambda: in_folds(table("rsna150")),
    "CQ500": lambda: Problem(table("cq500"), [[(table("rsna150"), table("cq500"))]]),
    "RSNA-1000": from_1000,
    "CT-ICH": lambda: in_folds(head_ct()),
    "MUSK1": lambda: in_folds(read_musk(DATA / "mil" / "musk1.npz")),
    "MUSK2": lambda: in_folds(read_musk(DATA / "mil" / "musk2.npz")),
    "tiger": lambda: in_folds(read_musk(DATA / "mil" / "tiger.npz")),
}
"""Problems by name, loaded on demand."""


def rows_of(test: FeatureSet, part: FeatureSet) -> tuple[Sequence[int], torch.Tensor]:
    """Numbers in `test` of the scans of a part, and rows (n,) of their slices."""
    number = {scan: b for b, scan in enumerate(test.scans)}
    bags = [number[scan] for scan in part.scans]
    rows = torch.cat([torch.arange(int(test.offsets[b]), int(test.offsets[b + 1])) for b in bags])
    return bags, rows

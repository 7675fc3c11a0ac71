"""The real features the heads are measured on (../shared/data, see the README), and copies of them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ich_mil.data.features import FeatureSet, read_feature_csv

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def rsna() -> FeatureSet:
    """150 RSNA scans, 5,254 slices, 8 features, slice labels."""
    return read_feature_csv(DATA / "features" / "rsna150_d8_run2.csv")


def cq500() -> FeatureSet:
    """490 CQ500 scans, 21,190 slices, 8 features."""
    return read_feature_csv(DATA / "features" / "cq500_d8_run2.csv")


@dataclass(frozen=True)
class Packed:
    """Features (N, D), offsets (B + 1,), labels (B,)."""

    x: Tensor
    offsets: Tensor
    labels: Tensor


def copies(features: FeatureSet, times: int) -> Packed:
    """The same scans over and over, each copy but the first with a noise of 0.01 on every feature."""
    generator = torch.Generator().manual_seed(0)
    parts = [features.x]
    parts += [
        features.x + 0.01 * torch.randn(features.x.shape, generator=generator) for _ in range(times - 1)
    ]
    n = len(features.x)
    offsets = torch.cat([features.offsets[:1]] + [features.offsets[1:] + n * i for i in range(times)])
    return Packed(torch.cat(parts), offsets, features.labels.repeat(times))


def musk(name: str) -> Packed:
    """MUSK1 or MUSK2, packed by bag."""
    with np.load(DATA / "mil" / f"{name}.npz") as data:
        order = np.argsort(data["bag"], kind="stable")
        sizes = np.bincount(data["bag"])
        offsets = torch.as_tensor(np.concatenate([[0], sizes.cumsum()]))
        return Packed(torch.as_tensor(data["X"][order]), offsets, torch.as_tensor(data["label"]).long())

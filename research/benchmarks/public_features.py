"""Public features for the benchmarks (docs/data.md), and noisy copies of them."""

import torch

from ich_mil.gp.bags import Bags
from ich_mil.sets.features import FeatureSet, read_feature_table
from ich_mil.settings import filled_path
from research.reproduce.mil import read_musk

DATA = filled_path("data", "$ICH_MIL_DATA")


def rsna() -> FeatureSet:
    """150 RSNA scans, 5,254 slices, 8 features, slice labels."""
    return read_feature_table(DATA / "features" / "rsna150_d8_run2.csv")


def cq500() -> FeatureSet:
    """490 CQ500 scans, 21,190 slices, 8 features."""
    return read_feature_table(DATA / "features" / "cq500_d8_run2.csv")


def bags_of(features: FeatureSet) -> Bags:
    """Convert a feature set to `Bags` with features, offsets and labels."""
    return Bags(features.x, features.offsets, features.labels)


def copies(features: FeatureSet, times: int) -> Bags:
    """Repeat the scans `times` times; all copies but the first get Gaussian noise of deviation 0.01."""
    generator = torch.Generator().manual_seed(0)
    x, n = features.x, len(features.x)
    noisy = [x + 0.01 * torch.randn(x.shape, generator=generator) for _ in range(times - 1)]
    offsets = torch.cat([features.offsets[:1], *(features.offsets[1:] + n * i for i in range(times))])
    return Bags(torch.cat([x, *noisy]), offsets, features.labels.repeat(times))


def musk(name: str) -> Bags:
    """Bags of `musk1` or `musk2`."""
    return bags_of(read_musk(DATA / "mil" / f"{name}.npz"))

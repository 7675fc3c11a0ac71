"""Public features for the benchmarks (docs/data.md)."""

from ich_mil.gp.bags import Bags
from ich_mil.sets.features import FeatureSet, read_feature_table
from ich_mil.settings import filled_path

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

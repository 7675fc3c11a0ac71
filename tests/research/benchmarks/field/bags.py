"""Toy bags: feature 0 is raised in the positive instances, which lie side by side in the middle of a bag."""

from dataclasses import replace

import numpy as np
import torch

from ich_mil.sets.features import FeatureSet, bare_features


def toy(sizes, *, width=3, seed=0, raised=4.0, positions=True) -> FeatureSet:
    """Bags of given sizes; every other bag is positive."""
    rng = np.random.default_rng(seed)
    sizes = np.asarray(sizes)
    labels = np.arange(len(sizes)) % 2
    parts, slices, mm = [], [], []
    for n, label in zip(sizes, labels, strict=True):
        x = rng.normal(size=(n, width))
        truth = np.zeros(n, np.int64)
        if label:
            truth[n // 3 : max(2 * n // 3, n // 3 + 1)] = 1
        x[:, 0] += raised * truth
        parts.append(x)
        slices.append(truth)
        mm.append(5.0 * np.arange(n))
    names = [f"s{seed}-{b}" for b in range(len(sizes))]
    x = np.concatenate(parts)
    features = bare_features(x, sizes, names, labels, [f"r{seed}-{row}" for row in range(len(x))])
    z = torch.from_numpy(np.concatenate(mm)) if positions else None
    return replace(features, slice_labels=torch.from_numpy(np.concatenate(slices)), positions_mm=z)

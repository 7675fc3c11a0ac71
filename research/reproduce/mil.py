"""Benchmark sets for multiple instance learning: MUSK, and bags of handwritten digits.

Out: a `FeatureSet`, so that the heads, baselines and metrics for head CT apply unchanged: a bag replaces a
scan, an instance a slice, and every bag counts as one patient. Nothing is downloaded; without the MNIST files
the digits are those of scikit-learn, whose results are not comparable with MNIST.

The digit bags follow section 6.1 of Castro-Macías et al. 2024, except that no image is used twice: an image
in a training bag and in a test bag would be a leak.

Shapes: B bags, N instances (packed), D features, n images.
"""

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.decomposition import PCA

from ich_mil.errors import DataError
from ich_mil.progress import say
from ich_mil.sets.features import FeatureSet, bare_features, check_features

POSITIVE = (2, 9)
"""Digits that make a bag positive (section 6.1)."""
BAG_SIZE = 10
"""Number of images in a bag (section 6.1)."""
MOST_POSITIVE = 4
"""Largest number of positive images in a positive bag, which has at least 1 (section 6.1)."""


def read_musk(path: str | Path) -> FeatureSet:
    """Read a set of bags from an npz file with `X` (N, D), `bag` (N,) and `label`.

    `label` is (B,) in ascending order of the bag numbers, or (N,), one for each instance. The bags are
    returned in ascending order, instances in the order of the file. `DataError` if the file is invalid.
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            if missing := [key for key in ("X", "bag", "label") if key not in file]:
                raise DataError(f"{path}: key {', '.join(missing)} is missing; X, bag and label are needed")
            x, bag, label = file["X"], file["bag"], file["label"]
    except (OSError, ValueError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as an npz of bags ({error})") from error
    if x.ndim != 2 or bag.shape != (len(x),):
        raise DataError(f"{path}: X must be (N, D) and bag (N,), got {x.shape} and {bag.shape}")
    if x.dtype.kind not in "biuf":
        raise DataError(f"{path}: X must hold real numbers, got {x.dtype}")
    numbers, owner, sizes = np.unique(bag, return_inverse=True, return_counts=True)
    if label.shape not in ((len(numbers),), (len(x),)):
        raise DataError(
            f"{path}: label must be one for each of {len(numbers)} bags or {len(x)} instances, "
            f"got {label.shape}"
        )
    if not np.isin(label, (0, 1)).all():
        raise DataError(f"{path}: label must be 0 or 1, got {label[~np.isin(label, (0, 1))][0]!r}")
    if label.shape == (len(x),):
        positive = np.bincount(owner, weights=label)  # (B,)
        mixed = (positive > 0) & (positive < sizes)
        if mixed.any():
            raise DataError(f"{path}: bag {numbers[mixed][0]} is labelled both 0 and 1")
        label = positive > 0
    order = np.argsort(owner, kind="stable")
    names = [f"{path.stem}-{number}" for number in numbers]
    rows = [f"{path.stem}-row-{row}" for row in order]
    # float64 in native byte order, whatever the order in the file
    features = bare_features(x[order].astype(np.float64), sizes, names, label, rows)
    check_features(features, str(path))
    return features


def digit_bags(images: np.ndarray, digits: np.ndarray, *, seed: int) -> FeatureSet:
    """Draw random bags of `BAG_SIZE` images; a bag is positive if it contains one of the digits `POSITIVE`.

    The number of positive and negative bags is equal, and their order is random. A positive bag contains 1 to
    `MOST_POSITIVE` positive images, each number with equal probability. Pairs of a positive and a negative
    bag are drawn from the images (n, D) until one kind is used up; the number of images left over is printed.

    Returns:
        Bags with known instance labels; slice `image-<row>` is that row of `images`.

    Raises:
        DataError: too few images for one bag of each kind.
    """
    generator = np.random.default_rng(seed)
    target = np.isin(digits, POSITIVE)
    yes, no = (generator.permutation(np.flatnonzero(kind)) for kind in (target, ~target))
    held = generator.integers(1, MOST_POSITIVE + 1, size=len(yes))  # positive images in each positive bag
    taken_yes, taken_no = held.cumsum(), (2 * BAG_SIZE - held).cumsum()  # cumulative, after each pair of bags
    pairs = int(np.count_nonzero((taken_yes <= len(yes)) & (taken_no <= len(no))))
    if pairs == 0:
        raise DataError(
            f"{len(yes)} images of the digits {list(POSITIVE)} and {len(no)} others are too few for a "
            f"positive and a negative bag of {BAG_SIZE} images"
        )
    rows: list[np.ndarray] = []
    for p, q, k in zip(taken_yes[:pairs], taken_no[:pairs], held[:pairs], strict=True):
        first = q - (2 * BAG_SIZE - k)
        rows.append(np.concatenate([yes[p - k : p], no[first : q - BAG_SIZE]]))
        rows.append(no[q - BAG_SIZE : q])
    chosen = np.stack([rows[b] for b in generator.permutation(2 * pairs)])  # (B, BAG_SIZE)
    chosen = generator.permuted(chosen, axis=1).ravel()
    say(
        f"digits: {2 * pairs:,} bags of {BAG_SIZE}, seed {seed}; "
        f"{len(images) - len(chosen):,} of {len(images):,} images are left over"
    )
    labels = target[chosen]  # (N,)
    features = bare_features(
        images[chosen],
        np.full(2 * pairs, BAG_SIZE),
        [f"bag-{b}" for b in range(2 * pairs)],
        labels.reshape(-1, BAG_SIZE).any(axis=1),
        [f"image-{row}" for row in chosen],
    )
    return replace(features, slice_labels=torch.tensor(labels, dtype=torch.int64))


def project(train: FeatureSet, *others: FeatureSet, components: int) -> tuple[FeatureSet, ...]:
    """Project sets on principal components that are fitted to the instances of `train` only."""
    if not 1 <= components <= min(train.x.shape):
        raise DataError(
            f"{components} components need at least as many instances and features, there are "
            f"{train.x.shape[0]} and {train.x.shape[1]}"
        )
    # a deterministic solver for all sizes
    pca = PCA(components, svd_solver="covariance_eigh").fit(train.x.double().numpy())
    return tuple(
        replace(part, x=torch.tensor(pca.transform(part.x.double().numpy()), dtype=torch.float32))
        for part in (train, *others)
    )


def read_mnist(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read pixels (n, D) uint8 and digits (n,) of all MNIST images, training images first.

    `folder` is that of `torchvision.datasets.MNIST`; `DataError` if it holds no MNIST.
    """
    from torchvision.datasets import MNIST  # takes a second

    try:
        parts = [MNIST(folder, train=train) for train in (True, False)]
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(
            f"{folder}: holds no MNIST ({error}); run torchvision.datasets.MNIST({str(folder)!r}, "
            "download=True) once"
        ) from error
    images = np.concatenate([part.data.flatten(1).numpy() for part in parts])
    return images, np.concatenate([part.targets.numpy() for part in parts])

"""Choose inducing points of the sparse Gaussian process by k-means, half of them for each bag label.

In: (N, D) packed instances and the labels of their bags. Out: (M, D) points: k-means centres, half of them of
the instances of positive bags and half of negative bags, so that few positive bags are still represented.

Shapes: B bags, N instances, D features, M inducing points.
"""

import warnings
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.gp.bags import CHUNK, Bags, check_both_labels
from ich_mil.gp.settings import HeadSettings
from ich_mil.kernels.segments import bag_index

POINTS_PER_CENTRE = 500
"""Maximum number of instances per centre given to k-means, drawn at random."""


def standardisation(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (D,) in float64; 1 for the standard deviation of a constant feature."""
    chunks = x.split(CHUNK)
    mean = torch.stack([chunk.double().sum(0) for chunk in chunks]).sum(0) / len(x)
    square = torch.stack([(chunk.double() - mean).square().sum(0) for chunk in chunks]).sum(0) / len(x)
    largest = torch.stack([chunk.abs().amax(0) for chunk in chunks]).amax(0).double()
    std = square.sqrt()
    constant = std <= 1e-12 * largest  # not == 0: the mean of a constant 0.1 is off by an ulp
    return mean, torch.where(constant, torch.ones_like(std), std)


def choose_inducing(
    x: Tensor, offsets: Tensor, labels: Tensor, *, mean: Tensor, std: Tensor, n_inducing: int, seed: int
) -> Tensor:
    """K-means centres: ⌈M/2⌉ of the instances of positive bags and ⌊M/2⌋ of those of negative bags.

    If one label has fewer distinct instances than centres, each distinct instance becomes an inducing point,
    and fewer than M points are returned, with a warning.

    Args:
        x: (N, D) raw features.
        offsets: (B + 1,).
        labels: (B,) in {0, 1}.
        mean: (D,) mean for the standardisation.
        std: (D,) standard deviation for the standardisation.
        n_inducing: M, at least 2.
        seed: seed of k-means and of the choice of its instances.

    Returns:
        (at most M, D) standardised points, float64.

    Raises:
        DataError: there is no positive or no negative bag.
    """
    from sklearn.cluster import KMeans  # slow to import, and predictions do without

    positive = labels[bag_index(offsets).to(labels.device)] == 1  # (N,)
    generator = torch.Generator().manual_seed(seed)
    halves = []
    for name, mask, count in (
        ("positive", positive, (n_inducing + 1) // 2),
        ("negative", ~positive, n_inducing // 2),
    ):
        rows = mask.nonzero()[:, 0]
        if len(rows) == 0:
            raise DataError(f"no {name} scan among the {len(labels)} training scans: both labels are needed")
        if len(rows) > POINTS_PER_CENTRE * count:
            chosen = torch.randperm(len(rows), generator=generator)[: POINTS_PER_CENTRE * count]
            rows = rows[chosen.to(rows.device)]
        points = np.unique(((x[rows].to(mean) - mean) / std).detach().cpu().numpy(), axis=0)
        if len(points) > count:
            points = KMeans(n_clusters=count, n_init=1, random_state=seed).fit(points).cluster_centers_
        elif len(points) < count:
            warnings.warn(
                f"the {name} scans have {len(points)} distinct slices, too few for {count} of the "
                f"{n_inducing} inducing points: each is one",
                stacklevel=2,
            )
        halves.append(torch.as_tensor(points, dtype=mean.dtype, device=x.device))
    return torch.cat(halves)


class Points(NamedTuple):
    """Standardised inducing points (M, D), and mean and standard deviation (D,) of the training slices."""

    inducing: Tensor
    mean: Tensor
    std: Tensor


@torch.no_grad()
def place_points(train: Bags, settings: HeadSettings) -> Points:
    """Check the training scans and choose inducing points, which depend on neither kernel nor density."""
    x, offsets, labels = train.x, train.offsets, train.truth
    check_both_labels(train, "training scans")
    mean, std = standardisation(x)
    inducing = choose_inducing(
        x, offsets, labels, mean=mean, std=std, n_inducing=settings.n_inducing, seed=settings.random_state
    )
    return Points(inducing, mean, std)

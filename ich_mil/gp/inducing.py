"""Where the inducing points of the sparse Gaussian process lie.

In: (N, D) packed instances and the labels of their bags. Out: (M, D) points: half the k-means centres of the
instances of positive bags, half those of negative bags, so that the few positive bags keep their own.

Shapes: B bags, N instances, D features, M inducing points.
"""

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.kernels.segments import bag_index


def choose_inducing(x: Tensor, offsets: Tensor, labels: Tensor, *, n_inducing: int, seed: int) -> Tensor:
    """K-means centres, ⌈M/2⌉ of the instances of positive bags and ⌊M/2⌋ of those of negative bags.

    A half with fewer distinct instances than asked gives each of them once, so that fewer than M come back.

    Args:
        x: (N, D) instances, standardised.
        offsets: (B + 1,).
        labels: (B,) in {0, 1}.
        n_inducing: M, at least 2.
        seed: of k-means.

    Returns:
        (at most M, D), in the dtype of `x`.

    Raises:
        DataError: there is no positive or no negative bag.
        ValueError: fewer than 2 points asked for.
    """
    if n_inducing < 2:
        raise ValueError(f"n_inducing must be at least 2 (one for each label), got {n_inducing}")
    positive = labels[bag_index(offsets).to(labels.device)] == 1  # (N,)
    halves = []
    for name, rows, count in (
        ("positive", positive, (n_inducing + 1) // 2),
        ("negative", ~positive, n_inducing // 2),
    ):
        points = np.unique(x[rows].detach().cpu().numpy(), axis=0)
        if len(points) == 0:
            raise DataError(f"no {name} scan among the {len(labels)} training scans: both labels are needed")
        if len(points) > count:
            points = KMeans(n_clusters=count, n_init=1, random_state=seed).fit(points).cluster_centers_
        halves.append(torch.as_tensor(points, dtype=x.dtype, device=x.device))
    return torch.cat(halves)

"""Segment operations on packed bags: sum, maximum, softmax, noisy-or, and selection of bags.

In: a packed tensor and offsets, where bag `b` owns rows `offsets[b]:offsets[b + 1]`. Out: one value per bag
or per instance. There is no padding, so bags of any length share one call.

Shapes: B bags, N instances (slices) of the batch, trailing dimensions free.
"""

import torch
from torch import Tensor


def bag_index(offsets: Tensor) -> Tensor:
    """The bag of each instance (N,) int64, from offsets (B + 1,): 0 to N, strictly increasing.

    Raises:
        ValueError: `offsets` are not integers or do not start at 0, or a bag is empty.
    """
    if offsets.is_floating_point():
        raise ValueError(f"offsets must be whole numbers, got {offsets.dtype}")
    if offsets.ndim != 1 or len(offsets) < 2 or int(offsets[0]) != 0:
        raise ValueError(f"offsets must be one-dimensional, start at 0 and name a bag, got {offsets}")
    sizes = offsets.diff()
    if bool((sizes <= 0).any()):
        empty = int((sizes <= 0).nonzero()[0])
        raise ValueError(f"every bag needs at least one instance, bag {empty} has {int(sizes[empty])}")
    return torch.repeat_interleave(torch.arange(len(sizes), device=offsets.device), sizes)


def take_bags(offsets: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and new offsets (C + 1,) of a selection (C,) of bags, in the given order."""
    start, sizes = offsets[:-1][chosen], offsets.diff()[chosen]
    own = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    shift = torch.repeat_interleave(start - own[:-1], sizes)
    return torch.arange(int(own[-1]), device=offsets.device) + shift, own


def bag_sum(values: Tensor, bags: Tensor, n_bags: int) -> Tensor:
    """Sum over the instances of each bag along the last dimension: (..., N) to (..., B).

    `bags` (N,) is the bag of each instance, from `bag_index`.
    """
    return values.new_zeros(*values.shape[:-1], n_bags).index_add(-1, bags, values)


def bag_max(values: Tensor, bags: Tensor, n_bags: int) -> Tensor:
    """Maximum over the instances of each bag along the last dimension: (..., N) to (..., B)."""
    empty = values.new_full((*values.shape[:-1], n_bags), -torch.inf)
    return empty.scatter_reduce(-1, bags.expand_as(values), values, "amax")


def bag_softmax(scores: Tensor, bags: Tensor, n_bags: int) -> Tensor:
    """Softmax over the instances of each bag, (N,) to (N,); stable for any finite score."""
    peak = bag_max(scores.detach(), bags, n_bags)[bags]
    weights = (scores - peak).exp()
    return weights / bag_sum(weights, bags, n_bags)[bags]


def noisy_or_logit(s: Tensor) -> Tensor:
    """Logit of the noisy-or 1 - Π (1 - sigmoid f) from s = Σ log(1 + exp f), elementwise: log(exp(s) - 1).

    s is clamped at 1e-300, so that the logarithm stays finite where exp(f) underflows.
    """
    s = s.clamp(min=1e-300)
    return s + torch.log(-torch.expm1(-s))

"""Leave-one-out products over bags, the coupling between the slices of a scan in VGPMIL, and its two solvers.

For instance n of bag b: exp(Σ_{j∈b, j≠n} log(1 - π_j)), the probability under q(y) that no *other* instance
of its bag is positive (Castro-Macías et al. 2024, Eq. 25 written with 1 - E[max]). π is kept as its logit a,
so that log(1 - π) = logsigmoid(-a) is finite and exact for π as near to 1 as float64 can tell.

Shapes: B bags, N instances, R replicates in leading dimensions.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def log_none_positive(log_not: Tensor, bags: Tensor, n_bags: int) -> Tensor:
    """ℓ_b = Σ_{j∈b} log(1 - π_j).

    Args:
        log_not: (..., N) log(1 - π), at most 0.
        bags: (N,) bag of each instance.
        n_bags: B.

    Returns:
        (..., B).
    """
    return log_not.new_zeros(*log_not.shape[:-1], n_bags).index_add(-1, bags, log_not)


def leave_one_out(log_not: Tensor, bags: Tensor, n_bags: int) -> Tensor:
    """Π_{j∈b, j≠n} (1 - π_j) for every instance n, in O(N).

    `log_not` must come from the logits (`logsigmoid(-a)`), not from 1 - π. The subtraction ℓ_b - log(1 - π_n)
    has an absolute error of a few ulp of ℓ_b, which is the relative error of the product.

    Args:
        log_not: (..., N) log(1 - π).
        bags: (N,).
        n_bags: B.

    Returns:
        (..., N) in [0, 1].
    """
    total = log_none_positive(log_not, bags, n_bags)[..., bags]  # (..., N)
    return torch.exp((total - log_not).clamp(max=0.0))


def jacobi(logits: Tensor, mu: Tensor, pull: Tensor, bags: Tensor, n_bags: int) -> Tensor:
    """All π at once from the old ones (Eq. 25): a_n = μ_n + pull_n Π_{j≠n} (1 - π_j).

    Two slices of a positive bag can both see the other at 0, both rise, both see the other at 1 and both
    fall: this order may oscillate, and the evidence bound may fall.

    Args:
        logits: (..., N) a = logit π of the last sweep.
        mu: (..., N) mean of q(f).
        pull: (N,) log H · (2T_b - 1).
        bags: (N,).
        n_bags: B.

    Returns:
        (..., N) new logits.
    """
    return mu + pull * leave_one_out(logsigmoid(-logits), bags, n_bags)


def gauss_seidel(logits: Tensor, mu: Tensor, pull: Tensor, offsets: Tensor) -> Tensor:
    """One π after the other within each bag, all bags side by side (Eq. 25).

    Every step sees the newest others. Each step is the exact optimum of the evidence bound in that π, so the
    bound never falls. One sweep takes as many vector steps as the longest bag has instances.

    Args:
        logits: (..., N) a = logit π of the last sweep.
        mu: (..., N) mean of q(f).
        pull: (N,) log H · (2T_b - 1).
        offsets: (B + 1,) every bag has at least one instance.

    Returns:
        (..., N) new logits.
    """
    start, sizes = offsets[:-1], offsets.diff()
    bags = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
    # Longest bag first: the bags that still have an instance at position p are then a prefix.
    order = sizes.argsort(descending=True, stable=True)
    start, longest = start[order], int(sizes.max())
    alive = (sizes[order] > torch.arange(longest, device=sizes.device)[:, None]).sum(1).tolist()

    log_not = logsigmoid(-logits)  # (..., N)
    total = log_none_positive(log_not, bags, len(sizes))[..., order]  # (..., B)
    new = logits.clone()
    for position, k in enumerate(alive):
        rows = start[:k] + position  # (k,)
        others = (total[..., :k] - log_not[..., rows]).clamp(max=0.0)  # (..., k)
        a = mu[..., rows] + pull[rows] * torch.exp(others)
        new[..., rows] = a
        total[..., :k] = others + logsigmoid(-a)
    return new

"""Leave-one-out products over bags, and the Jacobi and Gauss-Seidel updates of π in VGPMIL.

In: log(1 - π) of all instances. Out: the product over the other instances of each bag, or updated π. For
instance n of bag b the product is exp(Σ_{j∈b, j≠n} log(1 - π_j)), the probability under q(y) that no *other*
instance of its bag is positive (Castro-Macías et al. 2024, Eq. 25 written with 1 - E[max]). π is stored as
its logit a, so that log(1 - π) = logsigmoid(-a) is finite and exact even for π near 1.

Shapes: B bags, N instances, P positions (instances of the longest bag), R replicates in leading dimensions.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ich_mil.kernels.implementation import Impl, by_triton
from ich_mil.kernels.segments import bag_index, bag_max, bag_sum


def leave_one_out(log_not: Tensor, bags: Tensor, n_bags: int) -> Tensor:
    """Leave-one-out product Π_{j∈b, j≠n} (1 - π_j) for every instance n (..., N), in O(N).

    `log_not` (..., N) must be computed from the logits (`logsigmoid(-a)`), not from 1 - π. The subtraction
    ℓ_b - log(1 - π_n), with ℓ_b the sum over the bag, has an absolute error of a few ulp of ℓ_b, which is the
    relative error of the product. `bags` (N,) is the bag of each instance.
    """
    total = bag_sum(log_not, bags, n_bags)[..., bags]  # (..., N) ℓ_b
    return torch.exp((total - log_not).clamp(max=0.0))


def leave_one_out_max(pi: Tensor, bags: Tensor, n_bags: int) -> Tensor:
    """Leave-one-out maximum 1 - max_{j∈b, j≠n} π_j, which the public code uses in place of the product.

    From π (..., N) to (..., N); 1 for a bag of one instance.
    """
    peak = bag_max(pi, bags, n_bags)[..., bags]  # (..., N)
    at_peak = pi == peak
    ties = bag_sum(at_peak.to(pi), bags, n_bags)[..., bags]
    second = bag_max(pi.masked_fill(at_peak, 0.0), bags, n_bags)[..., bags]
    return 1 - torch.where(at_peak & (ties == 1), second, peak)


class Turns:
    """Position-major order of instances, with which Gauss-Seidel needs no gather.

    The first instances of all bags come first, then all second instances, and so on, each time with the bags
    in order of decreasing length. The instances at one position are then a contiguous block of rows, and
    their bags are a prefix of the bag order.

    Attributes:
        order: (N,) row of the packed input for each row of this order; `values[order]` is in this order.
        bag_order: (B,) bags by decreasing length. The rank of a bag is its place in this order.
        bags: (N,) rank of the bag of each instance, in this order.
        sizes: (B,) number of instances of each bag, by rank (decreasing).
        counts: number of bags with an instance at each position.
        starts: (P,) row of the first instance at each position, in this order.
    """

    def __init__(self, offsets: Tensor) -> None:
        """Compute the order for bags with `offsets` (B + 1,); `ValueError` if a bag is empty."""
        bag_index(offsets)
        sizes = offsets.diff()
        self.bag_order = sizes.argsort(descending=True, stable=True)
        self.sizes = sizes[self.bag_order]
        positions = torch.arange(int(self.sizes[0]), device=sizes.device)[:, None]  # (P, 1)
        there = positions < self.sizes  # (P, B)
        self.order = (positions + offsets[:-1][self.bag_order])[there]
        self.bags = torch.arange(len(sizes), device=sizes.device).expand_as(there)[there]
        counts = there.sum(1)
        self.counts: list[int] = counts.tolist()
        self.starts = counts.cumsum(0) - counts

    def restore(self, values: Tensor) -> Tensor:
        """Convert values (..., N) from this order back to the packed order."""
        out = torch.empty_like(values)
        out[..., self.order] = values
        return out


def jacobi(
    log_not: Tensor, mu: Tensor, pull: Tensor, turns: Turns, *, impl: Impl = "auto"
) -> tuple[Tensor, Tensor]:
    """Jacobi update: all π at once from the old π (Eq. 25), a_n = μ_n + pull_b Π_{j≠n} (1 - π_j).

    The update may oscillate, and the ELBO may decrease. For example, two slices of a positive bag with π near
    0 both increase, because each sees the other at 0; then both decrease, because each sees the other at 1.

    Arguments and results are those of `gauss_seidel`.
    """
    if by_triton(impl, mu.device):
        return _by_kernel(log_not, mu, pull, turns, False)
    n_bags = len(turns.sizes)
    a = mu + pull[..., turns.bags] * leave_one_out(log_not, turns.bags, n_bags)
    return a, logsigmoid(-a)


def gauss_seidel(
    log_not: Tensor, mu: Tensor, pull: Tensor, turns: Turns, *, impl: Impl = "auto"
) -> tuple[Tensor, Tensor]:
    """Gauss-Seidel update: one π after the other within each bag, all bags in parallel (Eq. 25).

    Each step uses the newest π of the other instances and is the exact optimum of the ELBO in that π, so the
    ELBO never decreases. One sweep takes as many vector steps as the longest bag has instances.

    Args:
        log_not: (..., N) log(1 - π) of the last sweep, in the order of `turns`.
        mu: (..., N) mean of q(f), in the same order.
        pull: (..., B) log H · (2T_b - 1), by rank.
        turns: order of the instances.
        impl: "torch" takes one vector step per position, on the CPU; "auto" is "triton" on a GPU.

    Returns:
        New a = logit π and log(1 - π), each (..., N) in the same order, float64.
    """
    if by_triton(impl, mu.device):
        return _by_kernel(log_not, mu, pull, turns, True)
    total = bag_sum(log_not, turns.bags, len(turns.bag_order))  # (..., B)
    a, new = _gauss_seidel(turns.counts, *(part.cpu().numpy() for part in (log_not, total, mu, pull)))
    return torch.from_numpy(a).to(mu), torch.from_numpy(new).to(mu)


def _gauss_seidel(
    counts: list[int], log_not: np.ndarray, total: np.ndarray, mu: np.ndarray, pull: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The sweep in numpy, at a third of torch's cost per call on blocks of a few hundred."""
    a, new = np.empty_like(mu), np.empty_like(mu)
    starts = np.cumsum([0, *counts])
    for start, k in zip(starts, counts, strict=False):
        rows = slice(start, start + k)
        others = total[..., :k] - log_not[..., rows]  # (..., k)
        block = np.exp(others)
        block *= pull[..., :k]
        block += mu[..., rows]
        a[..., rows] = block
        # log(1 + eᵃ) = max(a, 0) + log(1 + e^-|a|)
        tail = np.abs(block)
        np.negative(tail, out=tail)
        np.log1p(np.exp(tail, out=tail), out=tail)
        tail += np.maximum(block, 0, out=block)
        new[..., rows] = np.negative(tail, out=tail)
        np.add(others, tail, out=total[..., :k])
    return a, new


def _by_kernel(
    log_not: Tensor, mu: Tensor, pull: Tensor, turns: Turns, newest: bool
) -> tuple[Tensor, Tensor]:
    """Both updates in Triton: Gauss-Seidel with `newest`, else Jacobi."""
    from ich_mil.kernels.triton.leave_one_out import sweep

    lead, n, n_bags = mu.shape[:-1], len(turns.order), len(turns.sizes)
    if log_not.shape != mu.shape or mu.shape[-1] != n:
        raise ValueError(
            f"log_not {tuple(log_not.shape)} and mu {tuple(mu.shape)} must be (..., {n}), as the turns are"
        )
    strength = pull.expand(*lead, n_bags).reshape(-1, n_bags)
    a, new = sweep(log_not.reshape(-1, n), mu.reshape(-1, n), strength, turns.starts, turns.sizes, newest)
    return a.reshape(mu.shape), new.reshape(mu.shape)

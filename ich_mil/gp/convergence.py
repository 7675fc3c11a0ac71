"""Whether chains of a sampler have found the same distribution: R-hat and effective sample size.

In: draws (R, L, Q). Out: one number for each quantity (Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021,
"Rank-normalization, folding, and localization"). Chains are cut in two, so that one that drifts disagrees
with itself; draws are replaced by normal quantiles of their ranks, so that heavy tails do no harm.

Shapes: R chains, L draws of each, Q quantities.
"""

import math

import torch
from torch import Tensor
from torch.special import ndtri


def _halves(draws: Tensor) -> Tensor:
    """Chains (R, L, Q) cut in two: (2R, L // 2, Q)."""
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]])


def _normal_scores(x: Tensor) -> Tensor:
    """Each draw replaced by the normal quantile of its rank among all draws of its quantity (R, L, Q)."""
    flat = x.flatten(0, 1).mT.contiguous()  # (Q, R·L)
    order = flat.sort().values
    # equal draws share the mean of their ranks; the two nearest to the median are equally far from it
    rank = (torch.searchsorted(order, flat) + torch.searchsorted(order, flat, right=True) + 1) / 2
    return ndtri((rank.to(x) - 0.375) / (flat.shape[1] + 0.25)).mT.reshape(x.shape)


def r_hat(draws: Tensor) -> Tensor:
    """Rank-normalised split R-hat (Vehtari et al. 2021, Eq. 1-4 and 14): the larger of bulk and folded.

    Args:
        draws: (R, L, Q), L at least 4.

    Returns:
        (Q,), near 1 where chains agree in location and in spread, and where all draws are the same.
    """
    halves = _halves(draws)
    middle = halves.flatten(0, 1).sort(0).values[halves.shape[0] * halves.shape[1] // 2 - 1 :][:2].mean(0)
    folded = (halves - middle).abs()
    values = []
    for x in (_normal_scores(halves), _normal_scores(folded)):
        n, within, between = x.shape[1], x.var(1).mean(0), x.mean(1).var(0)
        ratio = torch.where(between == 0, 0.0, between / within)  # both are 0 where nothing varies
        values.append(torch.sqrt((n - 1) / n + ratio))
    return torch.maximum(*values)


def bulk_ess(draws: Tensor) -> Tensor:
    """Bulk effective sample size (Vehtari et al. 2021, Eq. 9-13), by Geyer's initial monotone sequence.

    Args:
        draws: (R, L, Q), L at least 4.

    Returns:
        (Q,), at most S log10 S for S draws in all; S where all are the same.
    """
    x = _normal_scores(_halves(draws))
    chains, n, _ = x.shape
    centred = x - x.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * n, dim=1).abs().square()
    covariance = torch.fft.irfft(spectrum, dim=1)[:, :n].mean(0) / n  # (n, Q)
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + x.mean(1).var(0)
    rho = torch.where(total == 0, 0.0, 1 - (within - covariance) / total)
    rho[0] = 1
    pairs = rho[: n - n % 2].unflatten(0, (-1, 2)).sum(1)  # (n // 2, Q), positive in theory
    pairs = torch.where((pairs > 0).cumprod(0) == 1, pairs.cummin(0).values, 0.0)
    size = chains * n
    return size / (2 * pairs.sum(0) - 1).clamp(min=1 / math.log10(size))

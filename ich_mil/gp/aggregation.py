"""Aggregation rules from slice logits to scan logits: max, noisy-or, mean of the largest probabilities.

In: latent values f (..., N) of packed slices. Out: the logit of the probability of each scan (..., B). The
result is a logit because probabilities near 1 (the noisy-or of 35 slices at 0.05 is already 0.83) would round
to 1 before calibration.

Shapes: B scans, N slices of all.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ich_mil.gp.settings import Link, Rule, check_rule
from ich_mil.kernels.segments import bag_index, bag_max, bag_sum, noisy_or_logit


def latent_logit(f: Tensor, link: Link) -> Tensor:
    """Logit of the slice probability p(f), elementwise, exact in both tails."""
    if link == "logistic":
        return f
    return torch.special.log_ndtr(f) - torch.special.log_ndtr(-f)


def mean_logit(mu: Tensor, variance: Tensor, link: Link) -> Tensor:
    """Logit of E p(f) for f ~ N(μ, σ²), elementwise: MacKay's approximation, or exact for a probit link."""
    if link == "logistic":
        return mu / torch.sqrt(1 + math.pi / 8 * variance)
    return latent_logit(mu / torch.sqrt(1 + variance), link)


def scan_logit(f: Tensor, offsets: Tensor, rule: Rule) -> Tensor:
    """Logit of the probability p of each scan.

    * `noisy_or` (Castro-Macías et al. 2024, Eq. 34-35): p = 1 - Π(1 - sigmoid f), so logit p =
      log(exp(s) - 1) with s = Σ log(1 + exp f);
    * `max`: p = max sigmoid(f), so logit p = max f;
    * `top_3`: p = mean of the three largest sigmoid(f), or of all in a scan of fewer slices;
    * `top_20%`: p = mean of the largest fifth of the sigmoid(f), with their number rounded up.

    Args:
        f: (..., N) logits of the slices.
        offsets: (B + 1,). If they are on the CPU and the rule is max or noisy_or, the host does not wait for
            the device of f.
        rule: aggregation rule.

    Returns:
        (..., B).

    Raises:
        ValueError: an unknown rule.
    """
    check_rule(rule)
    n_bags = len(offsets) - 1
    bags = bag_index(offsets).to(f.device, non_blocking=True)
    if rule == "max":
        return bag_max(f, bags, n_bags)
    if rule == "noisy_or":  # not softplus: torch returns f for f > 20, which is 2e-9 too small
        return noisy_or_logit(-bag_sum(logsigmoid(-f), bags, n_bags))
    sizes = offsets.diff().to(f.device)
    longest = int(sizes.max())
    k = _largest(rule, sizes)  # (B,)
    position = torch.arange(longest, device=f.device)
    there = position < sizes[:, None]  # (B, longest)
    padded = f.new_full((*f.shape[:-1], *there.shape), -torch.inf)
    padded[..., there] = f
    top = padded.topk(int(k.max()), dim=-1).values  # (..., B, k)
    absent = position[: int(k.max())] >= k[:, None]  # (B, k)
    yes, no = (logsigmoid(side).masked_fill(absent, -torch.inf) for side in (top, -top))
    return torch.logsumexp(yes, -1) - torch.logsumexp(no, -1)


def sampled_scan_logit(f: Tensor, rule: Rule) -> Tensor:
    """Sampled logits of one scan from the sampled logits of its slices.

    `max` and `top` use the slices with the largest mean probability, the same slices in every sample. The
    maximum of n noisy values in each sample would grow with n, and bags with many instances far from the
    training instances would rank first.

    Args:
        f: (L, n) sampled logits of the slices.
        rule: as in `scan_logit`.

    Returns:
        (L, 1).

    Raises:
        ValueError: an unknown rule.
    """
    if rule == "noisy_or":
        return scan_logit(f, torch.tensor([0, f.shape[1]]), rule)
    k = int(_largest(rule, torch.tensor(f.shape[1])))
    indices = torch.sigmoid(f).mean(0).topk(k).indices
    return scan_logit(f[:, indices], torch.tensor([0, k]), "max" if k == 1 else f"top_{k}")


def top_slices(score: Tensor, offsets: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Slices that a rule uses if the slices of a scan are ranked by `score`: all of them for `noisy_or`.

    Args:
        score: (N,).
        offsets: (B + 1,).
        rule: aggregation rule.

    Returns:
        Their rows, and the offsets (B + 1,) of the scans among these rows.
    """
    bags, sizes = bag_index(offsets), offsets.diff()
    if rule == "noisy_or":
        return torch.arange(len(score), device=score.device), offsets
    order = score.argsort(descending=True, stable=True)
    order = order[bags[order].argsort(stable=True)]  # scan by scan, the largest first
    count = _largest(rule, sizes)
    rank = torch.arange(len(score), device=score.device) - offsets[bags]
    return order[rank < count[bags]], torch.cat([offsets[:1], count.cumsum(0)])


def _largest(rule: Rule, sizes: Tensor) -> Tensor:
    """Number of slices that `max` or `top` uses, for scans with `sizes` slices."""
    check_rule(rule)
    if rule == "max":
        return torch.ones_like(sizes)
    amount = rule.removeprefix("top_")
    share = amount.endswith("%")
    return (sizes * int(amount[:-1]) + 99) // 100 if share else sizes.clamp(max=int(amount))

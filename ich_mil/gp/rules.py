"""From the slices of a scan to the scan: max, noisy-or or the mean of the largest, all on the logit scale.

In: latent values f (..., N) of packed slices. Out: the logit of each scan's probability (..., B). Logits,
because probabilities next to 1 (the noisy-or of 35 slices at 0.05 is already 0.83) would round before
calibration could take them back.

Shapes: B scans, N slices of all.
"""

import math
import re
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ich_mil.kernels.segments import bag_index, bag_max, bag_sum, noisy_or_logit

Rule = str
"""'max', 'noisy_or', or the k largest slices: 'top_3' (any number), 'top_20%' (any share, rounded up)."""

Link = Literal["logistic", "probit"]
"""How a latent value is a probability: sigmoid(f), or the normal distribution function of f."""


def check_rule(rule: Rule) -> None:
    """Raise `ValueError` unless it is a rule."""
    if not (isinstance(rule, str) and re.fullmatch(r"max|noisy_or|top_[1-9]\d*|top_[1-9]\d?%", rule)):
        raise ValueError(
            f"rule must be one of max, noisy_or, top_3 (any number), top_20% (any share), got {rule!r}"
        )


def latent_logit(f: Tensor, link: Link) -> Tensor:
    """The logit of a slice's probability, elementwise, exact in both tails."""
    if link == "logistic":
        return f
    return torch.special.log_ndtr(f) - torch.special.log_ndtr(-f)


def mean_logit(mu: Tensor, variance: Tensor, link: Link) -> Tensor:
    """The logit of E p(f) for f ~ N(μ, σ²), elementwise: MacKay's approximation, or exactly for a probit."""
    if link == "logistic":
        return mu / torch.sqrt(1 + math.pi / 8 * variance)
    return latent_logit(mu / torch.sqrt(1 + variance), link)


def scan_logit(f: Tensor, offsets: Tensor, rule: Rule) -> Tensor:
    """Logit of each scan's probability.

    * `noisy_or` (Eq. 34-35): p = 1 - Π(1 - sigmoid f), so logit p = log(exp(s) - 1) with s = Σ log(1 + exp
      f);
    * `max`: p = max sigmoid(f), so logit p = max f;
    * `top_3`: p = mean of the three largest sigmoid(f), or of all in a scan of fewer slices;
    * `top_20%`: p = mean of the largest fifth of the sigmoid(f), rounded up.

    Args:
        f: (..., N) logits of the slices.
        offsets: (B + 1,); where they are on the CPU, and the rule is max or noisy_or, the host does not wait
            for the device of f.
        rule: which.

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
    if rule == "noisy_or":  # torch's softplus(f) is f from 20 on, 2e-9 too little
        return noisy_or_logit(-bag_sum(logsigmoid(-f), bags, n_bags))
    sizes = offsets.diff().to(f.device)
    longest = int(sizes.max())
    k = _largest(rule, sizes)  # (B,)
    place = torch.arange(longest, device=f.device)
    there = place < sizes[:, None]  # (B, longest)
    padded = f.new_full((*f.shape[:-1], *there.shape), -torch.inf)
    padded[..., there] = f
    top = padded.topk(int(k.max()), dim=-1).values  # (..., B, k)
    absent = place[: int(k.max())] >= k[:, None]  # (B, k)
    yes, no = (logsigmoid(side).masked_fill(absent, -torch.inf) for side in (top, -top))
    return torch.logsumexp(yes, -1) - torch.logsumexp(no, -1)


def sampled_scan_logit(f: Tensor, rule: Rule) -> Tensor:
    """Sampled logits of one scan from those of its slices.

    `max` and `top` take the slices with the largest mean probability, the same ones in every sample. Taken
    sample by sample, the largest of n noisy values grows with n: bags of many instances far from the
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
    places = torch.sigmoid(f).mean(0).topk(k).indices
    return scan_logit(f[:, places], torch.tensor([0, k]), "max" if k == 1 else f"top_{k}")


def _largest(rule: Rule, sizes: Tensor) -> Tensor:
    """How many slices `max` or `top` takes of scans with these numbers of slices."""
    check_rule(rule)
    if rule == "max":
        return torch.ones_like(sizes)
    amount = rule.removeprefix("top_")
    share = amount.endswith("%")
    return (sizes * int(amount[:-1]) + 99) // 100 if share else sizes.clamp(max=int(amount))

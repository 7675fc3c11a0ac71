"""From the slices of a scan to the scan: three rules, all on the logit scale.

In: latent values f (..., n) of the n slices of one scan. Out: the logit of the scan's probability (...,).
Logits, because probabilities next to 1 (the noisy-or of 35 slices at 0.05 is already 0.83) would round before
calibration could take them back.
"""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

Rule = Literal["max", "noisy_or", "top_3"]
RULES: tuple[str, ...] = get_args(Rule)


def scan_logit(f: Tensor, rule: Rule) -> Tensor:
    """Logit of the scan's probability.

    * `noisy_or` (Eq. 34-35): p = 1 - Π(1 - sigmoid f), so logit p = log(exp(s) - 1) with s = Σ log(1 + exp
      f);
    * `max`: p = max sigmoid(f), so logit p = max f;
    * `top_3`: p = mean of the three largest sigmoid(f), or of all in a scan of one or two slices.

    Args:
        f: (..., n) latent values of one scan's slices, n ≥ 1.
        rule: which.

    Returns:
        (...,).

    Raises:
        ValueError: an unknown rule.
    """
    match rule:
        case "max":
            return f.amax(-1)
        case "noisy_or":
            s = softplus(f).sum(-1).clamp(min=1e-300)  # its logarithm stays finite where exp(f) underflows
            return s + torch.log(-torch.expm1(-s))
        case "top_3":
            top = f.topk(min(3, f.shape[-1]), dim=-1).values
            return torch.logsumexp(logsigmoid(top), -1) - torch.logsumexp(logsigmoid(-top), -1)
    raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")

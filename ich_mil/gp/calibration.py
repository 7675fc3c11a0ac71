"""Calibration of scan probabilities on validation scans: Platt's sigmoid, through the uncertainty.

In: logits of scan probabilities, (L, B) posterior samples or (B,) values, and labels. Out: the slope and
intercept for which the *mean over samples* of sigmoid(slope · logit + intercept) fits the labels best,
because that mean is what is reported. With one sample this is Platt (1999) as in scikit-learn's
`CalibratedClassifierCV`.

Shapes: B scans, L samples.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import logsigmoid

from ich_mil.gp.rules import RULES, Rule

SLOPE_SPREAD = 10.0
"""Standard deviation of the weak normal prior on the slope, per standard deviation of the logits. Where the
samples spread wider than the labels warrant, steeper is better without end; a sensible slope is 1 to 4 of
these units."""


def platt(logits: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Slope, intercept and their loss against Platt's smoothed targets; the slope may come out at or below 0.

    Args:
        logits: (L, B) sampled scan logits, or (B,).
        labels: (B,) in {0, 1}, both present.

    Returns:
        (slope, intercept, the loss: cross-entropy of calibrated mean probability and smoothed target,
        averaged over scans, plus the small penalty of the prior on the slope).
    """
    z = torch.atleast_2d(logits.detach().double().cpu())  # (L, B)
    positive = labels.cpu() == 1  # (B,)
    n_positive = int(positive.sum())
    high, low = (n_positive + 1) / (n_positive + 2), 1 / (len(positive) - n_positive + 2)
    target = low + (high - low) * positive.double()  # (B,)
    # In units of their spread the two unknowns are of one size, whatever the scale of the logits.
    centre = float(z.mean())
    scale = float(z.std(correction=0)) or 1.0
    unit = (z - centre) / scale
    log_samples = math.log(len(z))

    @torch.enable_grad()
    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        # log p = log 1/L Σ_l sigmoid(a z_l + b), and likewise log (1 - p)
        ab = torch.tensor(parameters, dtype=torch.float64, requires_grad=True)
        a = ab[0] * unit + ab[1]
        log_p = torch.logsumexp(logsigmoid(a), 0) - log_samples  # (B,)
        log_q = torch.logsumexp(logsigmoid(-a), 0) - log_samples
        value = -(target * log_p + (1 - target) * log_q).mean()
        value = value + (ab[0] / SLOPE_SPREAD).square() / (2 * len(positive))
        (gradient,) = torch.autograd.grad(value, ab)
        return float(value.detach()), gradient.numpy()

    found = minimize(loss, np.array([1.0, 0.0]), jac=True, method="BFGS")
    a, b = found.x.tolist()
    return a / scale, b - a * centre / scale, float(found.fun)


@dataclass(frozen=True)
class ScanCalibration:
    """sigmoid(slope · logit(p) + intercept), for scan probabilities made by one rule.

    Attributes:
        slope: more than 0, so that the order of scans stays.
        intercept: any.
        rule: the rule whose logits it was fitted to; `predict` refuses another.
    """

    slope: float = 1.0
    intercept: float = 0.0
    rule: Rule = "max"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.slope) and self.slope > 0):
            raise ValueError(f"slope must be a finite number above 0, got {self.slope}")
        if not math.isfinite(self.intercept):
            raise ValueError(f"intercept must be finite, got {self.intercept}")
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")

    def apply(self, p: Tensor) -> Tensor:
        """Calibrated probability of p, elementwise; p = 0 and 1 stay."""
        return self.apply_logit(torch.logit(p))

    def apply_logit(self, logit: Tensor) -> Tensor:
        """Calibrated probability of a logit, elementwise: exact where p itself would round to 1."""
        return torch.sigmoid(self.slope * logit + self.intercept)

    @classmethod
    def fit(cls, logits: Tensor, labels: Tensor, *, rule: Rule) -> Self:
        """Fit to validation scans, with Platt's target smoothing, so that few or separable scans stay finite.

        A positive scan's target is (n₊ + 1) / (n₊ + 2), a negative one's 1 / (n₋ + 2) (Platt 1999).

        Args:
            logits: (L, B) sampled scan logits, or (B,).
            labels: (B,) in {0, 1}.
            rule: that made the logits.

        Returns:
            The calibration; the identity, with a warning, where one label is missing or the best slope is not
            above 0 (scans are ranked no better than by chance).
        """
        n_positive = int((labels == 1).sum())
        n_negative = len(labels) - n_positive
        if n_positive == 0 or n_negative == 0:
            warnings.warn(
                f"scan probabilities are left uncalibrated: {n_positive} of the {len(labels)} validation "
                "scans are positive, both labels are needed",
                stacklevel=2,
            )
            return cls(rule=rule)
        slope, intercept, _ = platt(logits, labels)
        if not slope > 0:
            warnings.warn(
                f"scan probabilities are left uncalibrated: the best slope on the {len(labels)} validation "
                f"scans is {slope:.3g} and would turn their order round; the head does not tell them apart",
                stacklevel=2,
            )
            return cls(rule=rule)
        return cls(slope=slope, intercept=intercept, rule=rule)

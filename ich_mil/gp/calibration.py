"""Platt scaling of scan and slice logits.

In: held-out scan logits by the head's rule and by `SLICE_RULE`, as (L, B) posterior samples or (B,) values,
and scan labels. Out: maps from scan and slice logits to probabilities (`Calibration`).

*Scans.* Slope and intercept are fitted so that the *mean over samples* of sigmoid(slope · logit + intercept)
matches the labels, because this mean is the reported probability. With one sample it is Platt (1999), as in
scikit-learn's `CalibratedClassifierCV`. Platt's smoothed targets keep the fit finite for few or separable
scans.

*Slices* have no labels. The scan label serves as the label of the highest fifth of the slices: Platt scaling
between the mean probability of that fifth (rule `top_20%`) and the scan label maps slice logits to
probabilities. The probability of a slice is capped by that of its scan.

*Prevalence.* Probabilities hold at the share of positive scans π that the calibration was fitted to. At
another share π' both intercepts move by logit π' - logit π (Saerens et al. 2002). This assumes that positive
scans look alike at both shares, and negative ones too. Slices move as scans do, because their map was
fitted to scan labels.

Shapes: B scans, L samples, n slices.
"""

import math
import warnings
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ich_mil.gp.settings import STRICT, Positive, Rule, Share

SLOPE_SPREAD = 10.0
"""Standard deviation of the weak normal prior on the slope, for logits in units of their standard deviation.
Without the prior the slope can grow without bound where the samples spread more widely than the labels
warrant. A typical slope is 1 to 4 in these units."""

FLAT = 1e-3
"""Smallest slope, for logits in units of their standard deviation. It keeps the order of scans, with
probabilities that are nearly constant."""

MOST_SLOPE = 1.8
"""Slope of calibrated held-out probabilities from which on a warning says that they are not sure enough."""
ENOUGH = 50
"""Smallest number of held-out scans for that warning; the slope of fewer is uncertain."""

SLICE_RULE: Rule = "top_20%"
"""Rule of the scan logit to which the slice map is fitted. Slice F1 on held-out folds of the RSNA features
changes by at most 0.01 for shares from 15 to 25 %."""

SLICE_PART = 0.2
"""Assumed share of positive slices in a positive scan, used where the logits do not rank the scans."""

NEWTON_STEPS = 30
"""Maximum number of Newton steps of `platt_loss`."""


def smoothed_targets(labels: Tensor) -> Tensor:
    """Platt's smoothed targets (B,) for labels (B,): (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), in float64."""
    positive = labels == 1
    n_positive = int(positive.sum())
    high, low = (n_positive + 1) / (n_positive + 2), 1 / (len(positive) - n_positive + 2)
    return low + (high - low) * positive.double()


def platt(logits: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Fit slope and intercept of Platt scaling to smoothed targets; the slope may be 0 or negative.

    Args:
        logits: (L, B) sampled scan logits, or (B,).
        labels: (B,) in {0, 1}, both present.

    Returns:
        Slope, intercept and loss. The loss is the cross-entropy between the calibrated mean probability and
        the smoothed target, averaged over scans, plus the small penalty of the prior on the slope.
    """
    z = torch.atleast_2d(logits.detach().double().cpu())  # (L, B)
    target = smoothed_targets(labels.cpu())  # (B,)
    # With standardised logits both parameters are of order 1, whatever the scale of the logits.
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
        value = value + (ab[0] / SLOPE_SPREAD).square() / (2 * len(target))
        (gradient,) = torch.autograd.grad(value, ab)
        return float(value.detach()), gradient.numpy()

    from scipy.optimize import minimize  # slow to import, and predictions do without

    result = minimize(loss, np.array([1.0, 0.0]), jac=True, method="BFGS")
    a, b = result.x.tolist()
    return a / scale, b - a * centre / scale, float(result.fun)


def _rising(logits: Tensor, labels: Tensor, *, part: float = 1.0) -> tuple[float, float]:
    """Slope and intercept of `platt`, with a slope of at least `FLAT` per standard deviation of the logits.

    At that minimum, all probabilities are close to `part` times the share of positive scans.
    """
    slope, shift, _ = platt(logits, labels)
    z = logits.double()
    least = FLAT / (float(z.std(correction=0)) or 1.0)
    if slope >= least:
        return slope, shift
    warnings.warn(
        f"probabilities are next to the share of positive scans: the head does not tell the {len(labels)} "
        f"held-out scans apart (best slope {slope:.3g})",
        stacklevel=3,
    )
    share = float(torch.logit(part * smoothed_targets(labels.cpu()).mean()))
    return least, share - least * float(z.mean())


def _warn_of_spread(probability: Tensor, labels: Tensor) -> None:
    """Warn if no slope makes the mean over samples as sure as the labels allow: (B,) calibrated means."""
    if len(labels) < ENOUGH:
        return
    slope, _, _ = platt(torch.logit(probability.double(), eps=1e-9), labels)
    if slope > MOST_SLOPE:
        warnings.warn(
            f"probabilities are less sure than the held-out labels allow (their logits should be {slope:.1f} "
            "times as large): the samples of a scan spread widely; try another density or preset",
            stacklevel=3,
        )


def platt_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of `platt` for R sets of logits at once, by at most `NEWTON_STEPS` damped Newton steps.

    The iteration starts at slope 0. A step that does not lower the loss is rejected and the next is halved.

    Args:
        logits: (R, B).
        labels: (B,) in {0, 1}, both present.

    Returns:
        (R,); NaN where a logit is not finite.
    """
    z = logits - logits.mean(1, keepdim=True)
    z = z / z.std(1, correction=0, keepdim=True).clamp(min=1e-300)
    target = smoothed_targets(labels).to(z)
    n, ridge = z.shape[1], 1 / (SLOPE_SPREAD**2 * z.shape[1])

    def value(a: Tensor, b: Tensor) -> Tensor:
        f = a[:, None] * z + b[:, None]
        return (softplus(f) - target * f).mean(1) + ridge * a.square() / 2

    # Start at slope 0 with the best intercept: from slope 1 the steps overshoot and do not converge where few
    # scans are separated from the others.
    a, b = torch.zeros_like(z[:, 0]), torch.logit(target.mean()).expand(len(z))
    loss, size = value(a, b), torch.ones_like(a)
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(a[:, None] * z + b[:, None])
        wrong, weight = p - target, p * (1 - p)
        ga, gb = (wrong * z).sum(1) / n + ridge * a, wrong.sum(1) / n
        haa, hab, hbb = (weight * z * z).sum(1) / n + ridge, (weight * z).sum(1) / n, weight.sum(1) / n
        determinant = (haa * hbb - hab * hab).clamp(min=1e-300)
        da, db = (hbb * ga - hab * gb) / determinant, (haa * gb - hab * ga) / determinant
        new_a, new_b = a - size * da, b - size * db
        new = value(new_a, new_b)
        better = new < loss
        moved = (size * (da.abs() + db.abs())).max()
        a, b, loss = (
            torch.where(better, new_a, a),
            torch.where(better, new_b, b),
            torch.where(better, new, loss),
        )
        size = torch.where(better, torch.ones_like(size), size / 2)
        if float(moved) < 1e-7:
            break
    return loss


@dataclass(frozen=True, config=STRICT)
class Calibration:
    """Platt scaling of the scan logits of one rule, and of slice logits.

    Attributes:
        rule: rule of the scan logits it was fitted to; `predict` refuses any other.
        slope: above 0, so that the order of scans is kept.
        intercept: any finite number.
        slice_slope: above 0.
        slice_intercept: any finite number.
        prevalence: share of positive scans at which the probabilities hold; None: unknown.
    """

    rule: Rule = "max"
    slope: Positive = 1.0
    intercept: float = 0.0
    slice_slope: Positive = 1.0
    slice_intercept: float = 0.0
    prevalence: Share | None = None

    def check(self, rule: Rule) -> None:
        """Raise `ValueError` unless the calibration was fitted to scan logits of this rule."""
        if self.rule != rule:
            raise ValueError(f"the calibration was fitted to the rule {self.rule!r}, not to {rule!r}")

    def then(self, joint: Self) -> Self:
        """Compose with `joint`, a calibration fitted to the output of `logits`: one map of the raw logits."""
        return type(self)(
            rule=self.rule,
            slope=joint.slope * self.slope,
            intercept=joint.slope * self.intercept + joint.intercept,
            slice_slope=joint.slice_slope * self.slice_slope,
            slice_intercept=joint.slice_slope * self.slice_intercept + joint.slice_intercept,
            prevalence=joint.prevalence,
        )

    def at_prevalence(self, share: float) -> Self:
        """The calibration at another share of positive scans, in (0, 1); `prevalence` must be known."""
        assert self.prevalence is not None  # the caller has checked it
        shift = math.log(share / (1 - share)) - math.log(self.prevalence / (1 - self.prevalence))
        return replace(
            self,
            intercept=self.intercept + shift,
            slice_intercept=self.slice_intercept + shift,
            prevalence=share,
        )

    def logits(self, both: Tensor) -> Tensor:
        """Calibrated logits from (2, L, B) logits by `rule` and by `SLICE_RULE`."""
        scans, slices = both
        return torch.stack(
            [self.slope * scans + self.intercept, self.slice_slope * slices + self.slice_intercept]
        )

    def scan(self, logit: Tensor) -> Tensor:
        """Probabilities of sampled scan logits (L, B)."""
        return torch.sigmoid(self.slope * logit + self.intercept)

    def slices(self, logit: Tensor, scan: Tensor) -> Tensor:
        """Probabilities of slice logits (..., n), capped by the probability of their scan (..., 1)."""
        return torch.minimum(torch.sigmoid(self.slice_slope * logit + self.slice_intercept), scan)

    @classmethod
    def fit(cls, logits: Tensor, slices: Tensor, labels: Tensor, *, rule: Rule) -> Self | None:
        """Fit a calibration to held-out scans.

        Args:
            logits: (L, B) sampled scan logits by `rule`, or (B,).
            slices: (L, B) sampled scan logits by `SLICE_RULE`, or (B,).
            labels: (B,) in {0, 1}.
            rule: rule of `logits`.

        Returns:
            The calibration; None, with a warning, if a label is missing. If the logits rank the scans no
            better than chance, all probabilities are close to the share of positive scans, with a warning.
        """
        n_positive = int((labels == 1).sum())
        if n_positive in (0, len(labels)):
            warnings.warn(
                f"probabilities are left uncalibrated: {n_positive} of the {len(labels)} held-out scans are "
                "positive, both labels are needed",
                stacklevel=2,
            )
            return None
        scans, of_slices = _rising(logits, labels), _rising(slices, labels, part=SLICE_PART)
        _warn_of_spread(torch.sigmoid(scans[0] * torch.atleast_2d(logits) + scans[1]).mean(0), labels)
        return cls(rule, *scans, *of_slices, prevalence=n_positive / len(labels))

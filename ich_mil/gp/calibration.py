"""Calibration of probabilities on held-out scans, through the uncertainty, from scan labels alone.

In: logits of scans and of what stands for their slices, (L, B) posterior samples or (B,) values, and scan
labels. Out: maps of scan and slice logits to probabilities.

*Scans.* Platt's sigmoid is fitted so that the *mean over samples* of sigmoid(slope · logit + intercept) fits
the labels best, because that mean is what is reported; with one sample this is Platt (1999) as in
scikit-learn's `CalibratedClassifierCV`. Temperature scaling has no intercept. Isotonic regression is
scikit-learn's, on the means Platt's sigmoid gives; the samples of a scan are then shrunk towards 0 or 1 until
their mean is its value. All are fitted to Platt's smoothed targets, so that few or separable scans stay
finite.

*Slices* have no labels. A scan's highest fifth stands for its label: Platt's sigmoid between that fifth's
mean probability (rule `top_20%`) and the scan label is what turns a slice's logit into its probability. And
a slice is never likelier than its scan.

Shapes: B scans, L samples, n slices.
"""

import math
import warnings
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Self, get_args

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ich_mil.gp.rules import Rule, check_rule

SLOPE_SPREAD = 10.0
"""Standard deviation of the weak normal prior on the slope, per standard deviation of the logits. Where the
samples spread wider than the labels warrant, steeper is better without end; a sensible slope is 1 to 4 of
these units."""

FLAT = 1e-3
"""Least slope, per standard deviation of the logits: the order of scans stays, and says nothing."""

SLICE_RULE: Rule = "top_20%"
"""The rule whose scan logit stands for the slices of a scan. Slice F1 on held-out folds of the RSNA features
is within 0.01 of itself from 15 to 25 %."""

SLICE_PART = 0.2
"""Of the slices of a positive scan, the share that counts as positive where nothing tells them apart."""

NEWTON_STEPS = 30
"""Of `platt_loss`, at most."""

Method = Literal["platt", "temperature", "isotonic"]


def smoothed_targets(labels: Tensor) -> Tensor:
    """Platt's targets (B,) for labels (B,): (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), in float64."""
    positive = labels == 1
    n_positive = int(positive.sum())
    high, low = (n_positive + 1) / (n_positive + 2), 1 / (len(positive) - n_positive + 2)
    return low + (high - low) * positive.double()


def platt(logits: Tensor, labels: Tensor, *, intercept: bool = True) -> tuple[float, float, float]:
    """Slope, intercept and their loss against Platt's smoothed targets; the slope may come out at or below 0.

    Args:
        logits: (L, B) sampled scan logits, or (B,).
        labels: (B,) in {0, 1}, both present.
        intercept: fit one; otherwise it is 0 (temperature scaling).

    Returns:
        (slope, intercept, the loss: cross-entropy of calibrated mean probability and smoothed target,
        averaged over scans, plus the small penalty of the prior on the slope).
    """
    z = torch.atleast_2d(logits.detach().double().cpu())  # (L, B)
    target = smoothed_targets(labels.cpu())  # (B,)
    # In units of their spread the two unknowns are of one size, whatever the scale of the logits.
    centre = float(z.mean()) if intercept else 0.0
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
        return float(value.detach()), gradient.numpy() * [1.0, float(intercept)]

    found = minimize(loss, np.array([1.0, 0.0]), jac=True, method="BFGS")
    a, b = found.x.tolist()
    return a / scale, b - a * centre / scale, float(found.fun)


def _rising(
    logits: Tensor, labels: Tensor, *, intercept: bool = True, part: float = 1.0
) -> tuple[float, float]:
    """Slope and intercept of `platt`, the slope at least `FLAT` per standard deviation of the logits.

    With that slope probabilities are next to `part` of the share of positive scans.
    """
    slope, shift, _ = platt(logits, labels, intercept=intercept)
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
    return least, share - least * float(z.mean()) if intercept else 0.0


def platt_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of `platt` for R sets of logits at once, by at most `NEWTON_STEPS` damped Newton steps.

    The first is from slope 0, and a step that does not lower the loss is halved.

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

    # Best constant first: from slope 1 the steps overshoot where few scans stand apart, and do not arrive.
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


@dataclass(frozen=True)
class Calibration:
    """Maps of scan logits, made by one rule, and of slice logits to probabilities.

    Attributes:
        rule: that made the scan logits it was fitted to; `predict` refuses another.
        method: of the scan map.
        slope: more than 0, so that the order of scans stays.
        intercept: 0 with `temperature`.
        knots: of isotonic regression, (mean of the sigmoid, probability), both rising, interpolated between.
        slice_slope: more than 0.
        slice_intercept: any.
    """

    rule: Rule = "max"
    method: Method = "platt"
    slope: float = 1.0
    intercept: float = 0.0
    knots: tuple[tuple[float, float], ...] = ()
    slice_slope: float = 1.0
    slice_intercept: float = 0.0

    def __post_init__(self) -> None:
        check_rule(self.rule)
        for name in ("slope", "slice_slope"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a finite number above 0, got {getattr(self, name)}")
        for name in ("intercept", "slice_intercept"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")
        if self.method not in get_args(Method):
            raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {self.method!r}")
        object.__setattr__(self, "knots", tuple((float(x), float(y)) for x, y in self.knots))
        if (self.method == "isotonic") != bool(self.knots):
            raise ValueError(f"knots must be given for isotonic and only then, method is {self.method!r}")
        if any(b[0] <= a[0] or b[1] < a[1] for a, b in pairwise(self.knots)):
            raise ValueError("knots must rise")

    def check(self, rule: Rule) -> None:
        """Raise `ValueError` unless it was fitted to scan logits of this rule."""
        if self.rule != rule:
            raise ValueError(f"the calibration was fitted to the rule {self.rule!r}, not to {rule!r}")

    def then(self, joint: Self) -> Self:
        """`joint`, fitted to the `logits` that this calibration gives, as a map of the raw logits."""
        return replace(
            joint,
            rule=self.rule,
            slope=joint.slope * self.slope,
            intercept=joint.slope * self.intercept + joint.intercept,
            slice_slope=joint.slice_slope * self.slice_slope,
            slice_intercept=joint.slice_slope * self.slice_intercept + joint.slice_intercept,
        )

    def logits(self, both: Tensor) -> Tensor:
        """Calibrated logits of (2, L, B), of scans and of what stands for their slices; without `knots`."""
        scans, slices = both
        return torch.stack(
            [self.slope * scans + self.intercept, self.slice_slope * slices + self.slice_intercept]
        )

    def scan(self, logit: Tensor) -> Tensor:
        """Probabilities of sampled scan logits (L, B): exact where raw probabilities would round to 1."""
        p = torch.sigmoid(self.slope * logit + self.intercept)
        if not self.knots:
            return p
        mean = p.mean(0)  # (B,)
        x, y = zip(*self.knots, strict=True)
        aim = torch.as_tensor(np.interp(mean.cpu().numpy(), x, y)).to(p)
        # towards 0 by the factor aim / mean, or towards 1 likewise: the mean is then `aim`
        return torch.where(aim < mean, p * (aim / mean), 1 - (1 - p) * ((1 - aim) / (1 - mean)))

    def slices(self, logit: Tensor, scan: Tensor) -> Tensor:
        """Probabilities of slice logits (..., n), none above that of their scan (..., 1)."""
        return torch.minimum(torch.sigmoid(self.slice_slope * logit + self.slice_intercept), scan)

    @classmethod
    def fit(
        cls, logits: Tensor, slices: Tensor, labels: Tensor, *, rule: Rule, method: Method = "platt"
    ) -> Self | None:
        """Fit to held-out scans.

        Args:
            logits: (L, B) sampled scan logits by `rule`, or (B,).
            slices: (L, B) sampled scan logits by `SLICE_RULE`, or (B,).
            labels: (B,) in {0, 1}.
            rule: that made `logits`.
            method: of the scan map.

        Returns:
            The calibration; None, with a warning, where one label is missing. Where scans are ranked no
            better than by chance, probabilities are next to the share of positive scans, with a warning.
        """
        n_positive = int((labels == 1).sum())
        if n_positive in (0, len(labels)):
            warnings.warn(
                f"probabilities are left uncalibrated: {n_positive} of the {len(labels)} held-out scans are "
                "positive, both labels are needed",
                stacklevel=2,
            )
            return None
        slope, intercept = _rising(logits, labels, intercept=method != "temperature")
        slice_slope, slice_intercept = _rising(slices, labels, part=SLICE_PART)
        if method != "isotonic":
            return cls(rule, method, slope, intercept, (), slice_slope, slice_intercept)
        p = torch.sigmoid(slope * torch.atleast_2d(logits).double() + intercept).mean(0)  # (B,)
        targets = smoothed_targets(labels.cpu()).numpy()
        step = IsotonicRegression(out_of_bounds="clip").fit(p.cpu().numpy(), targets)
        knots = tuple(zip(step.X_thresholds_.tolist(), step.y_thresholds_.tolist(), strict=True))
        return cls(rule, method, slope, intercept, knots, slice_slope, slice_intercept)

"""Posterior density of all coefficients and of the scales of their slopes.

Intercepts are N(0, 16). With prior `learned` the slopes of a block, those of one modality in one tier, are
N(0, τ²) with a scale of the block's own, τ ~ half-normal(1) on standardised features. The position of a
sampler is x = (u, log τ) with slopes θ = u τ^(1-w) and intercepts θ = 4 u: centred (w = 1) where the data say
more than the prior, non-centred (w = 0) where they say nothing, and between (Papaspiliopoulos, Roberts and
Sköld 2007). With prior `thesis` slopes are N(0, 4), and x is θ over its prior deviation. A fixed wide prior
inflates slopes where the data identify their direction better than their size.

Shapes: R positions, C coefficients, S scales (0 with `thesis`), X = C + S.
"""

import torch
from torch import Tensor

from ich_mil.multimodal.inference.likelihood import TOLERANCE, Likelihood
from ich_mil.multimodal.settings import Prior

INTERCEPT_DEVIATION, THESIS_DEVIATION = 4.0, 2.0
"""Prior standard deviations: N(0, 16) and N(0, 4), thesis of seed 003, section 2.2.1."""

LEAST_SCALE = 0.1
"""Least scale at the start of inference."""


class Target:
    """Log-density of x up to a constant.

    Attributes:
        likelihood: of the bags.
        prior_name: `learned` or `thesis`.
        blocks: (C,) number of the block of each coefficient, -1 for intercepts.
        scales: S.
        centring: (S,) w of each block.
        counts: (S,) number of its slopes.
    """

    def __init__(self, likelihood: Likelihood, prior: Prior, centring: Tensor | None = None) -> None:
        self.likelihood, self.prior_name = likelihood, prior
        modalities = len(likelihood.widths)
        inner = [[-1] + [m] * (width - 1) for m, width in enumerate(likelihood.widths)]
        outer = [[modalities + m] * (width - 1) for m, width in enumerate(likelihood.widths)]
        blocks = [number for part in (*inner, [-1], *outer) for number in part]
        self.blocks = torch.tensor(blocks, device=likelihood.signs.device)
        self.scales = 2 * modalities if prior == "learned" else 0
        self._slopes = self.blocks >= 0
        self.counts = torch.bincount(self.blocks[self._slopes])[: self.scales]
        self.centring = likelihood.signs.new_zeros(self.scales) if centring is None else centring

    @property
    def size(self) -> int:
        """X."""
        return len(self.blocks) + self.scales

    def factors(self, x: Tensor) -> Tensor:
        """θ / u (..., C) at positions (..., X)."""
        if not self.scales:
            fixed = torch.where(self._slopes, THESIS_DEVIATION, INTERCEPT_DEVIATION)
            return fixed.to(x).expand(*x.shape[:-1], -1)
        scales = ((1 - self.centring) * x[..., len(self.blocks) :]).exp()
        return torch.where(self._slopes, scales[..., self.blocks.clamp(min=0)], INTERCEPT_DEVIATION)

    def theta(self, x: Tensor) -> Tensor:
        """Coefficients (..., C) of positions (..., X)."""
        return x[..., : len(self.blocks)] * self.factors(x)

    def position(self, theta: Tensor, logs: Tensor) -> Tensor:
        """Position (X,) of coefficients (C,) and log-scales (S,)."""
        factors = self.factors(torch.cat([theta, logs]))
        return torch.cat([theta / factors, logs])

    def sizes(self, theta: Tensor) -> Tensor:
        """Log root mean square (S,) of the slopes of each block."""
        total = self.by_block(theta.square())
        return (total / self.counts).clamp(min=LEAST_SCALE**2).log() / 2

    def __call__(self, x: Tensor, *, tolerance: float = TOLERANCE) -> tuple[Tensor, Tensor]:
        """Log-densities (R,) at x (R, X) and their gradients (R, X); tolerance as in `Likelihood`."""
        log_likelihood, gradient = self.likelihood(self.theta(x), tolerance=tolerance)
        value, slope = self.prior(x)
        return log_likelihood + value, self.pull(x, gradient) + slope

    def prior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log-densities (...) of the prior at x (..., X) and their gradients."""
        u, logs = x[..., : len(self.blocks)], x[..., len(self.blocks) :]
        precision = torch.ones_like(u)
        if self.scales:
            slope_precision = (-2 * self.centring * logs).exp()[..., self.blocks.clamp(min=0)]
            precision = torch.where(self._slopes, slope_precision, 1.0)
        square = (2 * logs).exp()
        # of log τ: log τ - τ²/2; of u: -u² τ^(-2w) / 2 and -w log τ for each slope
        value = -(u.square() * precision).sum(-1) / 2
        value = value + (logs - square / 2 - self.centring * self.counts * logs).sum(-1)
        by_log = 1 - square + self.centring * (self.by_block(u.square() * precision) - self.counts)
        return value, torch.cat([-u * precision, by_log], dim=-1)

    def pull(self, x: Tensor, gradients: Tensor) -> Tensor:
        """Gradients (..., X) with respect to x of gradients (..., C) with respect to the coefficients."""
        scaled = gradients * self.factors(x)
        by_log = (1 - self.centring) * self.by_block(scaled * x[..., : len(self.blocks)])
        return torch.cat([scaled, by_log], dim=-1)

    def by_block(self, values: Tensor) -> Tensor:
        """Sums (..., S) of values (..., C) over the slopes of each block."""
        out = values.new_zeros(*values.shape[:-1], self.scales)
        if not self.scales:
            return out
        return out.index_add(-1, self.blocks[self._slopes], values[..., self._slopes])

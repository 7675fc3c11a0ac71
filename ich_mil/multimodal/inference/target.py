"""Posterior density of all coefficients and of the scales of their slopes.

Intercepts are N(0, 16). With prior `learned` the slopes of a block, those of one modality in one tier, are
N(0, τ²) with a scale of the block's own, τ ~ half-normal(1) on standardised features; the position of a
sampler is non-centred, x = (θ / prior deviation, log τ). With prior `thesis` slopes are N(0, 4), and x is
θ / prior deviation. A fixed wide prior inflates slopes where the data identify their direction better than
their size.

Shapes: C coefficients, S scales (0 with `thesis`), X = C + S.
"""

import torch
from torch import Tensor

from ich_mil.multimodal.inference.likelihood import Likelihood
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
    """

    def __init__(self, likelihood: Likelihood, prior: Prior) -> None:
        self.likelihood, self.prior_name = likelihood, prior
        modalities = len(likelihood.widths)
        inner = [[-1] + [m] * (width - 1) for m, width in enumerate(likelihood.widths)]
        outer = [[modalities + m] * (width - 1) for m, width in enumerate(likelihood.widths)]
        blocks = [number for part in (*inner, [-1], *outer) for number in part]
        self.blocks = torch.tensor(blocks, device=likelihood.signs.device)
        self.scales = 2 * modalities if prior == "learned" else 0
        self._slopes = self.blocks >= 0

    def copy(self) -> "Target":
        """A target with buffers of its own, for another thread."""
        own = self.likelihood
        return Target(Likelihood(own.rows, own.signs, own.columns), self.prior_name)

    @property
    def size(self) -> int:
        """X."""
        return len(self.blocks) + self.scales

    def deviations(self, x: Tensor) -> Tensor:
        """Prior deviations (..., C) of the coefficients at positions (..., X)."""
        if not self.scales:
            fixed = torch.where(self._slopes, THESIS_DEVIATION, INTERCEPT_DEVIATION)
            return fixed.to(x).expand(*x.shape[:-1], -1)
        scales = x[..., len(self.blocks) :].exp()
        return torch.where(self._slopes, scales[..., self.blocks.clamp(min=0)], INTERCEPT_DEVIATION)

    def theta(self, x: Tensor) -> Tensor:
        """Coefficients (..., C) of positions (..., X)."""
        return x[..., : len(self.blocks)] * self.deviations(x)

    def rescaled(self, x: Tensor) -> Tensor:
        """The position of the same coefficients with each scale at the root mean square of its slopes."""
        if not self.scales:
            return x
        theta, blocks = self.theta(x), self.blocks[self._slopes]
        total = x.new_zeros(self.scales).index_add_(0, blocks, theta[self._slopes].square())
        logs = (total / torch.bincount(blocks)).clamp(min=LEAST_SCALE**2).log() / 2
        position = torch.cat([theta, logs])
        position[: len(theta)] /= self.deviations(position)
        return position

    def __call__(self, x: Tensor) -> tuple[float, Tensor]:
        """Log-density at x (X,) and its gradient (X,)."""
        values, scores = self.likelihood(self.theta(x))
        value, slope = self.prior(x)
        return float(values.sum()) + value, self.pull(x, scores.sum(0)) + slope

    def prior(self, x: Tensor) -> tuple[float, Tensor]:
        """Log-density of the prior at x (X,) and its gradient."""
        z, logs = x[: len(self.blocks)], x[len(self.blocks) :]
        square = (2 * logs).exp()
        value = -z.square().sum() / 2 + (logs - square / 2).sum()  # + log τ: the density is of log τ
        return float(value), torch.cat([-z, 1 - square])

    def pull(self, x: Tensor, gradients: Tensor) -> Tensor:
        """Gradients (..., X) with respect to x of gradients (..., C) with respect to the coefficients."""
        scaled = gradients * self.deviations(x)
        if not self.scales:
            return scaled
        by_log = (scaled * x[: len(self.blocks)])[..., self._slopes]
        total = scaled.new_zeros(*scaled.shape[:-1], self.scales)
        return torch.cat([scaled, total.index_add_(-1, self.blocks[self._slopes], by_log)], dim=-1)

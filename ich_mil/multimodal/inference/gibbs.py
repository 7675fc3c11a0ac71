"""Gibbs sampling of the model of `variational`: draws from the posterior itself; MICProB with one modality.

In: chunks of bags, labels, prior. Out: draws of all coefficients, with R-hat and bulk effective sample size
(`ich_mil.convergence`, the definitions of ArviZ). Chains run side by side. One sweep:

    δ_ij | θ, b, other δ of its bag    odds Φ(h b) Φ(s_i η₁) / (Φ(-h b) Φ(s_i η₀)), one after another
    U | δ, b and y* | δ, θ             N(h b, 1) and N(g θ, 1), on the sides of δ and of the label
    scales of U and of y*              see below
    b | U and θ | y*, δ                normal

η₁ and η₀ are E[y*] of the bag with and without the instance; U and y* are integrated out of the first step
and drawn at once, so (δ, U, y*) is one block. The scales are the parameter expansion of Liu & Wu (JASA 94,
1999): U ← c U with c² ~ Gamma(N/2, rate (UᵀU - UᵀH V HᵀU)/2), which leaves the posterior as it is and frees
the coefficients from the length of U; likewise y*.

Shapes: R chains, L draws of each, B bags, n instances of a block, P inner coefficients of a modality, Q outer
ones.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtr

from ich_mil.convergence import bulk_ess, r_hat
from ich_mil.multimodal.inference.restarts import START_DEVIATION
from ich_mil.multimodal.inference.truncated import draw_signed
from ich_mil.multimodal.inference.variational import Model
from ich_mil.multimodal.layout import Block

R_HAT_LIMIT = 1.05
"""Above it the chains disagree."""


@dataclass(frozen=True)
class Draws:
    """Kept draws, chain after chain.

    Attributes:
        inner: (R·L, P) draws of b of each modality.
        outer: (R·L, Q) draws of θ.
        r_hat: largest of all coefficients.
        effective_samples: smallest bulk effective sample size of all coefficients.
    """

    inner: list[Tensor]
    outer: Tensor
    r_hat: float
    effective_samples: float


class Chains:
    """State of R chains.

    Attributes:
        signs: (B,) labels -1 or 1, or (R, B) labels of each chain.
        inner: (R, P) b of each modality.
        outer: (R, Q) θ.
        primary: (R, n) δ of each chunk and modality; None where the chunk lacks it.
    """

    def __init__(self, model: Model, chains: int, generator: torch.Generator) -> None:
        self.model, self.chains, self.generator = model, chains, generator
        self.signs = model.signs
        like = model.signs
        self.roots = []  # lower L of V = L Lᵀ, the covariance (P, P) of b | U
        for gram, precision in zip(model.inner_gram, model.inner_precision, strict=True):
            covariance = torch.cholesky_inverse(torch.linalg.cholesky(gram[0] + precision.diag()))
            self.roots.append(torch.linalg.cholesky(covariance))
        self.inner = [START_DEVIATION * self._normal(len(precision)) for precision in model.inner_precision]
        self.outer = like.new_zeros(chains, model.columns.size)
        self.primary: list[list[Tensor | None]] = [
            [
                None if block is None else self._bernoulli(ndtr(b @ block.h.mT))
                for b, block in zip(self.inner, chunk.blocks, strict=True)
            ]
            for chunk in model.chunks
        ]

    def sweep(self) -> None:
        """Draw every variable once."""
        model, columns = self.model, self.model.columns
        gram = self.outer.new_zeros(self.chains, columns.size, columns.size)
        pull = torch.zeros_like(self.outer)
        square = self.outer.new_zeros(self.chains)
        inner_pull = [torch.zeros_like(b) for b in self.inner]
        inner_square = [torch.zeros_like(square) for _ in self.inner]
        for place, chunk in enumerate(model.chunks):
            signs, parts = self.signs[..., chunk.bags], self.primary[place]
            eta = self.outer[:, :1].expand(-1, signs.shape[-1]).clone()  # (R, b) E[y*]
            effects: list[Tensor | None] = []
            for block, delta, at in zip(chunk.blocks, parts, columns.places, strict=True):
                if block is None or delta is None:
                    effects.append(None)
                    continue
                effect = self.outer[:, at] @ block.x.mT  # (R, n) hβ
                eta.index_add_(1, block.bags, delta * effect)
                effects.append(effect)
            g = [torch.ones_like(eta)[..., None]]
            for m, (block, own) in enumerate(zip(chunk.blocks, effects, strict=True)):
                size = columns.places[m].stop - columns.places[m].start
                total = eta.new_zeros(*eta.shape, size)
                g.append(total)
                if block is None or own is None:
                    continue
                mu = self.inner[m] @ block.h.mT
                drawn = self._draw_primary(block, mu, own, parts[m], eta, signs)
                parts[m] = drawn
                total.index_add_(1, block.bags, drawn[..., None] * block.x)
                u = draw_signed(mu, 2 * drawn - 1, self.generator)
                inner_pull[m] += u @ block.h
                inner_square[m] += u.square().sum(1)
            latent = draw_signed(eta, signs.expand_as(eta), self.generator)
            regressors = torch.cat(g, dim=-1)  # (R, b, Q)
            gram += regressors.mT @ regressors
            pull += (latent[:, None] @ regressors)[:, 0]
            square += latent.square().sum(1)
        for m, root in enumerate(self.roots):
            inner_half = inner_pull[m] @ root  # (R, P), V = L Lᵀ
            scale = self._scale(model.sizes[m], inner_square[m] - inner_half.square().sum(1))
            self.inner[m] = (scale * inner_half + self._normal(len(root))) @ root.mT
        lower = torch.linalg.cholesky(gram + model.outer_precision.diag())  # precision = C Cᵀ
        half = torch.linalg.solve_triangular(lower, pull[..., None], upper=False)[..., 0]
        scale = self._scale(self.signs.shape[-1], square - half.square().sum(1))
        noise = scale * half + self._normal(columns.size)
        self.outer = torch.linalg.solve_triangular(lower.mT, noise[..., None], upper=True)[..., 0]

    def _draw_primary(
        self, block: Block, mu: Tensor, effect: Tensor, old: Tensor | None, eta: Tensor, signs: Tensor
    ) -> Tensor:
        """New δ (R, n) of a block, one instance after another; `eta` (R, b) follows in place."""
        assert old is not None
        here, delta = block.bag_order, torch.empty_like(mu)
        base = log_ndtr(mu) - log_ndtr(-mu)
        current, sign, start = eta[:, here], signs[..., here], 0
        for k in block.counts:
            rows = slice(start, start + k)
            without = current[:, :k] - old[:, rows] * effect[:, rows]
            ends = log_ndtr(sign[..., :k] * torch.stack([without, without + effect[:, rows]]))  # (2, R, k)
            delta[:, rows] = self._bernoulli(torch.sigmoid(base[:, rows] + ends[1] - ends[0]))
            current[:, :k] = without + delta[:, rows] * effect[:, rows]
            start += k
        eta[:, here] = current
        return delta

    def _scale(self, count: int, rest: Tensor) -> Tensor:
        """Draws c (R, 1), c² ~ Gamma(count / 2, rate rest / 2)."""
        shape = torch.full_like(rest, count / 2)
        return (2 * torch._standard_gamma(shape, generator=self.generator) / rest).sqrt()[:, None]

    def _bernoulli(self, p: Tensor) -> Tensor:
        """Draws of 0 or 1, of the shape of p."""
        u = torch.rand(p.shape, generator=self.generator, dtype=p.dtype, device=p.device)
        return (u < p).to(p)

    def _normal(self, size: int) -> Tensor:
        """Standard normal draws (R, size)."""
        like = self.model.signs
        return torch.randn(self.chains, size, generator=self.generator, dtype=like.dtype, device=like.device)


def sample_posterior(
    model: Model, *, chains: int, burn_in: int, draws: int, generator: torch.Generator
) -> Draws:
    """Run R = `chains` chains and keep L = `draws` sweeps of each after `burn_in`.

    Warns:
        UserWarning: the chains disagree.
    """
    state = Chains(model, chains, generator)
    kept: list[Tensor] = []
    for sweep in range(burn_in + draws):
        state.sweep()
        if sweep >= burn_in:
            kept.append(torch.cat([*state.inner, state.outer], dim=1))
    all_draws = torch.stack(kept, dim=1)  # (R, L, ΣP + Q)
    worst, effective = float(r_hat(all_draws).max()), float(bulk_ess(all_draws).min())
    if not worst <= R_HAT_LIMIT:
        warnings.warn(
            f"the chains of the Gibbs sampler disagree: R-hat {worst:.3f}, effective sample size "
            f"{effective:.0f} of {chains * draws} draws; take more draws and a longer burn-in",
            stacklevel=2,
        )
    widths = [b.shape[1] for b in state.inner]
    parts = all_draws.flatten(0, 1).split([*widths, model.columns.size], dim=1)
    return Draws(list(parts[:-1]), parts[-1], worst, effective)

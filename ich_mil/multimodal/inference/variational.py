"""Variational inference for vMMIC: coordinate ascent on the evidence bound, R replicates at once.

In: chunks of bags and their labels. Out: q of the coefficients of both tiers, and the bound (thesis of seed
003, chapter 2, with the corrections below). Bag i, instance j of modality m, h = (1, x):

    U_ij ~ N(h_ij b_m, 1)     δ_ij = [U_ij > 0]     y*_i ~ N(α + Σ_j δ_ij h_ij β_m, 1)     y_i = [y*_i > 0]

δ is a function of U, so a product q(δ) q(U), as printed, has no finite bound. Here q(δ, U) is joint:

    q(δ_ij = 1) = σ( logit Φ(μ_ij) + E[(y*_i - α - Σ_{k≠j} δ_ik h_ik β) h_ij β] - ½ E[(h_ij β)²] )
    q(U_ij | δ_ij) = N(μ_ij, 1) on the side of δ_ij,      μ_ij = h_ij E[b_m]

The expectation over θ = (α, β) needs S = E[θθᵀ], with the full covariance of q(θ). One instance after another
within a bag, all bags side by side, each update is the optimum of the bound in one factor: the bound never
falls. With S_m = L Lᵀ the block of a modality and z = Lᵀ h, a step is one inner product:

    h (E[y*] m - S_m,others ḡ_others - S_m Σ_k p_k h_k) = zᵀ v,      v falls by Δp z where p_j rises by Δp

Shapes: R replicates, B bags, n instances of a block, P regressors of a modality, Q coefficients of the outer
tier.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.special import ndtr

from ich_mil.multimodal.inference.coefficients import Coefficients, Prior
from ich_mil.multimodal.inference.factors import State, Statistics
from ich_mil.multimodal.inference.truncated import sides, signed_mean
from ich_mil.multimodal.layout import Block, Chunk, Columns


class Model:
    """The data, prior and updates of the factors; it holds no factor itself."""

    def __init__(
        self, chunks: Sequence[Chunk], signs: Tensor, columns: Columns, prior: Prior, widths: Sequence[int]
    ) -> None:
        """Sum what depends on the features alone; `signs` (B,) are labels ±1, `widths` P of each modality."""
        self.chunks, self.signs, self.columns, self.prior = chunks, signs, columns, prior
        self.inner_precision = [
            prior.precision(torch.arange(width, device=signs.device) == 0) for width in widths
        ]
        self.outer_precision = prior.precision(torch.arange(columns.size, device=signs.device) == 0)
        self.inner_gram = [signs.new_zeros(1, width, width) for width in widths]
        self.sizes = [0 for _ in widths]  # instances of each modality
        for chunk in chunks:
            for m, block in enumerate(chunk.blocks):
                if block is not None:
                    self.inner_gram[m] += block.h.mT @ block.h
                    self.sizes[m] += len(block.h)

    def start(self, means: Sequence[Tensor]) -> State:
        """Factors of R replicates from means (R, P) of the inner coefficients: p = Φ(h b), then q(θ)."""
        inner = [
            Coefficients.posterior(precision, gram, gram.new_zeros(1, len(precision)))._replace(mean=mean)
            for precision, gram, mean in zip(self.inner_precision, self.inner_gram, means, strict=True)
        ]
        primary: list[list[Tensor | None]] = [
            [None if b is None else ndtr(mean @ b.h.mT) for b, mean in zip(c.blocks, means, strict=True)]
            for c in self.chunks
        ]
        sums, sizes = self._no_statistics(len(means[0])), []
        for chunk, parts in zip(self.chunks, primary, strict=True):
            sizes.append(self._bag_means(chunk, parts, len(means[0])))
            zero = self.signs.new_zeros(len(means[0]), chunk.bags.stop - chunk.bags.start)
            self._add_outer(sums, sizes[-1], signed_mean(zero, self.signs[chunk.bags])[0])
            for block, p, at in zip(chunk.blocks, parts, self.columns.places, strict=True):
                if block is not None and p is not None:
                    sums.outer_gram[:, at, at] += self._spread(block, p)
        outer = Coefficients.posterior(self.outer_precision, sums.outer_gram, sums.outer_pull)
        return State(inner, outer, primary, sizes)

    def sweep(self, state: State, *, newton: bool = False) -> tuple[State, State, Tensor]:
        """Update every factor once.

        The order is q(y*), q(δ, U) instance by instance, q(y*), where the bound is taken; then q(b) and q(θ).

        Args:
            state: the factors.
            newton: compute the second result.

        Returns:
            The new factors; the same with a Newton step in the means of the coefficients, which nearly always
            rises higher but may fall; and the bound (R,) before the coefficients were updated.
        """
        second = state.outer.second_moment()
        roots = [torch.linalg.cholesky(second[:, at, at]) for at in self.columns.places]
        sums = self._no_statistics(len(second))
        primary, all_means = [], []
        for place, chunk in enumerate(self.chunks):
            means, parts, signs = list(state.means[place]), list(state.primary[place]), self.signs[chunk.bags]
            latent, _ = signed_mean(self._score(state.outer, means), signs)  # (R, b)
            for m, block in enumerate(chunk.blocks):
                if block is not None:
                    old = parts[m]
                    assert old is not None
                    others = self._others(state.outer, second, means, m, latent, block)
                    parts[m], means[m] = self._update_primary(
                        sums, m, block, state.inner[m].mean, old, means[m], others, roots[m], newton
                    )
            score = self._score(state.outer, means)
            latent, log_label = signed_mean(score, signs)
            sums.evidence += (log_label + score.square() / 2).sum(1)
            g = self._add_outer(sums, means, latent)
            if newton:
                gap = latent - score
                sums.outer_curvature += g.mT @ ((gap * (gap + score))[..., None] * g)
            primary.append(parts)
            all_means.append(means)
        bound = self._bound(state, sums, second)
        inner = [
            one._replace(mean=(one.covariance @ pull[..., None])[..., 0])  # the covariance is constant
            for one, pull in zip(state.inner, sums.inner_pull, strict=True)
        ]
        outer = Coefficients.posterior(self.outer_precision, sums.outer_gram, sums.outer_pull)
        plain = State(inner, outer, primary, all_means)
        return plain, (self._newton(state, plain, sums) if newton else plain), bound

    def _newton(self, state: State, plain: State, sums: Statistics) -> State:
        """`plain` with one Newton step in the means from those of `state`, U and y* integrated out."""
        inner = []
        for old, new, pull, gram, curvature, precision in zip(
            state.inner,
            plain.inner,
            sums.inner_pull,
            self.inner_gram,
            sums.inner_curvature,
            self.inner_precision,
            strict=True,
        ):
            slope = pull - (gram @ old.mean[..., None])[..., 0] - precision * old.mean  # (R, P)
            inner.append(new._replace(mean=old.mean + _solve(curvature + precision.diag(), slope)))
        old_mean = state.outer.mean
        held = sums.outer_gram - sums.outer_square + self.outer_precision.diag()  # (R, Q, Q)
        slope = sums.outer_pull - ((sums.outer_square + held) @ old_mean[..., None])[..., 0]
        mean = old_mean + _solve(sums.outer_curvature + held, slope)
        return plain._replace(inner=inner, outer=plain.outer._replace(mean=mean))

    def _score(self, outer: Coefficients, means: Sequence[Tensor]) -> Tensor:
        """E[g θ] (R, b)."""
        parts = [
            (mean @ outer.mean[:, at, None])[..., 0]
            for mean, at in zip(means, self.columns.places, strict=True)
        ]
        return outer.mean[:, :1] + torch.stack(parts).sum(0)

    def _others(
        self,
        outer: Coefficients,
        second: Tensor,
        means: Sequence[Tensor],
        m: int,
        latent: Tensor,
        block: Block,
    ) -> Tensor:
        """E[y*] E[β_m] less what the intercept and other modalities explain: (R, b, P)."""
        at, here = self.columns.places[m], block.bag_order
        pull = latent[:, here, None] * outer.mean[:, None, at] - second[:, :1, at]
        for other, mean in enumerate(means):
            if other != m:
                pull = pull - mean[:, here] @ second[:, self.columns.places[other], at]
        return pull

    def _update_primary(
        self,
        sums: Statistics,
        m: int,
        block: Block,
        b: Tensor,
        old: Tensor,
        mean: Tensor,
        others: Tensor,
        root: Tensor,
        newton: bool,
    ) -> tuple[Tensor, Tensor]:
        """New q(δ = 1) (R, n) of a block and Σ_j p_j h_j (R, b, P), one instance after another.

        `old` (R, n) and `mean` (R, b, P) are the last ones, `b` (R, P) is E[b], `others` is from `_others`,
        `root` L of E[ββᵀ]. The block's share of the sums is added to `sums`, of the curvature if `newton`.
        """
        here, h = block.bag_order, block.x  # h (n, P)
        v = torch.linalg.solve_triangular(root.mT, others, upper=True, left=False)  # L⁻¹ others, as rows
        v -= mean[:, here] @ root
        z = h @ root  # (R, n, P)
        square = z.square().sum(-1)  # (R, n) E[(hβ)²]
        mu = b @ block.h.mT  # (R, n)
        side = sides(mu)
        base = side.log_above - side.log_below + (old - 0.5) * square
        logit, p = torch.empty_like(mu), torch.empty_like(mu)
        new, start = torch.zeros_like(v), 0
        for k in block.counts:
            rows = slice(start, start + k)
            one = z[:, rows]
            logit[:, rows] = (one * v[:, :k]).sum(-1) + base[:, rows]
            p[:, rows] = logit[:, rows].sigmoid()
            v[:, :k].addcmul_((old[:, rows] - p[:, rows])[..., None], one)
            new[:, :k].addcmul_(p[:, rows, None], h[rows])
            start += k
        far = logit.abs()
        entropy = softplus(-far) + far * torch.sigmoid(-far)
        sums.evidence += (entropy + p * side.log_above + (1 - p) * side.log_below).sum(1)
        u = mu + p * side.mills_above - (1 - p) * side.mills_below  # (R, n) E[U]
        sums.inner_pull[m] += u @ block.h
        if newton:
            weight = p * side.mills_above * (mu + side.mills_above)
            weight += (1 - p) * side.mills_below * (side.mills_below - mu)
            sums.inner_curvature[m] += block.h.mT @ (weight[..., None] * block.h)
        at = self.columns.places[m]
        sums.outer_gram[:, at, at] += self._spread(block, p)
        full = torch.zeros_like(mean)
        full[:, here] = new
        return p, full

    def _spread(self, block: Block, p: Tensor) -> Tensor:
        """Σ p (1 - p) h hᵀ (R, P, P): the part of E[g gᵀ] that is the variance of δ."""
        h = block.x
        return h.mT @ ((p * (1 - p))[..., None] * h)

    def _add_outer(self, sums: Statistics, means: Sequence[Tensor], latent: Tensor) -> Tensor:
        """Add Σ E[g] E[g]ᵀ and Σ E[y*] E[g] of a chunk; returns E[g] (R, b, Q)."""
        g = torch.cat([torch.ones_like(latent)[..., None], *means], dim=-1)
        square = g.mT @ g
        sums.outer_gram += square
        sums.outer_square += square
        sums.outer_pull += (latent[:, None] @ g)[:, 0]
        return g

    def _bag_means(self, chunk: Chunk, primary: Sequence[Tensor | None], replicates: int) -> list[Tensor]:
        """Σ_j p_j h_j (R, b, P) of each modality."""
        means, n_bags = [], chunk.bags.stop - chunk.bags.start
        for block, p, at in zip(chunk.blocks, primary, self.columns.places, strict=True):
            mean = self.signs.new_zeros(replicates, n_bags, at.stop - at.start)
            if block is not None and p is not None:
                mean.index_add_(1, block.bags, p[..., None] * block.x)
            means.append(mean)
        return means

    def _bound(self, state: State, sums: Statistics, second: Tensor) -> Tensor:
        """The evidence lower bound (R,), exact.

        Labels: Σ_i log Φ(±E[g_i θ]) - ½ Var(g_i θ), Σ_i Var(g_i θ) = tr(S Σ E[g_i g_iᵀ]) - Σ_i E[g_i θ]².
        Instances: Σ_ij p log Φ(μ) + (1 - p) log Φ(-μ) + H(p) - ½ Var(h b).
        Less the divergences of q(θ) and q(b) from their priors.
        """
        bound = sums.evidence - (sums.outer_gram * second).sum((1, 2)) / 2
        bound = bound - state.outer.divergence(self.outer_precision)
        for one, gram, precision in zip(state.inner, self.inner_gram, self.inner_precision, strict=True):
            bound = bound - (gram * one.covariance).sum((1, 2)) / 2 - one.divergence(precision)
        return bound

    def _no_statistics(self, replicates: int) -> Statistics:
        widths = [len(one) for one in self.inner_precision]
        return Statistics.zero(replicates, widths, self.columns.size, like=self.signs)


def _solve(matrix: Tensor, vector: Tensor) -> Tensor:
    """A⁻¹ v of positive definite A (R, P, P) and v (R, P)."""
    return torch.cholesky_solve(vector[..., None], torch.linalg.cholesky(matrix))[..., 0]

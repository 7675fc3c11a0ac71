"""Exact likelihood of bags, primary instances summed out, with its gradient.

Given the coefficients, the score of a bag is S = α + Σ_j δ_j c_j with independent δ_j ~ Bernoulli(p_j),
p_j = Φ(h_j b), c_j = x_j β. The characteristic function of S + ε, ε ~ N(0, 1), is

    φ(t) = exp(iαt - t²/2) Π_j (1 + p_j (exp(i c_j t) - 1))

and by the inversion of Gil-Pelaez (Biometrika 38, 1951)

    P(y = 1) = P(S + ε > 0) = ½ + (1/π) ∫₀^∞ Im φ(t) / t dt

The midpoint rule with `NODES` nodes at spacing h is exact for |S + ε| < 2π/h, up to exp(-(h NODES)²/2). Each
bag has its own h, from the mean and the variance of its score. The cost is linear in instances.

In: instances, labels, coefficients. Out: log-probability and score vector of each bag, in float64.

Shapes: B bags, b bags of a chunk, n instances of a block, K nodes, C coefficients (b of each modality, then
θ = (α, β of each modality)).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.special import ndtr

from ich_mil.multimodal.layout import Block, Chunk, Columns, Rows, chunks_of

NODES = 48
DEVIATIONS = 8.0
"""Half-width of the distribution of a score, in standard deviations around its mean."""
FLOOR = 1e-12
"""Least probability of a label: the inversion is exact to about 1e-14 of 1, not of small probabilities."""
CHUNK_ROWS = 4096
"""Instances of a chunk: their K complex numbers stay near the processor."""


class Likelihood:
    """Log-likelihood of labelled bags.

    Attributes:
        rows: instances of each modality.
        signs: (B,) labels, -1 or 1.
        columns: places of the modalities in θ.
        widths: number of inner coefficients of each modality.
        instances: number of instances of all modalities.
    """

    def __init__(
        self, rows: Sequence[Rows], signs: Tensor, columns: Columns, *, chunk: int = CHUNK_ROWS
    ) -> None:
        self.rows, self.signs, self.columns = rows, signs, columns
        self.widths = [1 + part.x.shape[1] for part in rows]
        self._chunks = chunks_of(rows, len(signs), rows=chunk)
        sizes = [sum(len(block.h) for block in part.blocks if block is not None) for part in self._chunks]
        self.instances = sum(sizes)
        self._nodes = torch.arange(NODES, dtype=signs.dtype, device=signs.device) + 0.5  # (K,)
        # of a row (2K,) of real and imaginary parts: Σ_k Im, and Σ_k (k + ½) Re
        zero, one = torch.zeros_like(self._nodes), torch.ones_like(self._nodes)
        pairs = [torch.stack([zero, one], dim=1), torch.stack([self._nodes, zero], dim=1)]
        self._sums = torch.stack(pairs).flatten(1).mT.contiguous()  # (2K, 2)
        # buffers that all chunks share: fresh memory for each costs more than the arithmetic
        self._memory = signs.new_empty(3, max(sizes), NODES, dtype=torch.complex128)

    def some(self, number: int, generator: torch.Generator) -> "Likelihood":
        """Likelihood of `number` random bags; of all where there are no more."""
        if number >= len(self.signs):
            return self
        device = self.signs.device
        chosen = torch.randperm(len(self.signs), generator=generator, device=device)[:number]
        place = torch.full((len(self.signs),), -1, device=device)
        place[chosen] = torch.arange(number, device=device)
        rows = [
            Rows(part.x[place[part.bags] >= 0], place[part.bags][place[part.bags] >= 0]) for part in self.rows
        ]
        return Likelihood(rows, self.signs[chosen], self.columns)

    @property
    def size(self) -> int:
        """C."""
        return sum(self.widths) + self.columns.size

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (B,) of the labels at coefficients `theta` (C,), and their gradients (B, C)."""
        values = torch.empty_like(self.signs)
        scores = theta.new_zeros(len(self.signs), self.size)
        *inner, outer = theta.split([*self.widths, self.columns.size])
        for chunk in self._chunks:
            values[chunk.bags] = self._of_chunk(chunk, inner, outer, scores[chunk.bags])
        return values, scores

    def _of_chunk(self, chunk: Chunk, inner: Sequence[Tensor], outer: Tensor, scores: Tensor) -> Tensor:
        """Log-probabilities (b,) of a chunk; its gradients are added to `scores` (b, C)."""
        signs, alpha = self.signs[chunk.bags], outer[0]
        blocks = [(m, block) for m, block in enumerate(chunk.blocks) if block is not None]
        probits = [block.h @ inner[m] for m, block in blocks]
        p = [ndtr(probit) for probit in probits]
        c = [block.x @ outer[self.columns.places[m]] for m, block in blocks]
        h = _spacing([block.bags for _, block in blocks], p, c, alpha.expand_as(signs))
        t = h[:, None] * self._nodes  # (b, K)
        weight = torch.exp(-t.square() / 2) / (math.pi * self._nodes)
        phi = _turn(weight, t * alpha)  # φ(t) h / (π t)
        parts, start = [], 0
        for (_, block), probability, effect in zip(blocks, p, c, strict=True):
            rows = slice(start, start + len(effect))
            z, factor, product = (memory[rows] for memory in self._memory)  # (n, K)
            _powers(h[block.bags] * effect, z)
            torch.mul(z, probability[:, None], out=factor)
            factor.real += 1 - probability[:, None]
            _forward(phi, block, factor, product)
            parts.append((z, factor, product))
            start = rows.stop
        values = (0.5 + signs * phi.imag.sum(1)).clamp(min=FLOOR)  # (b,)
        slope = signs / values
        scores[:, sum(self.widths)] += slope * h * (phi.real @ self._nodes)
        rest = torch.ones_like(phi)
        for i in reversed(range(len(blocks))):
            (m, block), (z, factor, product) = blocks[i], parts[i]
            _backward(rest, block, factor, product)  # product: φ without the factor of the row
            bare = self._summed(product)[:, 0]
            torch.mul(product, z, out=factor)
            turned = self._summed(factor)  # (n, 2)
            own = slope[block.bags]
            density = torch.exp(-probits[i].square() / 2) / math.sqrt(2 * math.pi)
            first, place = sum(self.widths[:m]), self.columns.places[m]
            d_inner = own * density * (turned[:, 0] - bare)  # ∂ / ∂(h b)
            d_outer = own * h[block.bags] * p[i] * turned[:, 1]  # ∂ / ∂(x β)
            scores[:, first : first + self.widths[m]].index_add_(0, block.bags, d_inner[:, None] * block.h)
            outer_columns = slice(sum(self.widths) + place.start, sum(self.widths) + place.stop)
            scores[:, outer_columns].index_add_(0, block.bags, d_outer[:, None] * block.x)
        return values.log()

    def _summed(self, product: Tensor) -> Tensor:
        """Σ_k Im and Σ_k (k + ½) Re (n, 2) of complex numbers (n, K)."""
        return torch.view_as_real(product).view(len(product), 2 * NODES) @ self._sums


def _spacing(bags: Sequence[Tensor], p: Sequence[Tensor], c: Sequence[Tensor], alpha: Tensor) -> Tensor:
    """Node spacing (b,) that holds the distribution of each score between -2π/h and 2π/h."""
    mean, variance = alpha.clone(), torch.ones_like(alpha)
    high, low = alpha.clone(), alpha.clone()
    for own, probability, effect in zip(bags, p, c, strict=True):
        mean.index_add_(0, own, probability * effect)
        variance.index_add_(0, own, probability * (1 - probability) * effect.square())
        high.index_add_(0, own, effect.clamp(min=0))
        low.index_add_(0, own, effect.clamp(max=0))
    bound = torch.maximum(high.abs(), low.abs()) + DEVIATIONS
    reach = torch.minimum(bound, mean.abs() + DEVIATIONS * variance.sqrt())
    return (2 * math.pi / reach).clamp(max=DEVIATIONS / NODES)


def _turn(size: Tensor, angle: Tensor) -> Tensor:
    """Size exp(i angle)."""
    return torch.complex(size * angle.cos(), size * angle.sin())


def _powers(angle: Tensor, out: Tensor) -> None:
    """exp(i angle (k + ½)) (n, K) of angles (n,), by doubling: one product a number."""
    out[:, 0] = _turn(torch.ones_like(angle), angle / 2)
    step, done = out[:, :1] * out[:, :1], 1
    while done < NODES:
        end = min(2 * done, NODES)
        torch.mul(out[:, : end - done], step, out=out[:, done:end])
        step, done = step * step, end


def _forward(phi: Tensor, block: Block, factor: Tensor, before: Tensor) -> None:
    """Multiply φ (b, K) in place by the factors (n, K) of a block; `before` keeps the product so far."""
    current, start = phi[block.bag_order], 0
    for count in block.counts:
        rows = slice(start, start + count)
        before[rows] = current[:count]
        current[:count] *= factor[rows]
        start += count
    phi[block.bag_order] = current


def _backward(rest: Tensor, block: Block, factor: Tensor, before: Tensor) -> None:
    """Multiply `before` by all later factors; `rest` (b, K) is their product over the blocks behind."""
    current, end = rest[block.bag_order], len(block.h)
    for count in reversed(block.counts):
        rows = slice(end - count, end)
        before[rows] *= current[:count]
        current[:count] *= factor[rows]
        end -= count
    rest[block.bag_order] = current

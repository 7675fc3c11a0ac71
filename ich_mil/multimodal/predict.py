"""Predictive distribution of new bags and instances, by draws of the coefficients and of δ.

In: a `Posterior` and chunks of bags. Out: for each draw P(primary) = Φ(h b), δ and the effect x β of each
instance, and the score α + Σ δ x β of each bag; or their means and deviations. The thesis puts posterior
means into both (`plug_in`).

All bags share the draws of the coefficients, and the k-th instances of all bags the uniform numbers behind
their δ. The probability of a bag is therefore the same in any company and with its rows in any order, and
two bags are compared by common random numbers.

Shapes: L draws, B bags, b bags of a chunk, n instances of a block, N of a modality.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.special import ndtr

from ich_mil.multimodal.layout import Chunk, Columns
from ich_mil.multimodal.posterior import Posterior

CHUNK_NUMBERS = 500_000
"""Instances of a chunk times draws."""


class Drawn(NamedTuple):
    """Draws of one chunk.

    Attributes:
        chunk: its bags.
        score: (L, b) α + Σ δ x β; P(bag is positive) = Φ(score).
        primary: (L, n) Φ(h b) of each modality; None where the chunk lacks it.
        delta: (L, n) draws of δ, likewise.
        effects: (L, n) x β, the effect of a primary instance, likewise.
    """

    chunk: Chunk
    score: Tensor
    primary: list[Tensor | None]
    delta: list[Tensor | None]
    effects: list[Tensor | None]


class Predictions(NamedTuple):
    """Probabilities, and their standard deviations over the draws.

    Attributes:
        bag_mean: (B,).
        bag_std: (B,).
        instance_mean: (N,) of each modality.
        instance_std: (N,) likewise.
    """

    bag_mean: Tensor
    bag_std: Tensor
    instance_mean: list[Tensor]
    instance_std: list[Tensor]


def draw(posterior: Posterior, chunks: Sequence[Chunk], *, seed: int) -> Iterator[Drawn]:
    """Draws of each chunk; `seed` is that of δ."""
    outer, ranges = posterior.outer, posterior.columns.ranges
    turns = [
        max((len(block.counts) for block in blocks if block is not None), default=0)
        for blocks in zip(*(chunk.blocks for chunk in chunks), strict=True)
    ]
    uniforms = []
    for m, count in enumerate(turns):
        generator = torch.Generator().manual_seed(seed + 1 + m)
        # one row a position: a longer bag elsewhere adds rows and leaves the first as they are
        rows = [torch.rand(len(outer), generator=generator, dtype=torch.float64) for _ in range(count)]
        uniforms.append(torch.stack(rows).to(outer) if rows else outer.new_zeros(0, len(outer)))
    for chunk in chunks:
        score = outer[:, :1].expand(-1, chunk.bags.stop - chunk.bags.start).clone()
        primary: list[Tensor | None] = [None] * len(ranges)
        delta, effects = [*primary], [*primary]
        for m, block in enumerate(chunk.blocks):
            if block is None:
                continue
            p = ndtr(posterior.inner[m] @ block.h.mT)  # (L, n)
            counts = torch.tensor(block.counts, device=outer.device)
            turn = torch.repeat_interleave(torch.arange(len(block.counts), device=outer.device), counts)
            is_primary, effect = (uniforms[m][turn].mT < p).to(p), outer[:, ranges[m]] @ block.x.mT
            score.index_add_(1, block.bags, is_primary * effect)
            primary[m], delta[m], effects[m] = p, is_primary, effect
        yield Drawn(chunk, score, primary, delta, effects)


def predict(
    posterior: Posterior, chunks: Sequence[Chunk], sizes: Sequence[int], n_bags: int, *, seed: int
) -> Predictions:
    """Mean and deviation of `draw`, for B = `n_bags` and modalities of `sizes` rows."""
    like = posterior.outer
    bag_mean, bag_std = like.new_zeros(n_bags), like.new_zeros(n_bags)
    means, stds = ([like.new_zeros(size) for size in sizes] for _ in range(2))
    for drawn in draw(posterior, chunks, seed=seed):
        for m, (block, p) in enumerate(zip(drawn.chunk.blocks, drawn.primary, strict=True)):
            if block is not None and p is not None:
                means[m][block.rows], stds[m][block.rows] = p.mean(0), p.std(0, correction=0)
        positive = ndtr(drawn.score)
        bag_mean[drawn.chunk.bags] = positive.mean(0)
        bag_std[drawn.chunk.bags] = positive.std(0, correction=0)
    return Predictions(bag_mean, bag_std, means, stds)


def plug_in(
    inner: Sequence[Tensor], outer: Tensor, chunks: Sequence[Chunk], columns: Columns, n_bags: int
) -> Tensor:
    """Φ(α + Σ Φ(h b) x β) (B,) at single coefficients b (P,) and θ (Q,), as the thesis predicts."""
    score = outer[:1].repeat(n_bags)
    for chunk in chunks:
        for m, block in enumerate(chunk.blocks):
            if block is not None:
                effect = ndtr(block.h @ inner[m]) * (block.x @ outer[columns.ranges[m]])
                score.index_add_(0, block.bags + chunk.bags.start, effect)
    return ndtr(score)

"""Predictive distribution of new bags and instances, by draws of the coefficients and of δ.

In: a `Posterior` and chunks of bags. Out: mean and standard deviation of Φ(α + Σ δ h β) of each bag and of
Φ(h b) of each instance. The thesis puts posterior means into both (`plug_in`).

All bags share the draws of the coefficients, and the k-th instances of all bags the uniform numbers behind
their δ. The probability of a bag is therefore the same in any company and with its rows in any order, and
two bags are compared by common random numbers.

Shapes: L draws, B bags, n instances of a block, N of a modality.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.special import ndtr

from ich_mil.multimodal.layout import Chunk, Columns
from ich_mil.multimodal.posterior import Posterior

CHUNK_NUMBERS = 2_000_000
"""Instances of a chunk times draws."""


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


def predict(
    posterior: Posterior,
    chunks: Sequence[Chunk],
    columns: Columns,
    sizes: Sequence[int],
    n_bags: int,
    *,
    seed: int,
) -> Predictions:
    """Sampled predictive distribution.

    Args:
        posterior: of the coefficients.
        chunks: bags.
        columns: of the outer tier.
        sizes: number of rows of each modality.
        n_bags: B.
        seed: of the draws of δ.
    """
    outer, like = posterior.outer, posterior.outer
    turns = [
        max((len(block.counts) for block in blocks if block is not None), default=0)
        for blocks in zip(*(chunk.blocks for chunk in chunks), strict=True)
    ]
    uniforms = []
    for m, count in enumerate(turns):
        generator = torch.Generator().manual_seed(seed + 1 + m)
        # one row a position: a longer bag elsewhere adds rows and leaves the first as they are
        rows = [torch.rand(len(outer), generator=generator, dtype=torch.float64) for _ in range(count)]
        uniforms.append(torch.stack(rows).to(like) if rows else like.new_zeros(0, len(outer)))
    bag_mean, bag_std = like.new_zeros(n_bags), like.new_zeros(n_bags)
    means, stds = ([like.new_zeros(size) for size in sizes] for _ in range(2))
    for chunk in chunks:
        eta = outer[:, :1].expand(-1, chunk.bags.stop - chunk.bags.start).clone()  # (L, b)
        for m, block in enumerate(chunk.blocks):
            if block is None:
                continue
            p = ndtr(posterior.inner[m] @ block.h.mT)  # (L, n)
            means[m][block.rows], stds[m][block.rows] = p.mean(0), p.std(0, correction=0)
            effect = outer[:, columns.places[m]] @ block.h[:, columns.first :].mT
            counts = torch.tensor(block.counts, device=like.device)
            turn = torch.repeat_interleave(torch.arange(len(block.counts), device=like.device), counts)
            eta.index_add_(1, block.bags, torch.where(uniforms[m][turn].mT < p, effect, 0.0))
        positive = ndtr(eta)
        bag_mean[chunk.bags], bag_std[chunk.bags] = positive.mean(0), positive.std(0, correction=0)
    return Predictions(bag_mean, bag_std, means, stds)


def plug_in(
    inner: Sequence[Tensor], outer: Tensor, chunks: Sequence[Chunk], columns: Columns, n_bags: int
) -> Tensor:
    """Φ(α + Σ Φ(h b) h β) (B,) at single coefficients b (P,) and θ (Q,), as the thesis predicts."""
    eta = outer[:1].repeat(n_bags)
    for chunk in chunks:
        for m, block in enumerate(chunk.blocks):
            if block is not None:
                p = ndtr(block.h @ inner[m])
                effect = block.h[:, columns.first :] @ outer[columns.places[m]]
                eta.index_add_(0, block.bags + chunk.bags.start, p * effect)
    return ndtr(eta)

"""Variational factors of R replicates, and the sums over bags that update them.

In and out: what `variational.Model.sweep` takes and gives.

Shapes: R replicates, b bags of a chunk, n instances of a block, P inner coefficients of a modality, Q outer
ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ich_mil.multimodal.inference.coefficients import Coefficients


class State(NamedTuple):
    """All factors of R replicates. Tensors are replaced, never written to: a copy is a reference.

    Attributes:
        inner: q(b) of each modality.
        outer: q(θ).
        primary: q(δ = 1) (R, n) of each chunk and modality; None where the chunk lacks it.
        means: Σ_j p_j h_j (R, b, P) likewise, 0 in bags without the modality.
    """

    inner: list[Coefficients]
    outer: Coefficients
    primary: list[list[Tensor | None]]
    means: list[list[Tensor]]

    def take(self, chosen: Tensor) -> "State":
        """These replicates (C,) of them."""
        return State(
            [one.take(chosen) for one in self.inner],
            self.outer.take(chosen),
            [[None if p is None else p[chosen] for p in parts] for parts in self.primary],
            [[mean[chosen] for mean in parts] for parts in self.means],
        )

    def where(self, mask: Tensor, other: "State") -> "State":
        """Replicates where `mask` (R,) from here, else from `other`."""

        def pick(a: Tensor, b: Tensor) -> Tensor:
            return a if len(a) == 1 < len(mask) else torch.where(mask.view(-1, *[1] * (a.ndim - 1)), a, b)

        def both(one: Coefficients, two: Coefficients) -> Coefficients:
            return Coefficients(*(pick(a, b) for a, b in zip(one, two, strict=True)))

        primary: list[list[Tensor | None]] = [
            [None if a is None or b is None else pick(a, b) for a, b in zip(*pair, strict=True)]
            for pair in zip(self.primary, other.primary, strict=True)
        ]
        means = [
            [pick(a, b) for a, b in zip(*pair, strict=True)]
            for pair in zip(self.means, other.means, strict=True)
        ]
        inner = [both(*pair) for pair in zip(self.inner, other.inner, strict=True)]
        return State(inner, both(self.outer, other.outer), primary, means)


@dataclass
class Statistics:
    """Sums over bags that the coefficients and the bound are made of.

    Attributes:
        outer_gram: (R, Q, Q) Σ E[g gᵀ], g = (1, Σ δ h) of a bag.
        outer_pull: (R, Q) Σ E[y*] E[g].
        inner_pull: (R, P) Σ h E[U] of each modality.
        evidence: (R,) terms of the bound that are sums over bags and instances.
        inner_curvature: (R, P, P) -∂² of Σ p log Φ(h b) + (1 - p) log Φ(-h b) of each modality; Newton only.
        outer_curvature: (R, Q, Q) -∂² of Σ log Φ(±E[g] θ); Newton only.
        outer_square: (R, Q, Q) Σ E[g] E[g]ᵀ.
    """

    outer_gram: Tensor
    outer_pull: Tensor
    inner_pull: list[Tensor]
    evidence: Tensor
    inner_curvature: list[Tensor]
    outer_curvature: Tensor
    outer_square: Tensor

    @classmethod
    def zero(cls, replicates: int, widths: Sequence[int], size: int, *, like: Tensor) -> "Statistics":
        """No bag yet: R replicates, P of each modality, Q."""
        return cls(
            like.new_zeros(replicates, size, size),
            like.new_zeros(replicates, size),
            [like.new_zeros(replicates, width) for width in widths],
            like.new_zeros(replicates),
            [like.new_zeros(replicates, width, width) for width in widths],
            like.new_zeros(replicates, size, size),
            like.new_zeros(replicates, size, size),
        )

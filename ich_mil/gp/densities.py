"""The density ψ of ψ-VGPMIL: what replaces the logistic observation model after augmentation.

In: c = √E[f²] of each instance. Out: θ(c) = -ψ'(c) / (c ψ(c)), the expected augmentation variable
(Castro-Macías et al. 2024, Eq. 28), and log ψ(c), which the evidence bound needs (Eq. 29). A new density is a
frozen dataclass with these two methods and `bounded`; θ must not rise with c ≥ 0 (ψ is then super-Gaussian
and the bound holds), and where c·θ(c) falls below ½ for large c nothing holds the latent function back: it
runs away, and `bounded` must say so.

Shapes: any; all methods are elementwise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Protocol, runtime_checkable

import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.nn.functional import logsigmoid


@runtime_checkable
class Density(Protocol):
    """What the engine asks of ψ."""

    @property
    def bounded(self) -> bool:
        """Whether c·θ(c) tends to at least ½: then the latent function cannot run away."""
        ...

    def theta(self, c: Tensor) -> Tensor:
        """θ(c) = -ψ'(c) / (c ψ(c)) for c ≥ 0."""
        ...

    def log_psi(self, c: Tensor) -> Tensor:
        """Log ψ(c) for c ≥ 0, up to a constant that does not depend on c."""
        ...


@dataclass(frozen=True)
class Logistic:
    """The hyperbolic secant ψ(c) = 1 / (2 cosh(c/2)): PG-VGPMIL, the same as VGPMIL (Eq. 15)."""

    bounded: ClassVar[bool] = True

    def theta(self, c: Tensor) -> Tensor:
        """θ(c) = tanh(c/2) / (2c), ¼ at 0."""
        # Below 1e-4 the series ¼ - c²/48 is exact to 1e-18 and has no 0/0.
        small = c < 1e-4
        safe = torch.where(small, torch.ones_like(c), c)
        return torch.where(small, 0.25 - c.square() / 48, torch.tanh(safe / 2) / (2 * safe))

    def log_psi(self, c: Tensor) -> Tensor:
        """Log ψ(c) = log sigmoid(c) - c/2, normalised so that sigmoid(f) = exp(f/2) ψ(f)."""
        return logsigmoid(c) - c / 2


@dataclass(frozen=True)
class Gamma:
    """ψ(c) ∝ (β + c²/2)^-α, a Student density: G-VGPMIL (Eq. 38).

    Its tails are so heavy that exp(f/2) ψ(f) grows without bound: only early stopping keeps a fit from
    running away (`GammaLogisticTail` does not need it).
    """

    bounded: ClassVar[bool] = False

    alpha: float
    beta: float

    def theta(self, c: Tensor) -> Tensor:
        """θ(c) = α / (β + c²/2)."""
        return self.alpha / (self.beta + c.square() / 2)

    def log_psi(self, c: Tensor) -> Tensor:
        """Log ψ(c) = -α log(β + c²/2)."""
        return -self.alpha * torch.log(self.beta + c.square() / 2)


@dataclass(frozen=True)
class GammaLogisticTail:
    """θ(c) = max(θ_Gamma(c), θ_logistic(c)): Gamma near 0, logistic where the Gamma would let go.

    The maximum of two falling functions falls, so ψ stays super-Gaussian, and c·θ(c) → ½ holds the tail.
    Where the Gamma lies below the logistic everywhere this is VGPMIL.
    """

    bounded: ClassVar[bool] = True

    alpha: float
    beta: float

    @cached_property
    def crossings(self) -> tuple[float, ...]:
        """The c > 0 at which the larger of the two θ changes, rising: none, one or two."""

        def gap(u: Tensor) -> Tensor:
            return self._gamma.theta(u.exp()).log() - Logistic().theta(u.exp()).log()

        # From c = 4α + 10 on c tanh(c/2) > 4α, so that θ_Gamma < 2α / c² < θ_logistic: the scan ends beyond.
        end = math.log(4 * self.alpha + 2 * math.sqrt(self.beta) + 10)
        grid = torch.linspace(-9, end, 2001, dtype=torch.float64)  # log c
        above = gap(grid) > 0
        changes = (above[1:] != above[:-1]).nonzero().flatten().tolist()
        low, high = grid[:-1].tolist(), grid[1:].tolist()
        roots = [
            brentq(lambda u: float(gap(torch.tensor(u, dtype=torch.float64))), low[i], high[i], xtol=1e-14)
            for i in changes
        ]
        return tuple(math.exp(u) for u in roots)

    @property
    def _gamma(self) -> Gamma:
        return Gamma(self.alpha, self.beta)

    def theta(self, c: Tensor) -> Tensor:
        """θ(c) = max(α / (β + c²/2), tanh(c/2) / (2c))."""
        return torch.maximum(self._gamma.theta(c), Logistic().theta(c))

    def log_psi(self, c: Tensor) -> Tensor:
        """Log ψ(c) = -∫₀ᶜ t θ(t) dt: each piece is that of the density whose θ is the larger there."""
        total = torch.zeros_like(c)
        for piece, low, high, start in self._pieces:
            total = total + piece.log_psi(c.clamp(low, high)) - start
        return total

    @cached_property
    def _pieces(self) -> tuple[tuple[Gamma | Logistic, float, float, float], ...]:
        """Density, first and last c of each piece, and log ψ of that density at the first."""
        # The last piece is logistic; going down, the two take turns.
        edges = [0.0, *self.crossings, float("inf")]
        pieces: list[Gamma | Logistic] = [Logistic(), self._gamma]
        found = []
        for i, (low, high) in enumerate(pairwise(edges)):
            piece = pieces[(len(edges) - 2 - i) % 2]
            found.append((piece, low, high, float(piece.log_psi(torch.tensor(low, dtype=torch.float64)))))
        return tuple(found)


@dataclass(frozen=True)
class LogDensity:
    """Any ψ given as a differentiable log ψ(c), up to a constant: θ(c) = -(log ψ)'(c) / c by autograd.

    ψ must be super-Gaussian: θ must not rise with c.

    Attributes:
        function: log ψ of a tensor c ≥ 0, elementwise and differentiable.
        bounded: whether c·θ(c) tends to at least ½; where not, a fit is watched on its training scans.
    """

    function: Callable[[Tensor], Tensor]
    bounded: bool = False

    def theta(self, c: Tensor) -> Tensor:
        """θ(c); below 1e-4 the value there, which is θ(0) to O(1e-8)."""
        with torch.enable_grad():
            at = c.detach().clamp(min=1e-4).requires_grad_()
            (slope,) = torch.autograd.grad(self.function(at).sum(), at)
        return -slope / at.detach()

    def log_psi(self, c: Tensor) -> Tensor:
        """Log ψ(c)."""
        return self.function(c)

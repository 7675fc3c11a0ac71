"""Densities ψ of ψ-VGPMIL: hyperbolic secant (logistic), Gamma, Gamma with a logistic tail, any log ψ.

In: c = √E[f²] of each instance. Out: θ(c) = -ψ'(c) / (c ψ(c)), the expected augmentation variable
(Castro-Macías et al. 2024, Eq. 28), and log ψ(c), which is part of the ELBO (Eq. 29).

A new density is a frozen dataclass with these two methods and `bounded`. θ must not increase with c ≥ 0: ψ is
then super-Gaussian, and the bound is valid. If c·θ(c) falls below ½ for large c, the likelihood does not
bound the latent function, the fit can diverge, and `bounded` must be False.

Shapes: any; all methods are elementwise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


@runtime_checkable
class Density(Protocol):
    """Interface of a density ψ."""

    @property
    def bounded(self) -> bool:
        """Whether c·θ(c) tends to at least ½ for c → ∞, so that the latent function cannot run away."""
        ...

    def theta(self, c: Tensor) -> Tensor:
        """θ(c) = -ψ'(c) / (c ψ(c)) for c ≥ 0."""
        ...

    def log_psi(self, c: Tensor) -> Tensor:
        """Log ψ(c) for c ≥ 0, up to a constant that does not depend on c."""
        ...


@dataclass(frozen=True)
class Logistic:
    """Hyperbolic secant density ψ(c) = 1 / (2 cosh(c/2)): PG-VGPMIL, which equals VGPMIL (Eq. 15)."""

    bounded: ClassVar[bool] = True

    def theta(self, c: Tensor) -> Tensor:
        """θ(c) = tanh(c/2) / (2c), ¼ at 0."""
        # The series ¼ - c²/48 is exact to 1e-18 below 1e-4 and avoids 0/0.
        small = c < 1e-4
        safe = torch.where(small, torch.ones_like(c), c)
        return torch.where(small, 0.25 - c.square() / 48, torch.tanh(safe / 2) / (2 * safe))

    def log_psi(self, c: Tensor) -> Tensor:
        """Log ψ(c) = log sigmoid(c) - c/2, normalised so that sigmoid(f) = exp(f/2) ψ(f)."""
        return logsigmoid(c) - c / 2


@dataclass(frozen=True)
class Gamma:
    """Student density ψ(c) ∝ (β + c²/2)^-α, from a Gamma mixing density: G-VGPMIL (Eq. 38).

    Its tails are so heavy that exp(f/2) ψ(f) grows without bound. Only early stopping keeps a fit from
    running away; `GammaLogisticTail` does not need it.
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
    """Gamma density with a logistic tail: θ(c) = max(θ_Gamma(c), θ_logistic(c)).

    The maximum of two decreasing functions decreases, so ψ stays super-Gaussian; c·θ(c) → ½ bounds the
    latent function. If θ_Gamma lies below θ_logistic everywhere, this is VGPMIL.
    """

    bounded: ClassVar[bool] = True

    alpha: float
    beta: float

    @cached_property
    def crossings(self) -> tuple[float, ...]:
        """Crossings c > 0 of θ_Gamma and θ_logistic, increasing: none, one or two."""

        def gap(u: Tensor) -> Tensor:
            return self._gamma.theta(u.exp()).log() - Logistic().theta(u.exp()).log()

        # For c ≥ 4α + 10, c tanh(c/2) > 4α, so θ_Gamma < 2α / c² < θ_logistic: no crossing lies beyond `end`.
        from scipy.optimize import brentq  # slow to import

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
        """Log ψ(c) = -∫₀ᶜ t θ(t) dt, summed over the intervals between crossings.

        In each interval the integrand is that of the density with the larger θ.
        """
        total = torch.zeros_like(c)
        for piece, low, high, start in self._pieces:
            total = total + piece.log_psi(c.clamp(low, high)) - start
        return total

    @cached_property
    def _pieces(self) -> tuple[tuple[Gamma | Logistic, float, float, float], ...]:
        """Intervals between crossings: density, lower and upper c, log ψ of that density at the lower c."""
        # The last interval is logistic; going down, the densities alternate.
        edges = [0.0, *self.crossings, float("inf")]
        pieces: list[Gamma | Logistic] = [Logistic(), self._gamma]
        intervals = []
        for i, (low, high) in enumerate(pairwise(edges)):
            piece = pieces[(len(edges) - 2 - i) % 2]
            intervals.append((piece, low, high, float(piece.log_psi(torch.tensor(low, dtype=torch.float64)))))
        return tuple(intervals)


@dataclass(frozen=True)
class LogDensity:
    """Density given by a differentiable log ψ(c), up to a constant: θ(c) = -(log ψ)'(c) / c by autograd.

    ψ must be super-Gaussian: θ must not increase with c.

    Attributes:
        function: log ψ of a tensor c ≥ 0, elementwise and differentiable.
        bounded: whether c·θ(c) tends to at least ½. If False and there are no validation scans, the fit is
            scored on its training scans.
    """

    function: Callable[[Tensor], Tensor]
    bounded: bool = False

    def theta(self, c: Tensor) -> Tensor:
        """θ(c). Below c = 1e-4 it is θ(1e-4), which equals θ(0) to O(1e-8)."""
        with torch.enable_grad():
            at = c.detach().clamp(min=1e-4).requires_grad_()
            (slope,) = torch.autograd.grad(self.function(at).sum(), at)
        return -slope / at.detach()

    def log_psi(self, c: Tensor) -> Tensor:
        """Log ψ(c)."""
        return self.function(c)

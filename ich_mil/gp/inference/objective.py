"""Objective of kernel learning: J of Eq. 29 and its lower bound F with q(w) optimised out.

In: a head with its present hyperparameters, its slices, π - ½ and ψ. Out: two functions of the kernel
hyperparameters λ (Castro-Macías et al. 2024, Eq. 29),

    J(λ, q) = -KL(q(u), p(u)) + (π - ½)ᵀ μ + Σ_n E_{q(f_n)}[log ψ(f_n)]

    A = I + Φ Θ Φᵀ        b = Φ (π - ½)
    F(λ) = ½ bᵀ A⁻¹ b - ½ log det A - ½ Σ_n θ_n residual_n

J leaves out log Z of Eq. 20, whose estimate is unreliable for thousands of slices (standard deviation 2.1 for
5,254 slices of the RSNA features, by 500 random Fourier features).

F + const is J at the optimal q(w) for fixed Θ and π (Eq. 26-27), with log ψ(f) replaced by its lower bound
log ψ(c) - θ(c) (f² - c²) / 2 at the c of Θ; so it never exceeds J at that q(w). F depends on the slices only
through the three sums Φ Θ Φᵀ, Φ (π - ½) and Σ θ k(x,x). One pass over tiles of slices computes the sums and a
second pass backpropagates their gradients into the kernel, so memory does not grow with N · M.

Shapes: N slices, n of a tile, D features, M inducing points, Q quadrature nodes.
"""

import functools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.inference.weights import Weights
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.sparse_gp import SparseGP, identity, lower_root

NODES = 32
"""Number of Gauss-Hermite nodes for E[log ψ]."""

QUADRATURE_ROWS = 8192
"""Number of slices whose E[log ψ] is computed at a time: 2 MB."""

TILE_ELEMENTS = 200_000
"""Number of elements of K_ZX in a tile: 1.6 MB."""


@functools.cache
def _hermite() -> tuple[Tensor, Tensor]:
    """Gauss-Hermite nodes (Q,) and weights (Q,) for the expectation under a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def expected_log_psi(mu: Tensor, variance: Tensor, density: Density) -> Tensor:
    """E[log ψ(f)] for f ~ N(μ, σ²), by Gauss-Hermite quadrature.

    Heads fitted to RSNA features and to MUSK1 have σ < 2. In this range the error is at most 3e-8 for the
    logistic density, 1e-4 for Gamma ((α, β) = (½, 1) and (1, 2.5)), and 3e-4 for these with a logistic tail,
    which puts a kink into θ. The error reaches 0.02 at σ = 5 and 0.05 at σ = 10.

    Args:
        mu: (n,) μ.
        variance: (n,) σ².
        density: ψ.

    Returns:
        (n,).
    """
    nodes, weights = (value.to(mu) for value in _hermite())
    f = mu[:, None] + variance.sqrt()[:, None] * nodes  # (n, Q)
    return density.log_psi(f.abs()) @ weights


class KernelObjective:
    """J and F as functions of the present hyperparameters of a head, for fixed slices and fixed π."""

    def __init__(self, model: SparseGP, x: Tensor, rows: Tensor, target: Tensor, density: Density) -> None:
        """Store references; J and F are not computed here.

        Args:
            model: head whose kernel and inducing points are read at every call.
            x: (N, D) raw features of the slices.
            rows: (N,) rows of x, in the order of `target`.
            target: (N,) π - ½.
            density: ψ.
        """
        self._model, self._x, self._rows, self._target, self._density = model, x, rows, target, density

    def projection(self) -> Projection:
        """Φ under the present hyperparameters."""
        return Projection(self._model, self._x, rows=self._rows)

    @torch.no_grad()
    def evaluate(self, projection: Projection, weights: Weights) -> tuple[float, Tensor]:
        """J at q(w), and θ(c) (N,) under q(w)."""
        mu, variance = (value[0] for value in projection.moments(weights.mean, weights.root))
        chunks = zip(mu.split(QUADRATURE_ROWS), variance.split(QUADRATURE_ROWS), strict=True)
        psi = sum((expected_log_psi(*chunk, self._density).sum() for chunk in chunks), mu.new_zeros(()))
        J = float(self._target @ mu - weights.kl()[0] + psi)
        c = torch.addcmul(variance, mu, mu).sqrt().clamp(max=self._model.settings.variant.clip)
        return J, self._density.theta(c)

    def collapsed(self, theta: Tensor) -> float:
        """F for Θ = diag `theta` (N,); adds its gradient to `.grad` of the tensors that require it."""
        r, m = self._target, len(self._model.inducing)
        gram, b, s = r.new_zeros(m, m), r.new_zeros(m), r.new_zeros(())
        with torch.enable_grad():
            root = self._model.prior_root()
        L = root.detach()
        with torch.no_grad():
            for part, x in self._tiles():
                K, prior = self._kernel(x)
                phi = torch.linalg.solve_triangular(L, K, upper=False)
                gram += (phi * theta[part]) @ phi.mT
                b += phi @ r[part]
                s += theta[part] @ prior
        with torch.enable_grad():
            sums = [value.requires_grad_() for value in (gram, b, s)]
            F = self._from_sums(*sums)
            F.backward()
        # dF/dΦ = 2 dF/d(ΦΘΦᵀ) Φ Θ + dF/db rᵀ, and Φ = L⁻¹ K gives dF/dK = L⁻ᵀ dF/dΦ, dF/dL = -dF/dK Φᵀ
        to_gram, to_b, to_s = (value.grad for value in sums)
        assert to_gram is not None
        assert to_b is not None
        assert to_s is not None
        both = torch.cat([to_gram + to_gram.mT, to_b[:, None]], 1)
        back = torch.linalg.solve_triangular(L.mT, both, upper=True)  # (M, M + 1)
        with torch.no_grad():
            to_root = -(back @ torch.cat([gram, b[None]])).tril()
        root.backward(to_root)
        for part, x in self._tiles():
            with torch.enable_grad():
                K, prior = self._kernel(x)
            phi = torch.linalg.solve_triangular(L, K.detach(), upper=False)
            to_K = back @ torch.cat([phi * theta[part], r[part][None]])
            pairs = [(prior, to_s * theta[part]), (K, to_K)]
            outputs, gradients = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
            torch.autograd.backward(outputs, gradients)
        return float(F.detach())

    @staticmethod
    def _from_sums(gram: Tensor, b: Tensor, s: Tensor) -> Tensor:
        """F () from Φ Θ Φᵀ (M, M), Φ r (M,) and Σ θ k(x,x) ()."""
        C = lower_root(gram + identity(len(gram), gram))  # A = C Cᵀ
        z = torch.linalg.solve_triangular(C, b[:, None], upper=False)
        # Σ θ residual = Σ θ k(x,x) - tr(Φ Θ Φᵀ)
        return z.square().sum() / 2 - C.diagonal().log().sum() - (s - gram.trace()) / 2

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Iterate over tiles: positions in `target` and standardised features (n, D)."""
        size = max(256, TILE_ELEMENTS // len(self._model.inducing))
        for start in range(0, len(self._rows), size):
            part = slice(start, start + size)
            yield part, self._model.standardise(self._x[self._rows[part]])

    def _kernel(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """K_ZX (M, n) and prior variance (n,) at standardised x."""
        K = self._model.covar_module(self._model.inducing, x).to_dense()
        return K, self._model.prior_variance(x)

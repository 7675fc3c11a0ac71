"""Objective of kernel learning: J of Eq. 29 and its lower bound F with q(w) optimised out.

In: a head with its present hyperparameters, its slices, π - ½ and ψ. Out: two functions of the kernel
hyperparameters λ (Castro-Macías et al. 2024, Eq. 29),

    J(λ, q) = -KL(q(u), p(u)) + (π - ½)ᵀ μ + Σ_n E_{q(f_n)}[log ψ(f_n)] - log Z

    A = I + Φ Θ Φᵀ        b = Φ (π - ½)
    F(λ) = ½ bᵀ A⁻¹ b - ½ log det A - ½ Σ_n θ_n residual_n - log Z

F + const is J at the optimal q(w) for fixed Θ and π (Eq. 26-27), with log ψ(f) replaced by its lower bound
log ψ(c) - θ(c) (f² - c²) / 2 at the c of Θ; so it never exceeds J at that q(w). F depends on the slices only
through the three sums Φ Θ Φᵀ, Φ (π - ½) and Σ θ k(x,x). One pass over tiles of slices computes the sums and a
second pass backpropagates their gradients into the kernel, so memory does not grow with N · M.

If slices are smoothed along z (`ich_mil.gp.smoothing`), a tile is one scan, K_ZX Wᵀ replaces K_ZX, and
diag(W (K_XX + εI) Wᵀ) replaces k(x,x).

Shapes: N slices, n of a tile, D features, M inducing points, Q quadrature nodes, F Fourier features, L draws.
"""

import functools
import math
from collections.abc import Iterator

import numpy as np
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from ich_mil.errors import ConfigError
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.inference.weights import Weights
from ich_mil.gp.observations.densities import Density, Logistic
from ich_mil.gp.smoothing import Smoother, blocks_of
from ich_mil.gp.sparse_gp import SparseGP, identity, lower_root

NODES = 32
"""Number of Gauss-Hermite nodes for E[log ψ]."""

QUADRATURE_ROWS = 8192
"""Number of slices whose E[log ψ] is computed at a time: 2 MB."""

TILE_ELEMENTS = 200_000
"""Number of elements of K_ZX in a tile: 1.6 MB."""

LOG_Z_DRAWS = 256
"""Number of draws of f for log Z."""


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


class FourierPrior:
    """Estimate of log Z of Eq. 20 from prior draws by random Fourier features (Rahimi and Recht 2007).

        f(x) = √(2v / F) Σ_i a_i cos(ω_iᵀ x / l + τ_i)        log Z = log E_f Π_n ψ(f_n) / φ(f_n)

    The draws approximate f ~ N(0, K_XX). φ is the logistic density (Eq. 15), for which log Z is 0; constant
    factors of ψ cancel in J. The draws of a, ω, τ are the same for every λ, so the estimate is smooth in λ.
    """

    def __init__(self, model: SparseGP, density: Density) -> None:
        """Draw `model.settings.log_z` Fourier features, with the seed of the settings.

        Raises:
            ConfigError: the kernel is not an RBF kernel of all features, scaled or not.
        """
        kernel = model.covar_module
        self._scale = kernel if isinstance(kernel, ScaleKernel) else None
        self._base = kernel.base_kernel if isinstance(kernel, ScaleKernel) else kernel
        of_some = kernel.active_dims is not None or self._base.active_dims is not None
        if of_some or not isinstance(self._base, RBFKernel):
            has = "one of some features" if of_some else f"a {type(self._base).__name__}"
            raise ConfigError(
                f"head.log_z: the random Fourier features are those of RBFKernel, this head has {has}; "
                "set log_z to 0, which leaves log Z out"
            )
        self._density = density
        n_features, n_waves = model.inducing.shape[1], model.settings.log_z
        generator = torch.Generator().manual_seed(model.settings.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(model.inducing)

        self._omega, self._a = normal(n_features, n_waves), normal(LOG_Z_DRAWS, n_waves)
        self._tau = 2 * math.pi * torch.rand(n_waves, generator=generator, dtype=torch.float64).to(self._a)

    def log_ratios(self, x: Tensor) -> Tensor:
        """Log ratios Σ_n log ψ(f_n) - log φ(f_n) (L,) of the draws, at standardised slices x (n, D)."""
        waves = torch.cos(x / self._base.lengthscale @ self._omega + self._tau)  # (n, F)
        f = math.sqrt(2 / waves.shape[1]) * self._a @ waves.mT  # (L, n)
        if self._scale is not None:
            f = f * self._scale.outputscale.sqrt()
        return (self._density.log_psi(f.abs()) - Logistic().log_psi(f.abs())).sum(1)


class KernelObjective:
    """J and F as functions of the present hyperparameters of a head, for fixed slices and fixed π."""

    def __init__(
        self,
        model: SparseGP,
        x: Tensor,
        rows: Tensor,
        target: Tensor,
        density: Density,
        *,
        smoother: Smoother | None = None,
    ) -> None:
        """Store references; J and F are not computed here.

        Args:
            model: head whose kernel and inducing points are read at every call.
            x: (N, D) raw features of the slices.
            rows: (N,) rows of x, in the order of `target`.
            target: (N,) π - ½.
            density: ψ.
            smoother: smoother of the scans of x.

        Raises:
            ConfigError: log Z is enabled with a kernel other than RBF on all features.
        """
        self._model, self._x, self._rows, self._target, self._density = model, x, rows, target, density
        self._smoother = smoother
        self._prior = FourierPrior(model, density) if model.settings.log_z else None

    def projection(self) -> Projection:
        """Φ under the present hyperparameters."""
        return Projection(self._model, self._x, rows=self._rows, smoother=self._smoother)

    @torch.no_grad()
    def evaluate(self, projection: Projection, weights: Weights) -> tuple[float, Tensor]:
        """J at q(w), and θ(c) (N,) under q(w)."""
        mu, variance = (value[0] for value in projection.moments(weights.mean, weights.root))
        parts = zip(mu.split(QUADRATURE_ROWS), variance.split(QUADRATURE_ROWS), strict=True)
        psi = sum((expected_log_psi(*part, self._density).sum() for part in parts), mu.new_zeros(()))
        J = float(self._target @ mu - weights.kl()[0] + psi - self.log_z())
        c = torch.addcmul(variance, mu, mu).sqrt().clamp(max=self._model.settings.variant.clip)
        return J, self._density.theta(c)

    @torch.no_grad()
    def log_z(self) -> float:
        """Estimate of log Z of Eq. 20; 0 if the settings leave it out.

        The estimate is unreliable for thousands of slices. It is the log of a mean of exponentials of sums
        over N slices, so with more slices fewer of the `LOG_Z_DRAWS` draws dominate the mean. On RSNA
        features (Gamma(1, 2.5), v = ½, ℓ = D, 500 Fourier features, 8 seeds) its standard deviation was 0.004
        for 2 slices, 0.02 for 20, 0.1 for 200 and 2.1 for 5,254 slices. In the last case one draw held 76 %
        of the mean, and kernel learning without log Z raised J by 6.
        """
        if self._prior is None:
            return 0.0
        ratios = self._target.new_zeros(LOG_Z_DRAWS)
        for _, x, _ in self._tiles():
            ratios += self._prior.log_ratios(x)
        return float(torch.logsumexp(ratios, 0)) - math.log(LOG_Z_DRAWS)

    def collapsed(self, theta: Tensor) -> float:
        """F for Θ = diag `theta` (N,); adds its gradient to `.grad` of the tensors that require it."""
        r, m = self._target, len(self._model.inducing)
        gram, b, s, ratios = r.new_zeros(m, m), r.new_zeros(m), r.new_zeros(()), r.new_zeros(LOG_Z_DRAWS)
        with torch.enable_grad():
            root = self._model.prior_root()
        L = root.detach()
        with torch.no_grad():
            for part, x, W in self._tiles():
                K, prior = self._kernel(x, W)
                phi = torch.linalg.solve_triangular(L, K, upper=False)
                gram += (phi * theta[part]) @ phi.mT
                b += phi @ r[part]
                s += theta[part] @ prior
                if self._prior is not None:
                    ratios += self._prior.log_ratios(x)
        with torch.enable_grad():
            sums = [value.requires_grad_() for value in (gram, b, s, ratios)]
            F = self._from_sums(*sums)
            F.backward()
        # dF/dΦ = 2 dF/d(ΦΘΦᵀ) Φ Θ + dF/db rᵀ, and Φ = L⁻¹ K gives dF/dK = L⁻ᵀ dF/dΦ, dF/dL = -dF/dK Φᵀ
        to_gram, to_b, to_s, to_ratios = (value.grad for value in sums)
        assert to_gram is not None
        assert to_b is not None
        assert to_s is not None
        both = torch.cat([to_gram + to_gram.mT, to_b[:, None]], 1)
        back = torch.linalg.solve_triangular(L.mT, both, upper=True)  # (M, M + 1)
        with torch.no_grad():
            to_root = -(back @ torch.cat([gram, b[None]])).tril()
        root.backward(to_root)
        for part, x, W in self._tiles():
            with torch.enable_grad():
                K, prior = self._kernel(x, W)
                pairs: list[tuple[Tensor, Tensor | None]] = [(prior, to_s * theta[part])]
                if self._prior is not None:
                    pairs.append((self._prior.log_ratios(x), to_ratios))
            phi = torch.linalg.solve_triangular(L, K.detach(), upper=False)
            pairs.append((K, back @ torch.cat([phi * theta[part], r[part][None]])))
            outputs, gradients = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
            torch.autograd.backward(outputs, gradients)
        return float(F.detach())

    def _from_sums(self, gram: Tensor, b: Tensor, s: Tensor, ratios: Tensor) -> Tensor:
        """F () from Φ Θ Φᵀ (M, M), Φ r (M,), Σ θ k(x,x) () and the log ratios (L,) of log Z."""
        C = lower_root(gram + identity(len(gram), gram))  # A = C Cᵀ
        z = torch.linalg.solve_triangular(C, b[:, None], upper=False)
        # Σ θ residual = Σ θ k(x,x) - tr(Φ Θ Φᵀ)
        F = z.square().sum() / 2 - C.diagonal().log().sum() - (s - gram.trace()) / 2
        if self._prior is None:
            return F
        return F - torch.logsumexp(ratios, 0) + math.log(LOG_Z_DRAWS)

    def _tiles(self) -> Iterator[tuple[slice | Tensor, Tensor, Tensor | None]]:
        """Iterate over tiles: positions in `target`, standardised features (n, D), and W or None."""
        if self._smoother is not None:
            place = torch.argsort(self._rows)
            for block in blocks_of(self._smoother.offsets):
                x = self._model.standardise(self._x[block])
                yield place[block], x, self._smoother.weights(block).to(x)
            return
        size = max(256, TILE_ELEMENTS // len(self._model.inducing))
        for start in range(0, len(self._rows), size):
            part = slice(start, start + size)
            yield part, self._model.standardise(self._x[self._rows[part]]), None

    def _kernel(self, x: Tensor, W: Tensor | None) -> tuple[Tensor, Tensor]:
        """K_ZX (M, n) and prior variance (n,) at standardised x; with W (n, n) those of the smoothed W f."""
        model = self._model
        K = model.covar_module(model.inducing, x).to_dense()
        if W is not None:
            prior = ((W @ model.covar_module(x).to_dense()) * W).sum(1)
            return K @ W.mT, prior + model.variational_strategy.jitter_val * W.square().sum(1)
        return K, model.prior_variance(x)

"""Emulator of the log likelihood of θ and of the mode f̂, from points that the burn-in has evaluated.

In: points x = log θ (Q, p), log estimates (Q,), modes (Q, C, n). Out: a function of x that costs
microseconds, used to propose far moves which Metropolis-Hastings then corrects (Liu 2001, section 9.4.3,
surrogate transition), and a start near the mode for Newton's method.

The emulator is a quadratic plus a Gaussian process of its residuals, within the box of the points. Outside it
has the value at the nearest point of the box: the likelihood is flat as a weight goes to 0, and as weights
grow the prior decides.

Shapes: p = C·d parameters, Q points, R chains.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

RIDGE = 1e-4
LENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Length scales that are tried, in standard deviations of the points."""
NOISES = (0.02, 0.1, 0.3, 1.0)
"""Noise over residual variance that are tried: importance estimates are noisy."""


def _quadratic(z: Tensor) -> Tensor:
    """1, z and all products of two entries: (..., p) to (..., 1 + p + p(p + 1)/2)."""
    i, j = torch.triu_indices(z.shape[-1], z.shape[-1], device=z.device)
    return torch.cat([torch.ones_like(z[..., :1]), z, z[..., i] * z[..., j]], -1)


def _rbf(a: Tensor, b: Tensor, length: float) -> Tensor:
    return (torch.cdist(a, b).square() / (-2 * length**2)).exp()


@dataclass(frozen=True)
class Surrogate:
    """A fitted emulator; `fit` makes it.

    Attributes:
        mean: of the points (p,).
        whiten: (p, p), z = (x - mean) @ whiten has unit covariance.
        low: smallest x (p,); high: largest.
        points: z (Q, p).
        coefficients: of the quadratic for the level (K,).
        weights: of the Gaussian process (Q,).
        modes: coefficients of the quadratic for f̂ (K, C·n).
        shape: (C, n).
        length: length scale.
    """

    mean: Tensor
    whiten: Tensor
    low: Tensor
    high: Tensor
    points: Tensor
    coefficients: Tensor
    weights: Tensor
    modes: Tensor
    shape: tuple[int, int]
    length: float

    @classmethod
    def fit(cls, x: Tensor, level: Tensor, modes: Tensor) -> Self:
        """Fit to points x (Q, p) with levels (Q,), some -inf, and modes (Q, C, n).

        Length scale and noise are those of the largest evidence among `LENGTHS` and `NOISES`.
        """
        usable = level.isfinite()
        x, level, modes = x[usable], level[usable], modes[usable]
        mean = x.mean(0)
        covariance = torch.cov(x.mT).reshape(x.shape[1], x.shape[1])
        values, vectors = torch.linalg.eigh(covariance)
        whiten = vectors / values.clamp(min=1e-8 * float(values[-1])).sqrt()
        z = (x - mean) @ whiten
        basis = _quadratic(z)  # (Q, K)
        gram = basis.mT @ basis + RIDGE * len(z) * torch.eye(basis.shape[1]).to(basis)
        both = torch.cat([level[:, None], modes.flatten(1)], 1)
        solved = torch.linalg.solve(gram, basis.mT @ both)
        coefficients = solved[:, 0]
        residual = level - basis @ coefficients
        variance = residual.var().clamp(min=1e-12)
        candidates = []
        for length in LENGTHS:
            K = _rbf(z, z, length)
            for noise in NOISES:
                L = torch.linalg.cholesky(K + (noise + 1e-8) * torch.eye(len(z)).to(K))
                solved_residual = torch.cholesky_solve(residual[:, None], L)[:, 0]
                # evidence with the variance integrated at its best
                scale = float(residual @ solved_residual) / len(z)
                evidence = -len(z) / 2 * torch.tensor(scale + 1e-12 * float(variance)).log() - float(
                    L.diagonal().log().sum()
                )
                candidates.append((float(evidence), length, solved_residual))
        _, length, weights = max(candidates, key=lambda candidate: candidate[0])
        return cls(
            mean, whiten, x.amin(0), x.amax(0), z, coefficients, weights, solved[:, 1:],
            (modes.shape[1], modes.shape[2]), length,
        )  # fmt: skip

    def _z(self, x: Tensor) -> Tensor:
        return (x.clamp(self.low, self.high) - self.mean) @ self.whiten

    def level(self, x: Tensor) -> Tensor:
        """The emulated log likelihood (R,) of x (R, p)."""
        z = self._z(x)
        return _quadratic(z) @ self.coefficients + _rbf(z, self.points, self.length) @ self.weights

    def start(self, x: Tensor) -> Tensor:
        """An f (R, C, n) near the mode, a function of x (R, p) alone."""
        z = self._z(x)
        return (_quadratic(z) @ self.modes).reshape(len(x), *self.shape)

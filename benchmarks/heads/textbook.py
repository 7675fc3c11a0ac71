"""Textbook implementation of VGPMIL: explicit inverses, unwhitened u, loops over bags and slices.

Baseline for the speed of the engine: Castro-Macías et al. 2024, Eq. 25-28, logistic density.
`tests/gp/observations/test_vgpmil.py` checks the engine against the same equations.

Shapes: B bags, N slices, D features, M inducing points.
"""

import math

import torch
from torch import Tensor


def sweeps(
    x: Tensor, offsets: Tensor, labels: Tensor, z: Tensor, *, length: float, log_h: float, count: int
) -> Tensor:
    """Posterior mean μ (N,) after `count` sweeps, starting from π = 0 in negative and ½ in positive bags.

    x (N, D) is standardised, z (M, D) are the inducing points, offsets (B + 1,), labels (B,), length ℓ.
    """

    def k(a: Tensor, b: Tensor) -> Tensor:
        return 0.5 * torch.exp(-torch.cdist(a, b).square() / (2 * length))

    Kzz = k(z, z) + 1e-6 * torch.eye(len(z), dtype=torch.float64)
    Kxz = k(x, z)
    spans = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), labels.tolist(), strict=True))
    pi = torch.cat([torch.full((end - start,), 0.5 * t, dtype=torch.float64) for start, end, t in spans])
    S, m = Kzz, torch.zeros(len(z), dtype=torch.float64)
    mu = torch.zeros(len(x), dtype=torch.float64)
    for _ in range(count):
        A = Kxz @ torch.linalg.inv(Kzz)  # (N, M)
        mu = A @ m
        variance = ((A @ S) * A).sum(1) + 0.5 + 1e-6 - (A * Kxz).sum(1)
        c = (mu.square() + variance).sqrt()
        theta = torch.tanh(c / 2) / (2 * c)
        S = torch.linalg.inv(A.T @ (theta[:, None] * A) + torch.linalg.inv(Kzz))
        m = S @ A.T @ (pi - 0.5)
        mu = A @ m
        for start, end, t in spans:
            for n in range(start, end):
                others = 1.0
                for j in range(start, end):
                    if j != n:
                        others *= 1 - float(pi[j])
                pi[n] = 1 / (1 + math.exp(-(float(mu[n]) + log_h * (2 * t - 1) * others)))
    return mu

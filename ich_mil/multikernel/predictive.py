"""Class probabilities of new scans, with θ, f and f* integrated out by Monte Carlo (Eq. 8).

    f*_c | f, θ ~ N(k*ᵀ K_c⁻¹ f_c, k** - k*ᵀ K_c⁻¹ k*)

Shapes: L draws of (θ, f), C classes, d sources, n training scans, m new scans.
"""

import torch
from torch import Tensor

from ich_mil.multikernel.laplace import covariance

TRIES = 10
"""Draws of f* for each draw of (θ, f)."""
BATCH = 2**22
"""Numbers in the matrices that are factorised together."""


@torch.no_grad()
def predict(
    theta: Tensor, f: Tensor, sources: Tensor, cross: Tensor, diagonal: Tensor, *, seed: int
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the class probabilities over the posterior.

    The same noise serves every scan, so a scan has the same numbers in any company.

    Args:
        theta: (L, C, d).
        f: (L, C, n).
        sources: S (d, n, n).
        cross: (d, m, n) kernel of new with training scans.
        diagonal: (d, m) kernel of new scans with themselves.
        seed: of the noise.

    Returns:
        (m, C) and (m, C).
    """
    (L, C, n), m = f.shape, cross.shape[1]
    generator = torch.Generator(f.device).manual_seed(seed)
    noise = torch.randn(L, TRIES, C, 1, generator=generator, dtype=f.dtype, device=f.device)
    total, squares = f.new_zeros(C, m), f.new_zeros(C, m)
    size = max(1, BATCH // (C * n * max(n, m)))
    for start in range(0, L, size):
        t, values = theta[start : start + size], f[start : start + size]
        root = torch.linalg.cholesky(covariance(t, sources))  # (l, C, n, n)
        k = (t.reshape(-1, len(sources)) @ cross.flatten(1)).reshape(*t.shape[:2], m, n)
        right = torch.cat([values[..., None], k.mT], -1)  # (l, C, n, 1 + m)
        half = torch.linalg.solve_triangular(root, right, upper=False)
        mean = (half[..., :1] * half[..., 1:]).sum(-2)  # (l, C, m)
        variance = (t @ diagonal - half[..., 1:].square().sum(-2)).clamp(min=0)
        p = (mean[:, None] + variance.sqrt()[:, None] * noise[start : start + size]).softmax(2)
        total += p.sum((0, 1))
        squares += p.square().sum((0, 1))
    average = total / (L * TRIES)
    return average.mT, (squares / (L * TRIES) - average.square()).clamp(min=0).sqrt().mT

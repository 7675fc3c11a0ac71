"""Small problems and their dense answers."""

import math

import numpy as np
import torch
from torch import Tensor

from ich_mil.multikernel.laplace import Laplace, covariance, laplace


def random_sources(d: int, n: int, generator: torch.Generator) -> Tensor:
    """Positive definite S (d, n, n) of mean diagonal 1."""
    A = torch.randn(d, n, n, generator=generator, dtype=torch.float64)
    S = A @ A.mT + 0.1 * n * torch.eye(n, dtype=torch.float64)
    return S / S.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]


def random_problem(R: int, C: int, d: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """θ (R, C, d), S (d, n, n) and one-hot labels (R, C, n)."""
    generator = torch.Generator().manual_seed(seed)
    S = random_sources(d, n, generator)
    theta = (torch.randn(R, C, d, generator=generator, dtype=torch.float64) * 0.7).exp()
    y = torch.randint(C, (n,), generator=generator)
    hot = torch.nn.functional.one_hot(y, C).T.to(torch.float64)
    return theta, S, hot.expand(R, C, n).contiguous()


def approximation(theta: Tensor, S: Tensor, labels: Tensor) -> Laplace:
    return laplace(covariance(theta, S), labels)


def dense(q: Laplace, pi: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """K, W at π (C, n), by default of the mode, and Λ (nC, nC) of the first chain, straight from Eq. 6."""
    K = torch.block_diag(*q.K[0])
    pi = q.mode[0].softmax(0) if pi is None else pi
    Pi = torch.cat([torch.diag(row) for row in pi])  # (nC, n)
    W = torch.diag(pi.flatten()) - Pi @ Pi.mT
    return K, W, torch.linalg.inv(K) + W


def hermite_grid(n: int, nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes (nodes^n, n) and log weights of a Gauss-Hermite rule for N(0, I)."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    points = torch.cartesian_prod(*[torch.as_tensor(x)] * n).reshape(-1, n)
    weights = torch.cartesian_prod(*[torch.as_tensor(np.log(w / w.sum()))] * n).reshape(-1, n).sum(1)
    return points, weights


def two_class_evidence(K: Tensor, first: Tensor, nodes: int = 8) -> float:
    """log p(y) of two classes by quadrature: f¹ - f² ~ N(0, K), K = K_1 + K_2 (n, n)."""
    z, weights = hermite_grid(len(K), nodes)
    g = z @ torch.linalg.cholesky(K).mT
    return float((torch.nn.functional.logsigmoid(g * (2 * first - 1)).sum(1) + weights).logsumexp(0))


def long_run_evidence(K: Tensor, labels: Tensor, *, draws: int, seed: int = 0) -> tuple[float, float]:
    """log p(y) by draws from the prior, of K (C, n, n) and labels (C, n), and its standard error."""
    generator = torch.Generator().manual_seed(seed)
    L = torch.linalg.cholesky(K)
    f = L @ torch.randn(*labels.shape, draws, generator=generator, dtype=torch.float64)  # (C, n, draws)
    level = ((labels[..., None] * f).sum(0) - f.logsumexp(0)).sum(0)
    values = (level - level.max()).exp()
    mean = float(values.mean())
    error = float(values.std()) / math.sqrt(draws) / mean
    return math.log(mean) + float(level.max()), error

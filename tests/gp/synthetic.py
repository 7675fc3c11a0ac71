"""Small synthetic scans, and what textbooks in tests of the head have in common."""

import torch
from torch import Tensor


def scans(n_bags: int = 24, seed: int = 0, *, longest: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """Features (N, 3), offsets, labels: bags of 1 to `longest` slices, up to 3 shifted in positive ones."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, longest + 1, (n_bags,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    labels = torch.arange(n_bags) % 2
    x = torch.randn(int(offsets[-1]), 3, generator=generator, dtype=torch.float64)
    for start, size, label in zip(offsets[:-1].tolist(), sizes.tolist(), labels.tolist(), strict=True):
        if label:
            x[start : start + min(3, size)] += torch.tensor([2.5, 0.0, 1.0])
    return 5 + x * torch.tensor([1.0, 10.0, 0.1]), offsets, labels


def close(got: Tensor, expected: Tensor, rtol: float = 1e-8) -> None:
    """Assert that two tensors agree. μ crosses 0: relative to the largest value, not to each."""
    scale = float(expected.abs().max())
    torch.testing.assert_close(got / scale, expected / scale, rtol=0, atol=rtol)


def kl_of_prior(m: Tensor, S: Tensor, Kzz: Tensor) -> float:
    """KL(N(m, S) ‖ N(0, K)) of unwhitened inducing values, with an explicit inverse."""
    Kinv = torch.linalg.inv(Kzz)
    return 0.5 * float(torch.trace(Kinv @ S) + m @ Kinv @ m - len(m) + torch.logdet(Kzz) - torch.logdet(S))

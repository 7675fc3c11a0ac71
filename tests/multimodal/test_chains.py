"""Normal approximation and chains, against quadrature and a normal posterior."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from ich_mil.convergence import bulk_ess, r_hat
from ich_mil.multimodal.inference.gaussian import Normal, fit_gaussian, match
from ich_mil.multimodal.inference.hmc import LONG, SHORT, sample
from ich_mil.multimodal.inference.target import Target
from tests.multimodal.bags import likelihood_of, simulated


def small() -> tuple[Target, np.ndarray, np.ndarray]:
    """Six bags of one feature with prior `thesis`; mean and variance of (a, b, α, β) by quadrature."""
    rng = np.random.default_rng(0)
    sizes = np.array([1, 2, 2, 1, 2, 1])
    owner = np.repeat(np.arange(6), sizes)
    x, y = rng.standard_normal((len(owner), 1)), np.array([1, 0, 1, 1, 0, 1])
    nodes = np.linspace(-4.0, 4.0, 21)  # in prior deviations
    grid = np.meshgrid(4 * nodes, 2 * nodes, 4 * nodes, 2 * nodes, indexing="ij", sparse=True)
    a, b, al, be = grid
    density = np.exp(-(nodes**2) / 2)
    w = np.einsum("i,j,k,l->ijkl", density, density, density, density)
    for bag in range(6):
        rows, total = np.flatnonzero(owner == bag), 0.0
        for delta in itertools.product((0, 1), repeat=len(rows)):
            p, eta = 1.0, al
            for j, d in zip(rows, delta, strict=True):
                p = p * ndtr((1 if d else -1) * (a + b * x[j, 0]))
                eta = eta + d * be * x[j, 0]
            total = total + p * ndtr((2 * y[bag] - 1) * eta)
        w *= total
    w /= w.sum()
    mean = np.array([(w * part).sum() for part in grid])
    variance = np.array([(w * part**2).sum() for part in grid]) - mean**2
    return Target(likelihood_of([x], [owner], y), "thesis"), mean, variance


def check(draws: torch.Tensor, mean: np.ndarray, variance: np.ndarray) -> None:
    """Draws (R, L, C) have these moments, within 4 standard errors of their own."""
    assert float(r_hat(draws).max()) < 1.05
    squares = (draws - torch.from_numpy(mean)).square()
    for values, truth in ((draws, mean), (squares, variance)):
        error = values.flatten(0, 1).std(0) / bulk_ess(values).sqrt()
        assert float(error.max()) < 0.3 * np.sqrt(variance).max() * (
            1 if values is draws else np.sqrt(variance).max()
        )
        np.testing.assert_array_less((values.mean((0, 1)) - torch.from_numpy(truth)).abs(), 4 * error)


@pytest.mark.parametrize("steps", [SHORT, LONG])
def test_chains_against_quadrature(steps):
    target, mean, variance = small()
    generator = torch.Generator().manual_seed(0)
    target, q = fit_gaussian(target, 400, generator)
    chains = sample(target, q, chains=8, length=150, generator=generator, steps=steps)
    assert 0.6 < chains.acceptance < 0.99
    check(target.theta(chains.draws), mean, variance)


class NormalTarget(Target):
    """N(mean, covariance) in place of a posterior."""

    def __init__(self, mean: torch.Tensor, covariance: torch.Tensor) -> None:
        super().__init__(likelihood_of(*simulated(30, np.random.default_rng(0))[:3]), "learned")
        self.mean, self.precision = mean, torch.linalg.inv(covariance)

    def __call__(self, x: torch.Tensor, *, tolerance: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        pull = (self.mean - x) @ self.precision
        return ((x - self.mean) * pull).sum(1) / 2, pull


def wide() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(13, 13, generator=generator, dtype=torch.float64).tril() + 3 * torch.eye(13)
    return torch.arange(13.0, dtype=torch.float64), root @ root.mT


def standard() -> Normal:
    return Normal(torch.zeros(13, dtype=torch.float64), torch.eye(13, dtype=torch.float64))


def test_matching_finds_a_normal_target():
    (mean, covariance), generator, q = wide(), torch.Generator().manual_seed(0), standard()
    target = NormalTarget(mean, covariance)
    for number in range(30):
        draws = q.draw(32, generator)
        q = match(q, draws, target(draws)[1], 32 / (number + 1))
    torch.testing.assert_close(q.mean, mean, rtol=0, atol=0.05)
    torch.testing.assert_close(q.root @ q.root.mT, covariance, rtol=0.05, atol=0.1)


def test_chains_find_a_normal_target():
    """From an approximation of the wrong mean and covariance."""
    mean, covariance = wide()
    chains = sample(
        NormalTarget(mean, covariance),
        standard(),
        chains=8,
        length=300,
        generator=torch.Generator().manual_seed(1),
    )
    check(chains.draws, mean.numpy(), covariance.diag().numpy())

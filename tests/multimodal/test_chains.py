"""Normal approximation and chains, against quadrature and a normal posterior."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from ich_mil.convergence import bulk_ess, r_hat
from ich_mil.multimodal.inference.gaussian import Normal, fit_gaussian
from ich_mil.multimodal.inference.hmc import sample
from ich_mil.multimodal.inference.nuts import sample_nuts
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
    return Target(likelihood_of([x], [owner], y, chunk=4), "thesis"), mean, variance


def check(draws: torch.Tensor, mean: np.ndarray, variance: np.ndarray) -> None:
    """Draws (R, L, C) of coefficients have these moments."""
    assert float(r_hat(draws).max()) < 1.1
    got, effective = draws.flatten(0, 1).numpy(), bulk_ess(draws).numpy()
    np.testing.assert_array_less(np.abs(got.mean(0) - mean), 4 * np.sqrt(variance / effective))
    np.testing.assert_array_less(np.abs(got.var(0) / variance - 1), 4 * np.sqrt(2 / effective))


def test_chains_against_quadrature():
    target, mean, variance = small()
    generator = torch.Generator().manual_seed(0)
    q = fit_gaussian(target, 400, generator)
    found = sample(target, q, chains=4, length=60, generator=generator)
    assert 0.6 < found.acceptance < 0.99
    check(target.theta(found.draws), mean, variance)


@pytest.mark.filterwarnings("ignore:.*ArviZ is undergoing")
def test_nuts_against_quadrature():
    pytest.importorskip("nutpie", reason="extra 'sampling'")
    target, mean, variance = small()
    q = fit_gaussian(target, 400, torch.Generator().manual_seed(0))
    check(target.theta(sample_nuts(target, q, chains=2, draws=500, seed=0)), mean, variance)


class NormalTarget(Target):
    """N(mean, covariance) in place of a posterior."""

    def __init__(self, mean: torch.Tensor, covariance: torch.Tensor) -> None:
        super().__init__(likelihood_of(*simulated(30, np.random.default_rng(0))[:3]), "learned")
        self.mean, self.precision = mean, torch.linalg.inv(covariance)

    def __call__(self, x: torch.Tensor) -> tuple[float, torch.Tensor]:
        pull = self.precision @ (self.mean - x)
        return float((x - self.mean) @ pull) / 2, pull


def test_matching_finds_a_normal_target():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(13, 13, generator=generator, dtype=torch.float64).tril() + 3 * torch.eye(13)
    mean, covariance = torch.arange(13.0, dtype=torch.float64), root @ root.mT
    target = NormalTarget(mean, covariance)
    q = fit_gaussian(target, 2400, generator)
    torch.testing.assert_close(q.mean, mean, rtol=0, atol=0.05)
    torch.testing.assert_close(q.root @ q.root.mT, covariance, rtol=0.05, atol=0.1)


def test_chains_keep_a_normal_target():
    mean, covariance = torch.full((13,), 2.0, dtype=torch.float64), torch.eye(13, dtype=torch.float64)
    target = NormalTarget(mean, covariance)
    start = Normal(torch.zeros_like(mean), torch.eye(13, dtype=torch.float64))
    found = sample(target, start, chains=4, length=300, generator=torch.Generator().manual_seed(1))
    check(found.draws, mean.numpy(), np.ones(13))

"""The exact likelihood and the density of the target, against enumeration and differences."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import norm

from ich_mil.multimodal.inference.likelihood import Likelihood
from ich_mil.multimodal.inference.target import Target
from tests.multimodal.bags import likelihood_of, simulated

INNER = (slice(0, 3), slice(3, 5))
OUTER = (slice(6, 8), slice(8, 9))
"""Coefficients of modalities of 2 and 1 columns; 5 is α."""


def coefficients(scale: float, seed: int = 1) -> torch.Tensor:
    return scale * torch.randn(9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def enumerated(X, bags, y, theta) -> np.ndarray:
    """P(y) (B,) of each bag, summed over every δ."""
    values = []
    for bag in range(len(y)):
        p, c = [], []
        for x, owner, inner, outer in zip(X, bags, INNER, OUTER, strict=True):
            own, b = x[owner == bag], theta[inner]
            p += ndtr(b[0] + own @ b[1:]).tolist()
            c += (own @ theta[outer]).tolist()
        total = 0.0
        for delta in itertools.product((0, 1), repeat=len(p)):
            d = np.array(delta)
            total += np.prod(np.where(d, p, 1 - np.array(p))) * ndtr((2 * y[bag] - 1) * (theta[5] + d @ c))
        values.append(total)
    return np.array(values)


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 3.0])
def test_likelihood_against_enumeration(scale):
    X, bags, y, _ = simulated(30, np.random.default_rng(0))
    theta = coefficients(scale)
    values, _ = likelihood_of(X, bags, y)(theta)
    np.testing.assert_allclose(values.exp(), enumerated(X, bags, y, theta.numpy()), rtol=0, atol=1e-11)


def test_scores_of_bags_against_differences():
    likelihood, theta = likelihood_of(*simulated(30, np.random.default_rng(0))[:3]), coefficients(1.0)
    _, scores = likelihood(theta)
    for column in range(9):
        step = torch.zeros(9, dtype=torch.float64)
        step[column] = 1e-5
        difference = (likelihood(theta + step)[0] - likelihood(theta - step)[0]) / 2e-5
        torch.testing.assert_close(scores[:, column], difference, rtol=1e-6, atol=1e-8)


def test_many_instances_have_the_limit_of_their_sum():
    """4,000 equal instances: the score is normal, by the central limit theorem."""
    x, owner = np.tile([[1.0], [-1.0]], (2000, 1)), np.zeros(4000, int)
    likelihood = likelihood_of([np.r_[x, x]], [np.r_[owner, owner + 1]], np.array([1, 0]))
    theta = torch.tensor([0.0, 0.0, 0.5, 0.02], dtype=torch.float64)  # p = 1/2, effects ±.02
    values, _ = likelihood(theta)
    spread = np.sqrt(1 + 4000 * 0.25 * 0.02**2)
    np.testing.assert_allclose(values.exp(), norm.cdf([0.5 / spread, -0.5 / spread]), atol=1e-5)


def test_sizes_of_bags_and_chunks_do_not_matter():
    X, bags, y, _ = simulated(40, np.random.default_rng(7))
    theta = coefficients(1.0)
    values, scores = likelihood_of(X, bags, y, chunk=10_000)(theta)
    for chunk in (1, 60):
        other, others = likelihood_of(X, bags, y, chunk=chunk)(theta)
        torch.testing.assert_close(other, values, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(others, scores, rtol=1e-10, atol=1e-12)


def test_hopeless_coefficients_stay_finite():
    X, bags, y, _ = simulated(40, np.random.default_rng(8))
    values, scores = likelihood_of(X, bags, y)(coefficients(1e4))
    assert torch.isfinite(values).all()
    assert torch.isfinite(scores).all()
    assert float(values.min()) < -20


def test_a_sample_of_bags_is_theirs():
    likelihood, theta = likelihood_of(*simulated(40, np.random.default_rng(9))[:3]), coefficients(1.0)
    some = likelihood.some(10, torch.Generator().manual_seed(0))
    chosen = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:10]
    torch.testing.assert_close(some(theta)[0], likelihood(theta)[0][chosen], rtol=1e-11, atol=0.0)
    assert likelihood.some(40, torch.Generator()) is likelihood


def test_likelihood_on_a_device(device):
    data = simulated(30, np.random.default_rng(0))[:3]
    values, scores = likelihood_of(*data)(coefficients(1.0))
    on_device: Likelihood = likelihood_of(*data, device=device)
    got, slopes = on_device(coefficients(1.0).to(device))
    torch.testing.assert_close(got.cpu(), values, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slopes.cpu(), scores, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("prior", ["learned", "thesis"])
def test_density_against_its_definition(prior):
    """Log-likelihood, normal slopes and half-normal scales of scipy; the gradient by differences."""
    likelihood = likelihood_of(*simulated(30, np.random.default_rng(3))[:3])
    target = Target(likelihood, prior)

    def defined(x: torch.Tensor) -> float:
        z, logs = x[:9].numpy(), x[9:].numpy()
        deviations = np.full(9, 2.0)
        if prior == "learned":
            deviations = np.exp(np.r_[[0, 0, 0], [0, 0], 0, [0, 0], 0] + logs[[0, 0, 0, 1, 1, 0, 2, 2, 3]])
        deviations[[0, 3, 5]] = 4.0
        theta = z * deviations
        # the density of x is that of (θ, τ) times |dθ dτ / dx|
        total = norm.logpdf(theta, scale=deviations).sum() + np.log(deviations).sum()
        total += (norm.logpdf(np.exp(logs)) + np.log(2) + logs).sum()
        return float(likelihood(torch.from_numpy(theta))[0].sum()) + total

    generator = torch.Generator().manual_seed(0)
    points = 0.5 * torch.randn(3, target.size, generator=generator, dtype=torch.float64)
    values = np.array([target(x)[0] for x in points])
    wanted = np.array([defined(x) for x in points])
    np.testing.assert_allclose(values - values[0], wanted - wanted[0], rtol=1e-9, atol=1e-9)
    _, slope = target(points[0])
    for column in range(target.size):
        step = torch.zeros(target.size, dtype=torch.float64)
        step[column] = 1e-5
        difference = (target(points[0] + step)[0] - target(points[0] - step)[0]) / 2e-5
        assert float(slope[column]) == pytest.approx(difference, rel=1e-6, abs=1e-7)


def test_rescaled_positions_have_the_same_coefficients():
    target = Target(likelihood_of(*simulated(30, np.random.default_rng(3))[:3]), "learned")
    x = torch.randn(target.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scaled = target.rescaled(x)
    torch.testing.assert_close(target.theta(scaled), target.theta(x))
    for slopes, log_scale in zip((*INNER, *OUTER), scaled[9:], strict=True):
        z = scaled[slopes][1:] if slopes in INNER else scaled[slopes]
        if float(log_scale) > np.log(0.1):
            assert float(z.square().mean()) == pytest.approx(1.0)

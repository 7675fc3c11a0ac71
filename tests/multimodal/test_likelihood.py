"""The exact likelihood and the density of the target, against enumeration and differences."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import binom, norm

from ich_mil.multimodal.inference.likelihood import TOLERANCE
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


@pytest.mark.parametrize("tolerance", [1e-3, 1e-5, TOLERANCE])
@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 3.0, 10.0])
def test_likelihood_against_enumeration(scale, tolerance):
    X, bags, y, _ = simulated(60, np.random.default_rng(0))
    theta = coefficients(scale)
    truth = np.maximum(enumerated(X, bags, y, theta.numpy()), tolerance)
    for bag in range(12):
        rows = [b == bag for b in bags]
        single = likelihood_of(
            [x[r] for x, r in zip(X, rows, strict=True)],
            [b[r] * 0 for b, r in zip(bags, rows, strict=True)],
            y[[bag]],
        )
        assert abs(float(single(theta[None], tolerance=tolerance)[0].exp()) - truth[bag]) <= tolerance
    values, _ = likelihood_of(X, bags, y).scores(theta)
    np.testing.assert_allclose(
        values.exp(), np.maximum(enumerated(X, bags, y, theta.numpy()), TOLERANCE), rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize("effect", [0.02, 0.3, 2.0])
def test_many_instances_against_binomial_sums(effect):
    """300 instances with one of two effects: the score is a difference of binomial counts."""
    x, theta = np.tile([[1.0], [-1.0]], (150, 1)), torch.tensor([0.2, 0.5, 0.3, effect])
    up, down = (binom.pmf(np.arange(151), 150, ndtr(0.2 + side * 0.5)) for side in (1, -1))
    score = 0.3 + effect * np.subtract.outer(np.arange(151), np.arange(151))
    truth = (np.outer(up, down) * ndtr(score)).sum()
    likelihood = likelihood_of([np.r_[x, x]], [np.repeat([0, 1], 300)], np.array([1, 0]))
    values, _ = likelihood.scores(theta.double())
    wanted = np.maximum([truth, 1 - truth], TOLERANCE)
    np.testing.assert_allclose(values.exp(), wanted, rtol=0, atol=TOLERANCE)


def test_gradient_and_scores_against_differences():
    likelihood = likelihood_of(*simulated(30, np.random.default_rng(0))[:3])
    theta = torch.stack([coefficients(1.0), coefficients(0.5, 2)])
    _, gradient = likelihood(theta)
    scores = torch.stack([likelihood.scores(row)[1] for row in theta])  # (2, B, 9)
    torch.testing.assert_close(scores.sum(1), gradient, rtol=1e-6, atol=1e-6)
    for column in range(9):
        step = torch.zeros(9, dtype=torch.float64)
        step[column] = 1e-4
        difference = (likelihood(theta + step)[0] - likelihood(theta - step)[0]) / 2e-4
        torch.testing.assert_close(gradient[:, column], difference, rtol=1e-5, atol=1e-5)


def test_many_bags_are_evaluated_in_groups():
    X, bags, y, _ = simulated(3000, np.random.default_rng(7))
    theta = coefficients(1.0)
    values, scores = likelihood_of(X, bags, y).scores(theta)
    few = likelihood_of([x[b < 20] for x, b in zip(X, bags, strict=True)], [b[b < 20] for b in bags], y[:20])
    torch.testing.assert_close(few.scores(theta)[0].exp(), values[:20].exp(), rtol=0, atol=2 * TOLERANCE)
    torch.testing.assert_close(few.scores(theta)[1], scores[:20], rtol=1e-5, atol=1e-5)


def test_hopeless_coefficients_stay_finite():
    X, bags, y, _ = simulated(40, np.random.default_rng(8))
    values, scores = likelihood_of(X, bags, y).scores(coefficients(1e4))
    assert torch.isfinite(scores).all()
    assert float(values.min()) == pytest.approx(np.log(TOLERANCE))
    assert float(values.max()) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("scale", [np.nan, np.inf, 1e200])
def test_coefficients_that_overflow_leave_other_sets_as_they_are(scale):
    """A trajectory of one chain that diverges."""
    X, bags, y, _ = simulated(40, np.random.default_rng(8))
    theta = coefficients(1.0)
    likelihood = likelihood_of(X, bags, y)
    values, gradients = likelihood(torch.stack([theta, scale * theta]))
    wanted = likelihood(theta[None])
    # bags that run together have the nodes of the largest, which moves P by less than TOLERANCE
    torch.testing.assert_close(values[0], wanted[0][0], rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(gradients[0], wanted[1][0], rtol=1e-5, atol=1e-4)
    lost, _ = likelihood(scale * theta[None])
    assert not bool(lost > values[0])


def test_a_sample_of_bags_is_theirs():
    likelihood, theta = likelihood_of(*simulated(40, np.random.default_rng(9))[:3]), coefficients(1.0)
    some = likelihood.some(10, torch.Generator().manual_seed(0))
    chosen = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:10]
    wanted, scores = (part[chosen] for part in likelihood.scores(theta))
    values, gradient = some(theta[None])
    assert float(values[0]) == pytest.approx(float(wanted.sum()), abs=1e-6)
    torch.testing.assert_close(gradient[0], scores.sum(0), rtol=1e-5, atol=1e-6)
    assert likelihood.some(40, torch.Generator()) is likelihood


def test_likelihood_on_a_device(device):
    data = simulated(30, np.random.default_rng(0))[:3]
    values, scores = likelihood_of(*data).scores(coefficients(1.0))
    got, slopes = likelihood_of(*data, device=device).scores(coefficients(1.0).to(device))
    torch.testing.assert_close(got.cpu(), values, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slopes.cpu(), scores, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("centring", [None, [0.0, 1.0, 0.3, 0.8]])
def test_density_against_its_definition(centring):
    """Log-likelihood, normal slopes and half-normal scales of scipy; the gradient by differences."""
    likelihood = likelihood_of(*simulated(30, np.random.default_rng(3))[:3])
    w = None if centring is None else torch.tensor(centring, dtype=torch.float64)
    target = Target(likelihood, "learned" if centring else "thesis", w)

    def defined(x: torch.Tensor) -> tuple[np.ndarray, float]:
        """Coefficients, and log-density of the prior at x."""
        u, logs = x[:9].numpy(), x[9:].numpy()
        own = np.array([0, 0, 0, 1, 1, 0, 2, 2, 3])
        slopes = np.array([0, 1, 1, 0, 1, 0, 1, 1, 1], dtype=bool)
        deviations, factors = np.full(9, 2.0), np.full(9, 2.0)
        if centring:
            deviations, factors = np.exp(logs[own]), np.exp((1 - np.array(centring)[own]) * logs[own])
        deviations[~slopes] = factors[~slopes] = 4.0
        theta = u * factors
        # the density of x is that of (θ, τ) times |dθ dτ / dx|
        total = norm.logpdf(theta, scale=deviations).sum() + np.log(factors).sum()
        total += (norm.logpdf(np.exp(logs)) + np.log(2) + logs).sum()
        return theta, total

    generator = torch.Generator().manual_seed(0)
    points = 0.5 * torch.randn(3, target.size, generator=generator, dtype=torch.float64)
    values, slopes = target(points)
    theta, prior = (np.array(part) for part in zip(*map(defined, points), strict=True))
    wanted = likelihood(torch.from_numpy(theta))[0].numpy() + prior
    np.testing.assert_allclose(values - values[0], wanted - wanted[0], rtol=1e-9, atol=1e-9)
    for column in range(target.size):
        step = torch.zeros(target.size, dtype=torch.float64)
        step[column] = 1e-4
        difference = (target(points + step)[0] - target(points - step)[0]) / 2e-4
        torch.testing.assert_close(slopes[:, column], difference, rtol=1e-5, atol=1e-5)


def test_positions_of_coefficients_and_sizes_of_blocks():
    w = torch.tensor([0.2, 0.4, 1.0, 0.0], dtype=torch.float64)
    target = Target(likelihood_of(*simulated(30, np.random.default_rng(3))[:3]), "learned", w)
    theta, logs = coefficients(1.0), torch.tensor([0.1, -0.5, 0.7, 0.0], dtype=torch.float64)
    torch.testing.assert_close(target.theta(target.position(theta, logs)), theta)
    sizes = [theta[1:3], theta[4:5], theta[6:8], theta[8:9]]
    wanted = [float(slopes.square().mean().sqrt()) for slopes in sizes]
    torch.testing.assert_close(
        target.sizes(theta).exp(), torch.tensor(wanted, dtype=torch.float64).clamp(min=0.1)
    )

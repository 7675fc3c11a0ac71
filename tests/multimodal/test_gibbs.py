"""The Gibbs sampler: against quadrature, and joint-distribution simulation (Geweke 2004)."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from ich_mil.multimodal.inference.coefficients import Prior
from ich_mil.multimodal.inference.gibbs import Chains, sample_posterior
from tests.multimodal.bags import model_of, simulated


def test_posterior_means_against_quadrature():
    """One modality, one feature: b = (a, b₁), θ = (α, β). Quadrature over four coefficients, δ summed out."""
    rng = np.random.default_rng(0)
    sizes = np.array([1, 2, 2, 1, 2, 1])
    owner = np.repeat(np.arange(6), sizes)
    x, y = rng.standard_normal((len(owner), 1)), np.array([1, 0, 1, 1, 0, 1])
    prior = Prior(intercept_variance=1.0, slope_variance=1.0)
    model = model_of([x], [owner], y, prior=prior, rows=4)
    got = sample_posterior(
        model, chains=8, burn_in=200, draws=1500, generator=torch.Generator().manual_seed(0)
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(14)
    a, b, al, be = np.meshgrid(nodes, nodes, nodes, nodes, indexing="ij", sparse=True)
    w = np.einsum("i,j,k,l->ijkl", weights, weights, weights, weights)
    likelihood = np.ones_like(w)
    for bag in range(6):
        rows, total = np.flatnonzero(owner == bag), 0.0
        for delta in itertools.product((0, 1), repeat=len(rows)):
            p, eta = 1.0, al
            for j, d in zip(rows, delta, strict=True):
                p = p * ndtr((1 if d else -1) * (a + b * x[j, 0]))
                eta = eta + d * be * x[j, 0]
            total = total + p * ndtr((2 * y[bag] - 1) * eta)
        likelihood = likelihood * total
    w = w * likelihood
    w /= w.sum()
    grid = [a, b, al, be]
    mean = [float((w * one).sum()) for one in grid]
    square = [float((w * one**2).sum()) for one in grid]
    draws = torch.cat([got.inner[0], got.outer], dim=1).numpy()
    error = draws.std(0) / np.sqrt(got.effective_samples)  # of the worst coefficient
    assert got.r_hat < 1.02
    np.testing.assert_array_less(np.abs(draws.mean(0) - mean), 4 * error)
    np.testing.assert_allclose(draws.var(0), np.array(square) - np.array(mean) ** 2, rtol=0.12)


def test_coefficients_keep_their_prior_with_simulated_labels():
    """Geweke: alternate a sweep with new labels from the model; the coefficients must follow the prior."""
    rng = np.random.default_rng(1)
    X, bags, y, _ = simulated(12, rng, most=2)
    prior = Prior(intercept_variance=0.5, slope_variance=0.5)
    model = model_of(X, bags, y, prior=prior, rows=10_000)
    state = Chains(model, 100, torch.Generator().manual_seed(0))
    kept = []
    (chunk,) = model.chunks
    for sweep in range(300):
        state.sweep()
        eta = state.outer[:, :1].expand(-1, 12).clone()
        for block, delta, at in zip(chunk.blocks, state.primary[0], model.columns.places, strict=True):
            assert block is not None
            assert delta is not None
            effect = state.outer[:, at] @ block.x.mT
            eta.index_add_(1, block.bags, delta * effect)
        noise = torch.randn(eta.shape, generator=state.generator, dtype=torch.float64)
        positive = eta + noise > 0
        state.signs = 2.0 * positive - 1  # (R, B)
        if sweep >= 50:
            kept.append(torch.cat([*state.inner, state.outer], dim=1))
    draws = torch.stack(kept).numpy()  # (L, R, C)
    per_chain = draws.mean(0)  # chains are independent: their means give the error
    error = per_chain.std(0) / np.sqrt(per_chain.shape[0])
    np.testing.assert_array_less(np.abs(per_chain.mean(0)), 4.5 * error)
    second = (draws**2).mean(0)
    error = second.std(0) / np.sqrt(second.shape[0])
    np.testing.assert_array_less(np.abs(second.mean(0) - 0.5), 4.5 * error)


def test_chains_that_have_not_met_are_told():
    model = model_of(*simulated(60, np.random.default_rng(2))[:3], rows=10_000)
    with pytest.warns(UserWarning, match="disagree"):
        sample_posterior(model, chains=2, burn_in=0, draws=8, generator=torch.Generator().manual_seed(0))

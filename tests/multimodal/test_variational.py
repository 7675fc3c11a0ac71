"""Coordinate ascent: the bound is exact, never falls, and is tight where it can be."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import log_ndtr

from ich_mil.multimodal.inference.coefficients import Coefficients
from ich_mil.multimodal.inference.restarts import fit_variational, random_starts
from ich_mil.multimodal.inference.variational import Model, State
from tests.multimodal.bags import model_of, simulated


def started(model: Model, replicates: int, deviation: float = 1.0) -> State:
    generator = torch.Generator().manual_seed(0)
    widths = [len(one) for one in model.inner_precision]
    return model.start([deviation * torch.randn(replicates, w, generator=generator).double() for w in widths])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_bound_never_falls(seed):
    model = model_of(*simulated(60, np.random.default_rng(seed))[:3])
    state, last = started(model, 3), None
    for _ in range(60):
        state, _, bound = model.sweep(state)
        if last is not None:
            assert bool((bound >= last - 1e-9 * last.abs()).all())
        last = bound


def test_the_bound_of_the_search_never_falls():
    model = model_of(*simulated(80, np.random.default_rng(3))[:3])
    starts = random_starts(model, 4, torch.Generator().manual_seed(1))
    fit = fit_variational(model, starts, sweeps=400, tolerance=1e-7, warm=20)
    for bounds in fit.bounds:
        rise = np.diff(bounds)
        assert (rise >= -1e-9 * np.abs(bounds[1:])).all()
    assert all(fit.converged)


def test_newton_steps_end_where_plain_steps_do():
    model = model_of(*simulated(100, np.random.default_rng(4), scale=1.0)[:3], rows=10_000)
    starts = random_starts(model, 1, torch.Generator().manual_seed(1))
    fast = fit_variational(model, starts, sweeps=2000, tolerance=1e-9, warm=50)
    slow = fit_variational(model, starts, sweeps=2000, tolerance=1e-9, warm=1200)
    assert len(fast.bounds[0]) < 1200 < len(slow.bounds[0])
    np.testing.assert_allclose(slow.bounds[0][1200], fast.bounds[0][-1], rtol=1e-4)
    np.testing.assert_allclose(fast.final, slow.final, rtol=1e-6)
    np.testing.assert_allclose(fast.outer.mean, slow.outer.mean, atol=0.02)


def q_of(model: Model, state: State, r: int) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """p (n,), regressors (n, P) of each modality and bags, of a model with one chunk."""
    (chunk,) = model.chunks
    blocks = [block for block in chunk.blocks if block is not None]
    p = [one[r].numpy() for one in state.primary[0] if one is not None]
    return p, [block.h.numpy() for block in blocks], [block.bags.numpy() for block in blocks]


def test_the_bound_against_enumeration_of_primary_instances():
    """E log p - E log q summed over every δ of every bag, with E over U, y* and coefficients by hand."""
    X, bags, y, _ = simulated(6, np.random.default_rng(5), most=3)
    model = model_of(X, bags, y, rows=10_000)
    state = started(model, 2)
    for _ in range(3):
        state, _, _ = model.sweep(state)
    new, _, bound = model.sweep(state)  # the bound belongs to new q(δ), and q(b), q(θ) of `state`
    places = model.columns.places
    for r in range(2):
        p, h, owner = q_of(model, new, r)
        m2, V2 = state.outer.mean[r].numpy(), state.outer.covariance[r].numpy()
        total = -float(state.outer.divergence(model.outer_precision)[r])
        for one, precision in zip(state.inner, model.inner_precision, strict=True):
            total -= float(one.divergence(precision).expand(2)[r])
        for bag in range(6):
            rows = [(m, j) for m in range(2) for j in np.flatnonzero(owner[m] == bag)]
            mean_g = np.r_[1.0, np.zeros(len(m2) - 1)]
            for m, j in rows:
                mean_g[places[m]] += p[m][j] * h[m][j, 1:]
            a, sign = mean_g @ m2, 2 * y[bag] - 1  # q(y*) is N(a, 1) on the side of the label
            for deltas in itertools.product((0, 1), repeat=len(rows)):
                weight, g = 1.0, np.r_[1.0, np.zeros(len(m2) - 1)]
                for (m, j), delta in zip(rows, deltas, strict=True):
                    weight *= p[m][j] if delta else 1 - p[m][j]
                    g[places[m]] += delta * h[m][j, 1:]
                # E log N(y*; gθ, 1) - E log q(y*) = log Φ(±a) - ½ E(y* - gθ)² + ½ E(y* - a)²
                square = (g @ m2) ** 2 + g @ V2 @ g
                mills = np.exp(-(a**2) / 2 - np.log(2 * np.pi) / 2 - log_ndtr(sign * a))
                mean_y = a + sign * mills
                total += weight * (
                    log_ndtr(sign * a) + mean_y * (g @ m2) - square / 2 - mean_y * a + a**2 / 2
                )
            for m, j in rows:
                one = state.inner[m]
                mu = h[m][j] @ one.mean[r].numpy()
                spread = h[m][j] @ one.covariance.expand(2, -1, -1)[r].numpy() @ h[m][j]
                for prob, side in ((p[m][j], 1), (1 - p[m][j], -1)):
                    total += prob * (log_ndtr(side * mu) - np.log(prob))
                total -= spread / 2
        np.testing.assert_allclose(float(bound[r]), total, rtol=1e-10)


def test_chunks_do_not_matter():
    data = simulated(40, np.random.default_rng(7))[:3]
    results = []
    for rows in (7, 60, 10_000):
        model = model_of(*data, rows=rows)
        state = started(model, 2)
        for _ in range(20):
            state, _, bound = model.sweep(state)
        results.append((bound, state.outer.mean))
    for bound, mean in results[1:]:
        np.testing.assert_allclose(bound, results[0][0], rtol=1e-10)
        np.testing.assert_allclose(mean, results[0][1], rtol=1e-7, atol=1e-9)


def test_replicates_do_not_see_each_other():
    model = model_of(*simulated(40, np.random.default_rng(8))[:3])
    many = started(model, 3)
    one = many.take(torch.tensor([1]))
    for _ in range(20):
        many, _, bounds = model.sweep(many, newton=True)
        one, _, bound = model.sweep(one, newton=True)
    np.testing.assert_allclose(bounds[1:2], bound, rtol=1e-11)


def test_divergence_is_that_of_torch():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(2, 3, 3, generator=generator).double().tril() + 3 * torch.eye(3)
    q = Coefficients(
        torch.randn(2, 3, generator=generator).double(),
        root @ root.mT,
        2 * root.diagonal(dim1=1, dim2=2).log().sum(1),
    )
    precision = torch.tensor([0.5, 1.0, 2.0]).double()
    want = torch.distributions.kl_divergence(
        torch.distributions.MultivariateNormal(q.mean, q.covariance),
        torch.distributions.MultivariateNormal(torch.zeros(3).double(), (1 / precision).diag()),
    )
    torch.testing.assert_close(q.divergence(precision), want)

"""The Laplace approximation: its likelihood against enumeration, its posterior against Gibbs."""

import itertools

import numpy as np
import torch
from scipy.special import ndtr
from sklearn.metrics import log_loss

from ich_mil.multimodal import MultimodalMIL
from ich_mil.multimodal.inference.laplace import laplace, log_likelihood
from ich_mil.multimodal.inference.restarts import fit_variational, random_starts
from tests.multimodal.bags import model_of, simulated


def enumerated(X, bags, y, inner, outer) -> np.ndarray:
    """log P(y) (B,) of each bag, summed over every δ."""
    values, places = [], (slice(1, 3), slice(3, 4))
    for bag in range(len(y)):
        p, c = [], []
        for k, (x, owner) in enumerate(zip(X, bags, strict=True)):
            own = x[owner == bag]
            p += ndtr(inner[k][0] + own @ inner[k][1:]).tolist()
            c += (own @ outer[places[k]]).tolist()
        total = 0.0
        for delta in itertools.product((0, 1), repeat=len(p)):
            d = np.array(delta)
            total += np.prod(np.where(d, p, 1 - np.array(p))) * ndtr((2 * y[bag] - 1) * (outer[0] + d @ c))
        values.append(np.log(total))
    return np.array(values)


def test_the_likelihood_against_enumeration():
    X, bags, y, _ = simulated(30, np.random.default_rng(0))
    model, rng = model_of(X, bags, y), np.random.default_rng(1)
    for scale, tolerance in ((1e4, 1e-6), (1.0, 0.03)):  # all p at 0 or 1: exact; else near
        inner = [scale * rng.standard_normal(3), scale * rng.standard_normal(2)]
        outer = rng.standard_normal(4)
        want = enumerated(X, bags, y, inner, outer).sum()
        got = log_likelihood(model, [torch.as_tensor(b) for b in inner], torch.as_tensor(outer))
        assert abs(float(got) - want) < tolerance * len(y)


def test_modes_and_their_curvature():
    model = model_of(*simulated(80, np.random.default_rng(2))[:3])
    starts = random_starts(model, 2, torch.Generator().manual_seed(0))
    q, evidence = laplace(model, fit_variational(model, starts, sweeps=300, tolerance=1e-4))
    precision = torch.cat([*model.inner_precision, model.outer_precision])

    def log_joint(theta):
        *inner, outer = theta.split([3, 2, 4])
        return log_likelihood(model, inner, outer) - (precision * theta.square()).sum() / 2

    for mode, covariance in zip(q.mean, q.covariance, strict=True):
        theta = mode.clone().requires_grad_()
        log_joint(theta).backward()
        assert float(theta.grad.abs().max()) < 1e-3
        v = torch.randn(9, generator=torch.Generator().manual_seed(1)).double()
        e = 1e-3
        second = (log_joint(mode + e * v) - 2 * log_joint(mode) + log_joint(mode - e * v)) / e**2
        torch.testing.assert_close(-second, v @ torch.linalg.inv(covariance) @ v, rtol=1e-3, atol=0.0)
    assert evidence.shape == (2,)


def test_intervals_hold_the_truth_and_probabilities_are_better():
    train, test = (simulated(400, np.random.default_rng(seed))[:3] for seed in (3, 4))
    losses, tables = {}, {}
    for method in ("variational", "laplace"):
        model = MultimodalMIL(method=method, restarts=2, samples=500).fit(*train)
        losses[method] = log_loss(test[2], model.predict_bag_proba(*test[:2]))
        tables[method] = model.coef_
    assert losses["laplace"] < losses["variational"]
    truth = np.array([1.5, 1.5, 1.5, 1.5, 0.0, -1.5])  # slopes; features are N(0, 1)
    inside = {
        name: ((t.lower < truth) & (truth < t.upper)).sum()
        for name, t in ((n, t[t.feature != "intercept"]) for n, t in tables.items())
    }
    assert inside["laplace"] >= 5
    assert inside["variational"] <= 3


def test_many_bags_start_from_a_screened_restart():
    """The mode on all bags is the same, whether its start has seen all of them or a third."""
    train = simulated(300, np.random.default_rng(5), scale=1.0)[:3]
    models = [MultimodalMIL(restarts=2, samples=50, screen=screen).fit(*train) for screen in (100, 1000)]
    assert [len(one.restart_bounds_) for one in models] == [1, 2]
    few, all_bags = (one.coef_["mean"].to_numpy() for one in models)
    np.testing.assert_allclose(few, all_bags, atol=0.02)

import numpy as np
from scipy.special import ndtr

from research.benchmarks.keywords import exact
from tests.radiology_text.graphs import first_known, random_walk_matrix


def test_the_elbo_never_falls():
    model = exact.MeanField(random_walk_matrix(40), first_known(40))
    bounds = []
    for _ in range(200):
        model.sweep()
        bounds.append(model.elbo())
    assert np.diff(bounds).min() > -1e-10
    assert bounds[-1] > bounds[0] + 0.1


def by_importance(Q, known, rng, *, draws=200_000):
    """P(keyword | y) (n,) and ln p(y) by draws from the prior, weighted with the likelihood."""
    n = len(known)
    root = np.linalg.inv(np.eye(n) - 0.85 * Q.toarray())
    sigma = np.sqrt(exact.TAU / rng.gamma(exact.TAU, size=(draws, 1)))
    a, b = np.sqrt(exact.V) * rng.standard_normal((2, draws, 1))
    alpha = rng.random((draws, 1))
    p = ndtr(a + b * (root @ known + sigma * rng.standard_normal((draws, n)) @ root))
    weight = np.where(known, (1 - alpha) * p, 1 - (1 - alpha) * p).prod(axis=1)
    posterior = np.where(known, 1.0, alpha * p / (1 - (1 - alpha) * p))
    return weight @ posterior / weight.sum(), np.log(weight.mean())


def test_gibbs_has_the_posterior_as_its_limit(monkeypatch):
    """A narrow prior of σ² and slopes, under which draws from the prior are informative."""
    monkeypatch.setattr(exact, "TAU", 3.0)
    monkeypatch.setattr(exact, "V", 1.0)
    Q, known, rng = random_walk_matrix(4), first_known(4, 1), np.random.default_rng(0)
    proba, evidence = by_importance(Q, known, rng)
    np.testing.assert_allclose(exact.gibbs(Q, known, sweeps=120_000, rng=rng), proba, atol=0.02)
    model = exact.MeanField(Q, known)
    for _ in range(500):
        model.sweep()
    assert evidence - 3.0 < model.elbo() < evidence  # what independence of the factors costs


def test_mean_field_is_near_gibbs():
    Q, known, rng = random_walk_matrix(40), first_known(40), np.random.default_rng(0)
    oracle = exact.gibbs(Q, known, sweeps=3000, rng=rng)
    assert np.abs(exact.mean_field(Q, known) - oracle).mean() < 0.03

import numpy as np
import pytest
from scipy.special import expit, ndtr

from ich_mil.errors import ConfigError
from ich_mil.radiology_text.ascent import ascend
from ich_mil.radiology_text.gibbs import polya_gamma, sample
from ich_mil.radiology_text.spectrum import DenseSpectrum
from ich_mil.radiology_text.vbss import Prior, Vbss
from tests.radiology_text.graphs import first_known, random_walk_matrix


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("tilt", [0.0, 0.5, -2.0, 8.0])
def test_moments_of_polya_gamma(tilt, rng):
    """E = tanh(c/2) / 2c; Var = (sinh c - c) / (4 c³ cosh²(c/2))."""
    draws = polya_gamma(np.full(40_000, tilt), rng)
    c = abs(tilt) or 1e-3
    mean, var = np.tanh(c / 2) / (2 * c), (np.sinh(c) - c) / (4 * c**3 * np.cosh(c / 2) ** 2)
    assert draws.mean() == pytest.approx(mean, rel=0.02)
    assert draws.var() == pytest.approx(var, rel=0.07)


def by_importance(theta0, root, known, alpha, link, rng, *, tau, draws=150_000):
    """P(keyword | y) (n,) by draws from the prior, weighted with the likelihood."""
    n = len(theta0)
    sigma = np.sqrt(tau / rng.gamma(tau, size=(draws, 1)))
    theta = theta0 + sigma * rng.standard_normal((draws, n)) @ root
    p = link(theta, rng)
    weight = np.where(known, (1 - alpha) * p, 1 - (1 - alpha) * p).prod(axis=1)
    posterior = np.where(known, 1.0, alpha * p / (1 - (1 - alpha) * p))
    return weight @ posterior / weight.sum()


def probit(theta, rng):
    a, b = rng.standard_normal((2, len(theta), 1))
    return ndtr(a + b * theta)


@pytest.mark.parametrize("link", ["probit", "logistic"])
def test_the_chain_has_the_posterior_as_its_limit(link, rng):
    Q, known = random_walk_matrix(4), first_known(4, 1)
    theta0, root = Prior().theta0(Q, known), np.linalg.inv(np.eye(4) - 0.85 * Q.toarray())
    prior = Prior(tau=3.0, var_a=1.0, var_b=1.0, alpha=0.6)
    exact = by_importance(
        theta0, root, known, 0.6, probit if link == "probit" else lambda x, _: expit(x), rng, tau=3.0
    )
    fit = sample(DenseSpectrum(Q), theta0, known, prior, link=link, sweeps=5000, burn_in=500, rng=rng)
    np.testing.assert_allclose(fit.proba, exact, atol=0.02)


def test_vbss_agrees_with_its_oracle(rng):
    Q, known = random_walk_matrix(40), first_known(40)
    spectrum, theta0 = DenseSpectrum(Q), Prior().theta0(Q, known)
    oracle = sample(spectrum, theta0, known, Prior(), sweeps=4000, burn_in=1000, rng=rng)
    fit = ascend(Vbss(spectrum, theta0, known, Prior()))
    assert np.abs(fit.proba - oracle.proba).mean() < 0.03
    assert np.corrcoef(fit.mean, oracle.mean)[0, 1] > 0.97


@pytest.mark.parametrize("alpha", ["one", "word"])
def test_alpha_is_drawn(alpha, rng):
    Q, known = random_walk_matrix(12), first_known(12, 3)
    fit = sample(DenseSpectrum(Q), Prior().theta0(Q, known), known, Prior(alpha=alpha), sweeps=300, rng=rng)
    assert 0 < fit.scalars[:, 3].min() < fit.scalars[:, 3].max() < 1
    assert (fit.proba[known] == 1).all()


@pytest.mark.parametrize("bad", [{"link": "cauchit"}, {"sweeps": 0}, {"burn_in": -1}])
def test_parameters_out_of_range(bad, rng):
    Q, known = random_walk_matrix(5), first_known(5, 1)
    with pytest.raises(ConfigError):
        sample(DenseSpectrum(Q), Prior().theta0(Q, known), known, Prior(), **bad, rng=rng)

import numpy as np
import pytest
from scipy.special import digamma, ndtr

from ich_mil.errors import ConfigError
from ich_mil.radiology_text.ascent import ascend
from ich_mil.radiology_text.spectrum import DenseSpectrum, SparseSpectrum
from ich_mil.radiology_text.vbss import Prior, Vbss
from tests.radiology_text.graphs import first_known, random_walk_matrix

N = 40


def model(prior=None, *, n=N, known=4, spectrum=DenseSpectrum, covariance="full", seed=0):
    Q, mask = random_walk_matrix(n, seed=seed), first_known(n, known)
    prior = prior or Prior()
    return Vbss(spectrum(Q), prior.theta0(Q, mask), mask, prior, covariance=covariance)


@pytest.mark.parametrize("alpha", ["one", "word", 0.6])
@pytest.mark.parametrize("mean", ["unit", "restart"])
@pytest.mark.parametrize("spectrum", [DenseSpectrum, SparseSpectrum])
def test_the_elbo_never_falls(alpha, mean, spectrum):
    vbss = model(Prior(alpha=alpha, prior_mean=mean), spectrum=spectrum)
    state, bounds = vbss.start(), []
    for _ in range(60):
        state = vbss.sweep(state)
        bounds.append(vbss.elbo(state))
    assert np.diff(bounds).min() > -1e-10
    assert bounds[-1] > bounds[0] + 0.1
    assert np.diff(ascend(vbss).elbo).min() > -1e-10


@pytest.mark.parametrize("alpha", ["one", "word", 0.6])
def test_no_factor_can_be_improved_at_the_end(alpha):
    """The limit is a stationary point: nudging any moment lowers the ELBO or leaves it."""
    vbss = model(Prior(alpha=alpha))
    state = vbss.start()
    for _ in range(1000):
        state = vbss.sweep(state)
    top = vbss.elbo(state)
    rng = np.random.default_rng(0)
    names = ("mu", "a", "b", "var_b", "w", "precision_w", "precision_c", "positive")
    for name in names[: 7 + (alpha != 0.6)]:
        kept = getattr(state, name)
        for size in (1e-3, -1e-3):
            nudge = rng.standard_normal(np.shape(kept)) if np.ndim(kept) else 1.0
            setattr(state, name, kept + size * nudge * (np.abs(kept) + 1e-2))
            # E ln α follows from its Beta distribution
            if name == "positive":
                others = vbss.n_known if alpha == "one" else vbss.known
                old = state.log_alpha
                state.log_alpha = digamma(1 + state.positive) - digamma(2 + state.positive + others)
            assert vbss.elbo(state) <= top + 1e-9, name
            if name == "positive":
                state.log_alpha = old
        setattr(state, name, kept)


def test_the_elbo_is_a_bound_on_the_evidence():
    """Two words, evidence by importance sampling from the prior."""
    Q, known = random_walk_matrix(3), first_known(3, 1)
    vbss = Vbss(DenseSpectrum(Q), Prior().theta0(Q, known), known, Prior(tau=2.0, var_a=1.0, var_b=1.0))
    rng, draws = np.random.default_rng(0), 400_000
    root = np.linalg.inv(np.eye(3) - 0.85 * Q.toarray())
    sigma = np.sqrt(2.0 / rng.gamma(2.0, size=(draws, 1)))
    theta = vbss.theta0 + sigma * rng.standard_normal((draws, 3)) @ root
    a, b = rng.standard_normal((draws, 1)), rng.standard_normal((draws, 1))
    seen = (1 - rng.random((draws, 1))) * ndtr(a + b * theta)
    evidence = np.log(np.where(known, seen, 1 - seen).prod(axis=1).mean())
    bound = ascend(vbss).elbo[-1]
    assert bound < evidence
    assert bound > evidence - 3.0  # what independence of a, b, σ² and θ costs


def test_extrapolation_changes_the_way_and_not_the_end():
    vbss = model()
    state = vbss.start()
    for _ in range(3000):
        state = vbss.sweep(state)
    fit = ascend(vbss, tol=1e-11)
    assert fit.converged
    np.testing.assert_allclose(fit.link, ndtr(state.m), rtol=1e-5)


def test_stochastic_traces_change_little():
    exact, stochastic = (ascend(model(n=600, spectrum=kind)) for kind in (DenseSpectrum, SparseSpectrum))
    np.testing.assert_allclose(stochastic.proba, exact.proba, atol=2e-3)


def test_known_words_are_certain_and_raise_their_neighbours():
    vbss = model()
    fit = ascend(vbss)
    assert (fit.proba[vbss.known] == 1).all()
    near = vbss.theta0[~vbss.known] > np.median(vbss.theta0[~vbss.known])
    assert fit.proba[~vbss.known][near].mean() > 1.2 * fit.proba[~vbss.known][~near].mean()


def test_unseen_words_are_less_probable_than_their_link():
    fit, others = ascend(model(Prior(alpha=0.6))), ~first_known(N)
    p = fit.link[others]
    np.testing.assert_allclose(fit.proba[others], 0.6 * p / (1 - 0.4 * p), rtol=1e-12)


def test_the_printed_update_is_computed_as_printed():
    vbss = model(covariance="printed")
    state = vbss.sweep(vbss.start())
    after = vbss.sweep(state)
    U = np.diag(vbss.spectrum.covariance_diagonal())
    c = state.b**2 + state.var_b
    m = state.m
    e, t = np.exp(state.log_alpha), ndtr(-m)
    phi = np.exp(-0.5 * m * m) / np.sqrt(2 * np.pi)
    z = (m * t - phi + e * (m * (1 - t) + phi)) / (t + (1 - t) * e)
    z = np.where(vbss.known, m + phi / (1 - t), z)
    S = 1 / (c + state.w / np.diag(U))
    mu = S * (state.b * z - state.a * state.b + state.w * vbss.theta0 / np.diag(U))
    np.testing.assert_allclose(after.mu, mu, rtol=1e-9)


def test_printed_updates_ascend_no_bound():
    fit = ascend(model(covariance="printed"))
    assert np.diff(fit.elbo).min() < -0.1
    assert abs(fit.b) < 1e-6
    np.testing.assert_allclose(fit.link, fit.link[0], rtol=1e-4)


@pytest.mark.parametrize(
    "prior", [Prior(tau=0), Prior(var_a=-1), Prior(alpha=1.0), Prior(alpha="two"), Prior(prior_mean="zero")]
)
def test_parameters_out_of_range(prior):
    with pytest.raises(ConfigError):
        model(prior)
    with pytest.raises(ConfigError, match="covariance"):
        model(covariance="low-rank")

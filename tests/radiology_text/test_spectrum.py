import numpy as np
import pytest

from ich_mil.radiology_text.spectrum import DenseSpectrum, SparseSpectrum
from tests.radiology_text.graphs import random_walk_matrix

W, C = 3.0, 0.7


@pytest.fixture(scope="module", name="Q")
def walk():
    return random_walk_matrix(400, density=0.03)


@pytest.fixture(scope="module", name="B")
def system(Q):
    return np.eye(400) - 0.85 * Q.toarray()


@pytest.fixture(scope="module", params=[DenseSpectrum, SparseSpectrum])
def spectrum(request, Q):
    return request.param(Q)


def test_solves(spectrum, B):
    r = np.random.default_rng(0).standard_normal(400)
    x = np.zeros(400)
    for _ in range(20):  # the sparse one takes a dozen steps a call
        x = spectrum.solve(r, W, C, x)
    np.testing.assert_allclose(x, np.linalg.solve(W * B @ B + C * np.eye(400), r), rtol=0, atol=1e-9)


def test_traces(spectrum, B):
    precision = W * B @ B + C * np.eye(400)
    S = np.linalg.inv(precision)
    exact = np.trace(S), np.trace(B @ B @ S), np.linalg.slogdet(precision)[1]
    # the sparse ones are stochastic: 16 probes of 400 words
    rtol = 1e-10 if isinstance(spectrum, DenseSpectrum) else 0.02
    np.testing.assert_allclose(spectrum.traces(W, C), exact, rtol=rtol)


def test_traces_are_derivatives_of_the_log_determinant(spectrum):
    """One quadrature behind all three: what keeps the ELBO from falling."""
    h = 1e-5
    trace, trace_prior, _ = spectrum.traces(W, C)
    by_c = (spectrum.traces(W, C + h)[2] - spectrum.traces(W, C - h)[2]) / (2 * h)
    by_w = (spectrum.traces(W + h, C)[2] - spectrum.traces(W - h, C)[2]) / (2 * h)
    np.testing.assert_allclose([by_c, by_w], [trace, trace_prior], rtol=1e-7)


def test_diagonals(spectrum, B):
    np.testing.assert_allclose(spectrum.precision_diagonal(), np.diag(B @ B), rtol=1e-10)
    exact = np.diag(np.linalg.inv(B @ B))
    error = np.abs(spectrum.covariance_diagonal() / exact - 1)
    # 200 probes of what is left of U beyond Q² and its leading eigenvectors
    assert error.max() < (1e-10 if isinstance(spectrum, DenseSpectrum) else 0.05)


def test_words_without_neighbours():
    Q = random_walk_matrix(20)
    Q.data[:] = 0.0
    for spectrum in (DenseSpectrum(Q), SparseSpectrum(Q)):
        np.testing.assert_allclose(spectrum.traces(W, C), [20 / 3.7, 20 / 3.7, 20 * np.log(3.7)], rtol=1e-12)

"""Gibbs sampling of the keyword model: BSS (logistic link), and the reference for VBSS (probit link).

In: the eigendecomposition of the graph's prior precision and a mask y of known keywords. Out: p̂ of every
word averaged over draws, and the draws of the scalars. One sweep, with s_i = 1 for a keyword:

    s_i         Bernoulli: 1 if known, else odds α_i p_i / (1 - p_i) against 1
    α           Beta(1 + Σ s_i (1 - y_i), 1 + Σ y_i), for all words or for each; or fixed
    probit      p_i = Φ(a + b θ_i);  z_i ~ N(a + b θ_i, 1) truncated to the side of s_i;  (a, b) jointly from
                the regression of z on θ;  θ ~ N(S (U^-1 θ0 / σ² + b (z - a)), S),  S^-1 = U^-1 / σ² + b² I
    logistic    p_i = 1 / (1 + exp(-θ_i));  ω_i ~ PG(1, θ_i);
                θ ~ N(S (U^-1 θ0 / σ² + s - 1/2), S),  S^-1 = U^-1 / σ² + diag(ω)
    σ²          IG(τ + n/2, τ + (θ - θ0)ᵀ U^-1 (θ - θ0) / 2)

Under the probit link S is diagonal in the eigenvectors of Q, and a sweep costs n². The logistic link needs a
Cholesky factorisation in each sweep, n³. PG(1, θ) (N. Polson et al., JASA 108, 2013) is drawn as its sum of
exponentials, Σ_k E_k / ((k - 1/2)² + θ²/4π²) / 2π², whose terms after `TERMS` are replaced by their mean.

BSS (Wang et al.) uses the prior mean of TextRank and single-site Metropolis steps. This implementation uses
the θ0 of VBSS, as in the comparison of section 1.2 of the thesis, so that only link and inference differ.

Shapes: n words, L kept draws.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.special import expit, log_ndtr, ndtr, ndtri_exp

from ich_mil.errors import ConfigError
from ich_mil.radiology_text.spectrum import DenseSpectrum
from ich_mil.radiology_text.vbss import START_ALPHA, Prior

Link = Literal["probit", "logistic"]

TERMS = 64
"""Exponentials of a Pólya-gamma draw; the variance of the omitted terms is below 1e-6 of the total."""


@dataclass(frozen=True)
class GibbsFit:
    """Averages over the kept draws.

    Attributes:
        proba: (n,) P(keyword | y); 1 for known keywords.
        link: (n,) mean of p_i, the p̂ of the thesis.
        mean: (n,) mean of θ.
        scalars: (L, 4) draws of a, b, σ² and the mean of α.
    """

    proba: np.ndarray
    link: np.ndarray
    mean: np.ndarray
    scalars: np.ndarray


def polya_gamma(tilt: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws (n,) from PG(1, tilt_i)."""
    square = (tilt / (2 * np.pi)) ** 2
    places = (np.arange(TERMS) + 0.5) ** 2  # (TERMS,)
    draws = rng.standard_exponential((len(tilt), TERMS)) / (places + square[:, None])
    # Σ_{k >= TERMS} 1 / ((k + 1/2)² + x²), by its integral from TERMS (midpoint rule)
    x = np.sqrt(square)
    rest = np.where(x > 1e-6, np.arctan2(x, TERMS) / np.maximum(x, 1e-6), 1 / TERMS)
    return (draws.sum(axis=1) + rest) / (2 * np.pi**2)


def _one_sided(m: np.ndarray, keyword: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw z ~ N(m, 1) truncated to the sign of `keyword` (n,), exact in the tails."""
    side = np.where(keyword, 1.0, -1.0)
    below = np.log1p(-rng.random(len(m))) + log_ndtr(side * m)  # 1 - U is never 0
    return side * (side * m - ndtri_exp(below))


class _Chain:
    """State of one Markov chain; `step` performs one sweep."""

    def __init__(
        self, spectrum: DenseSpectrum, theta0: np.ndarray, known: np.ndarray, prior: Prior, link: Link
    ) -> None:
        self.spectrum, self.known, self.prior, self.link = spectrum, known, prior, link
        self.V, self.precision = spectrum.vectors, spectrum.eigenvalues
        self.centre = self.V.T @ theta0
        self.theta, self.along = theta0.copy(), self.centre.copy()
        if link == "logistic":
            self.U_inverse = (self.V * self.precision) @ self.V.T
        held = not isinstance(prior.alpha, str)
        self.alpha: float | np.ndarray = float(prior.alpha) if held else START_ALPHA
        self.a, self.b, self.variance = 0.0, 1.0, 1.0

    def probabilities(self) -> tuple[np.ndarray, np.ndarray]:
        """Return p (n,), and P(keyword | θ, y) (n,), which is 1 for known keywords."""
        margin = self.a + self.b * self.theta
        p = ndtr(margin) if self.link == "probit" else expit(self.theta)
        return p, np.where(self.known, 1.0, self.alpha * p / (1 - p + self.alpha * p))

    def step(self, proba: np.ndarray, rng: np.random.Generator) -> None:
        n, prior = len(self.theta), self.prior
        keyword = rng.random(n) < proba
        if prior.alpha == "one":
            self.alpha = rng.beta(1 + (keyword & ~self.known).sum(), 1 + self.known.sum())
        elif prior.alpha == "word":
            self.alpha = rng.beta(1.0 + (keyword & ~self.known), 1.0 + self.known)
        if self.link == "probit":
            self._probit(keyword, rng)
        else:
            self._logistic(keyword, rng)
        step = self.along - self.centre
        distance = self.precision @ (step * step)
        self.variance = (prior.tau + 0.5 * distance) / rng.gamma(prior.tau + n / 2)

    def _probit(self, keyword: np.ndarray, rng: np.random.Generator) -> None:
        n = len(self.theta)
        z = _one_sided(self.a + self.b * self.theta, keyword, rng)
        X = np.column_stack([np.ones(n), self.theta])
        root = np.linalg.cholesky(X.T @ X + np.diag([1 / self.prior.var_a, 1 / self.prior.var_b]))
        whitened = np.linalg.solve(root, X.T @ z) + rng.standard_normal(2)
        self.a, self.b = np.linalg.solve(root.T, whitened)
        precision = self.precision / self.variance + self.b**2
        pull = self.precision * self.centre / self.variance + self.b * (self.V.T @ (z - self.a))
        self.along = pull / precision + rng.standard_normal(n) / np.sqrt(precision)
        self.theta = self.V @ self.along

    def _logistic(self, keyword: np.ndarray, rng: np.random.Generator) -> None:
        n = len(self.theta)
        precision = self.U_inverse / self.variance + np.diag(polya_gamma(self.theta, rng))
        root = cholesky(precision, lower=True)
        pull = self.V @ (self.precision * self.centre) / self.variance + keyword - 0.5
        whitened = solve_triangular(root, pull, lower=True) + rng.standard_normal(n)
        self.theta = solve_triangular(root.T, whitened, lower=False)
        self.along = self.V.T @ self.theta


def sample(
    spectrum: DenseSpectrum,
    theta0: np.ndarray,
    known: np.ndarray,
    prior: Prior,
    *,
    link: Link = "probit",
    sweeps: int = 5000,
    burn_in: int = 1000,
    rng: np.random.Generator,
) -> GibbsFit:
    """Average p̂ over `sweeps` draws after `burn_in` discarded draws.

    Args:
        spectrum: exact prior precision of the graph.
        theta0: (n,) prior mean.
        known: (n,) mask of known keywords.
        prior: as for VBSS; the logistic link does not use a and b.
        link: `probit` (the model of VBSS) or `logistic` (BSS).
        sweeps: number of kept draws L.
        burn_in: number of discarded draws.
        rng: random generator.

    Raises:
        ConfigError: a parameter is out of range.
    """
    prior.check()
    if link not in ("probit", "logistic") or sweeps < 1 or burn_in < 0:
        raise ConfigError(
            "link must be probit or logistic, sweeps at least 1 and burn_in at least 0; "
            f"got {link!r}, {sweeps} and {burn_in}"
        )
    chain = _Chain(spectrum, theta0, known, prior, link)
    n = len(known)
    proba, linked, mean, scalars = np.zeros(n), np.zeros(n), np.zeros(n), np.empty((sweeps, 4))
    p, posterior = chain.probabilities()
    for draw in range(-burn_in, sweeps):
        chain.step(posterior, rng)
        p, posterior = chain.probabilities()
        if draw >= 0:
            proba += posterior
            linked += p
            mean += chain.theta
            scalars[draw] = chain.a, chain.b, chain.variance, np.mean(chain.alpha)
    return GibbsFit(proba / sweeps, linked / sweeps, mean / sweeps, scalars)

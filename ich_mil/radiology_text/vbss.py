"""Variational Bayesian semi-supervised keyword extraction (VBSS) by coordinate ascent.

In: the word graph as a `Spectrum`, and a mask y of known keywords. Out: p̂ of every word, and the evidence
lower bound (ELBO) after every sweep. The model (Y. Hu, thesis, sections 1.2 and 1.3.2):

    θ ~ N(θ0, σ² U),  U = B^-1 B^-T,  B = I - d Q;   σ² ~ IG(τ, τ);   a ~ N(0, σ_a²),  b ~ N(0, σ_b²)
    z_i ~ N(a + b θ_i, 1),  word i is a keyword if z_i > 0;   a keyword is known with probability 1 - α_i

The approximation is q(z) q(θ) q(a) q(b) q(σ²) q(α). With m = E a + E b E θ, e = exp(E ln α), w = E 1/σ² and
c = E b², its factors are:

    q(z_i)   N(m_i, 1), truncated to z_i > 0 if known; else its part z_i > 0 times e   (section A.1.1)
    q(θ)     N(μ, S),  S^-1 = w U^-1 + c I,  μ = S (w U^-1 θ0 + E b E z - E a E b 1)
    q(σ²)    IG(τ + n/2, τ + g),  g = (tr U^-1 S + (μ - θ0)ᵀ U^-1 (μ - θ0)) / 2        (A.1.2)
    q(a)     mean (1ᵀ E z - E b 1ᵀ μ) S_a,  S_a = 1 / (n + 1/σ_a²)                      (A.1.3)
    q(b)     mean (μᵀ E z - E a 1ᵀ μ) S_b,  S_b = 1 / (μᵀ μ + tr S + 1/σ_b²)            (A.1.4)
    q(α)     Beta(1 + Σ P(z_i > 0, y_i = 0), 1 + Σ y_i), for all words or for each      (A.1.5, A.2)

Corrections to the thesis:

* q(θ) is one Gaussian with a full covariance. The thesis factorises it over words, but its update belongs to
  another prior, N(θ0_i, σ² U_ii) for each word separately, while g keeps the full U^-1. These updates ascend
  no bound (`covariance="printed"` computes them; the ELBO may fall, and b goes to 0).
* θ0 is B^-1 y (`prior_mean="unit"`). The thesis has (1 - d) B^-1 y (`"restart"`), under which θ0 of known and
  other words differ by 0.2. A slope b ~ N(0, 10) cannot separate them at that scale, and the bound is highest
  near b = 0, where all p̂ are equal. The program published with the thesis omits the factor too.
* p̂_i is P(word i is a keyword | y): 1 for known words and e Φ(m_i) / (1 - Φ(m_i) + e Φ(m_i)) for others,
  since it is evidence that they were not observed as keywords. The thesis reports Φ(m_i), here `link`.

Where keywords are rare, the updates of a and b above advance in steps of 1/n. After them, (E a, E b) is
improved by Newton steps on the same bound.

Shapes: n words.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse
from scipy.special import betaln, digamma, gammaln, log_ndtr, ndtr

from ich_mil.errors import ConfigError
from ich_mil.radiology_text.rank import DAMPING, solve_walk
from ich_mil.radiology_text.spectrum import Spectrum

Alpha = Literal["one", "word"] | float
Covariance = Literal["full", "printed"]
PriorMean = Literal["unit", "restart"]

LOG_2PI = float(np.log(2 * np.pi))

START_ALPHA = 0.6
"""Initial E α; the thesis suggests 0.5 to 0.7 (section 1.3.4)."""


NEWTON, HALVINGS = 1, 8
"""Newton steps in each sweep, and maximum number of halvings of a step that lowers the bound."""

FARTHEST_MARGIN = 1e6
"""Clipping limit of |m|: beyond it the ratio of density and tail loses all precision."""

SMALLEST = 1e-100
"""Lower limit of E 1/σ² and Var b, which the printed updates send to 0: prevents underflow."""


@dataclass(frozen=True)
class Prior:
    """Hyperparameters; the defaults are those of the thesis (section 1.4.1).

    Attributes:
        tau: shape and rate τ of the prior of σ².
        var_a: prior variance of the intercept a.
        var_b: prior variance of the slope b.
        alpha: `one` α for all words or one for each `word`, with a uniform prior; or a fixed number.
        prior_mean: θ0 = B^-1 y (`unit`) or (1 - d) B^-1 y (`restart`, as printed).
    """

    tau: float = 0.1
    var_a: float = 10.0
    var_b: float = 10.0
    alpha: Alpha = "one"
    prior_mean: PriorMean = "unit"

    def check(self) -> None:
        """Raise ConfigError if a value is out of range."""
        if min(self.tau, self.var_a, self.var_b) <= 0:
            raise ConfigError(
                f"tau, var_a and var_b must be above 0; got {self.tau}, {self.var_a} and {self.var_b}"
            )
        alpha = self.alpha
        if alpha not in ("one", "word") and (isinstance(alpha, str) or not 0 < alpha < 1):
            raise ConfigError(f"alpha must be one, word or a number between 0 and 1; got {self.alpha!r}")
        if self.prior_mean not in ("unit", "restart"):
            raise ConfigError(f"prior_mean must be unit or restart; got {self.prior_mean!r}")

    def theta0(self, Q: sparse.csr_array, known: np.ndarray, *, damping: float = DAMPING) -> np.ndarray:
        """Prior mean (n,) of θ for a mask (n,) of known keywords."""
        mean = solve_walk(Q, known.astype(float), damping=damping)
        return mean if self.prior_mean == "unit" else (1 - damping) * mean


@dataclass
class State:
    """Moments of q, with S^-1 = precision_w U^-1 + precision_c I (diagonal with `covariance="printed"`)."""

    mu: np.ndarray
    a: float
    b: float
    var_b: float
    w: float
    log_alpha: float | np.ndarray
    precision_w: float = 1.0
    precision_c: float = 1.0
    positive: float | np.ndarray = 0.0

    @property
    def m(self) -> np.ndarray:
        """E a + E b μ (n,)."""
        return self.a + self.b * self.mu


class Vbss:
    """Coordinate updates and ELBO for one graph and one mask of known keywords."""

    def __init__(
        self,
        spectrum: Spectrum,
        theta0: np.ndarray,
        known: np.ndarray,
        prior: Prior,
        *,
        covariance: Covariance = "full",
    ) -> None:
        """Set up the model; raises ConfigError for an invalid parameter.

        Args:
            spectrum: prior precision of the graph.
            theta0: (n,) prior mean, as from `Prior.theta0`.
            known: (n,) mask of known keywords.
            prior: hyperparameters.
            covariance: `full`, or `printed` as in the thesis.
        """
        prior.check()
        if covariance not in ("full", "printed"):
            raise ConfigError(f"covariance must be full or printed; got {covariance!r}")
        self.spectrum, self.theta0, self.known, self.prior = spectrum, theta0, known, prior
        self.n, self.n_known = len(known), int(known.sum())
        self.full = covariance == "full"
        self._pull = spectrum.apply(spectrum.apply(theta0))  # U^-1 θ0
        self._log_det_prior = spectrum.traces(1.0, 0.0)[2]
        if not self.full:
            self._own = 1 / spectrum.covariance_diagonal()
            self._precision = spectrum.precision_diagonal()

    def start(self) -> State:
        """Initial moments of section 1.3.4: μ = θ0, a = 0, b = 1, 1/σ² = 1."""
        alpha = START_ALPHA if isinstance(self.prior.alpha, str) else self.prior.alpha
        log_alpha: float | np.ndarray = float(np.log(alpha))
        if self.prior.alpha == "word":
            log_alpha = np.full(self.n, log_alpha)
        return State(self.theta0.copy(), 0.0, 1.0, 0.0, 1.0, log_alpha)

    def posterior(self, state: State) -> np.ndarray:
        """P(z_i > 0) (n,) under q(z)."""
        e, p = np.exp(state.log_alpha), ndtr(state.m)
        return np.where(self.known, 1.0, e * p / (1 - p + e * p))

    def sweep(self, last: State) -> State:
        """Update all factors once, in the order z, α, θ, σ², a, b."""
        n, m = self.n, last.m
        e, p = np.exp(last.log_alpha), ndtr(m)
        z = m + self._slope(m, e)[0]
        unseen = np.where(self.known, 0.0, e * p / (1 - p + e * p))

        log_alpha: float | np.ndarray = last.log_alpha
        positive: float | np.ndarray = 0.0
        if self.prior.alpha == "one":
            positive = float(unseen.sum())
            log_alpha = float(digamma(1 + positive) - digamma(2 + positive + self.n_known))
        elif self.prior.alpha == "word":
            positive = unseen
            log_alpha = digamma(1 + unseen) - digamma(2 + unseen + self.known)

        c = last.b**2 + last.var_b
        if self.full:
            r = last.w * self._pull + last.b * z - last.a * last.b
            mu = self.spectrum.solve(r, last.w, c, last.mu)
        else:
            r = last.w * self._own * self.theta0 + last.b * z - last.a * last.b
            mu = r / (c + last.w * self._own)
        trace, trace_prior, _ = self._traces(last.w, c)

        w = (self.prior.tau + n / 2) / (self.prior.tau + 0.5 * (trace_prior + self._distance(mu)))
        w = max(w, SMALLEST)
        total, square = mu.sum(), mu @ mu
        a = (z.sum() - last.b * total) / (n + 1 / self.prior.var_a)
        var_b = max(1 / (square + trace + 1 / self.prior.var_b), SMALLEST)
        b = var_b * (mu @ z - a * total)
        if self.full:
            a, b = self._newton(a, b, mu, np.exp(log_alpha), trace)
        return State(mu, a, b, var_b, w, log_alpha, last.w, c, positive)

    def _newton(
        self, a: float, b: float, mu: np.ndarray, e: float | np.ndarray, trace: float
    ) -> tuple[float, float]:
        """Increase the ELBO in (E a, E b), with q(z) at its optimum, by damped Newton steps."""
        known, ridge_a, ridge_b = self.known, 1 / self.prior.var_a, trace + 1 / self.prior.var_b

        def height(a: float, b: float) -> float:
            m = a + b * mu
            seen = log_ndtr(m[known]).sum() + np.log1p((e - 1) * ndtr(m))[~known].sum()
            return float(seen - 0.5 * (ridge_a * a * a + ridge_b * b * b))

        now = height(a, b)
        for _ in range(NEWTON):
            slope, bend = self._slope(a + b * mu, e)
            pull_a, pull_b = slope.sum() - ridge_a * a, slope @ mu - ridge_b * b
            H_a, H_b, H_ab = ridge_a - bend.sum(), ridge_b - bend @ mu**2, -(bend @ mu)
            det = H_a * H_b - H_ab**2
            if H_a <= 0 or det <= 0:
                break
            step_a, step_b = (H_b * pull_a - H_ab * pull_b) / det, (H_a * pull_b - H_ab * pull_a) / det
            for _ in range(HALVINGS):
                ahead = height(a + step_a, b + step_b)
                if ahead > now:
                    break
                step_a, step_b = step_a / 2, step_b / 2
            else:
                break
            a, b, now = a + step_a, b + step_b, ahead
        return float(a), float(b)

    def _slope(self, m: np.ndarray, e: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and second derivative (n,) of ln P(y_i | m_i), with e in place of α."""
        m = np.clip(m, -FARTHEST_MARGIN, FARTHEST_MARGIN)
        log_density = -0.5 * m * m - 0.5 * LOG_2PI
        slope = (e - 1) * np.exp(log_density) / (1 + (e - 1) * ndtr(m))
        seen = m[self.known]
        slope[self.known] = np.exp(log_density[self.known] - log_ndtr(seen))
        return slope, -m * slope - slope * slope

    def elbo(self, state: State) -> float:
        """Evidence lower bound, with q(z) at its optimum given the other factors."""
        n, prior, m = self.n, self.prior, state.m
        trace, trace_prior, log_det = self._traces(state.precision_w, state.precision_c)
        var_a = 1 / (n + 1 / prior.var_a)
        square = state.mu @ state.mu
        c = state.b**2 + state.var_b
        spread = n * var_a + c * (square + trace) - state.b**2 * square  # Σ Var(a + b θ_i)
        e = np.exp(state.log_alpha)
        seen = np.where(self.known, log_ndtr(m), np.log1p((e - 1) * ndtr(m))).sum()
        bound = seen + self._alpha_terms(state) - 0.5 * spread

        shape = prior.tau + n / 2
        rate = shape / state.w
        log_var = np.log(rate) - digamma(shape)  # E ln σ²
        quadratic = trace_prior + self._distance(state.mu)
        bound += 0.5 * (n - n * log_var + self._log_det_prior - log_det - state.w * quadratic)
        bound += prior.tau * np.log(prior.tau) - gammaln(prior.tau) - (prior.tau + 1) * log_var
        bound += shape - prior.tau * state.w
        bound -= shape * np.log(rate) - gammaln(shape) - (shape + 1) * log_var
        for mean, var, scale in ((state.a, var_a, prior.var_a), (state.b, state.var_b, prior.var_b)):
            bound += 0.5 * (1 + np.log(var / scale) - (mean**2 + var) / scale)
        return float(bound)

    def _alpha_terms(self, state: State) -> float:
        """E ln(1 - α) of known words, and E ln p(α) - E ln q(α)."""
        if not isinstance(self.prior.alpha, str):
            return self.n_known * float(np.log1p(-self.prior.alpha))
        one = self.prior.alpha == "one"
        first = 1 + np.asarray(state.positive, dtype=float)
        second = 1 + (np.asarray(float(self.n_known)) if one else self.known.astype(float))
        both = digamma(first + second)
        entropy = betaln(first, second) - (first - 1) * (digamma(first) - both)
        entropy -= (second - 1) * (digamma(second) - both)
        # (second - 1) counts the known words, so the terms of E ln(1 - α) cancel
        return float(np.sum(entropy + (second - 1) * (digamma(second) - both)))

    def _traces(self, w: float, c: float) -> tuple[float, float, float]:
        """Return tr S, tr U^-1 S and log det S^-1 for S of q(θ)."""
        if self.full:
            return self.spectrum.traces(w, c)
        precision = c + w * self._own
        traces = (1 / precision).sum(), self._precision @ (1 / precision), np.log(precision).sum()
        return float(traces[0]), float(traces[1]), float(traces[2])

    def _distance(self, mu: np.ndarray) -> float:
        """(μ - θ0)ᵀ U^-1 (μ - θ0) = |B (μ - θ0)|²."""
        step = self.spectrum.apply(mu - self.theta0)
        return float(step @ step)

    def alpha(self, state: State) -> float | np.ndarray:
        """E α."""
        if not isinstance(self.prior.alpha, str):
            return self.prior.alpha
        others = self.n_known if self.prior.alpha == "one" else self.known
        return (1 + state.positive) / (2 + state.positive + others)

"""The keyword model of the thesis by its exact definition: mean field with a full covariance, and Gibbs.

In: the normalised adjacency Q (n, n) of a text, and a mask y of known keywords. Out: p̂ (n,) = P(word i is a
keyword | y). The model, with U^-1 = BᵀB, B = I - d Q and θ0 = B^-1 y:

    θ ~ N(θ0, σ² U);   σ² ~ IG(τ, τ);   a ~ N(0, v),  b ~ N(0, v);   α ~ U(0, 1)
    z_i ~ N(a + b θ_i, 1),  word i is a keyword if z_i > 0;   a keyword is known with probability 1 - α

`mean_field` maximises the evidence lower bound (ELBO) over q(z) q(θ) q(a) q(b) q(σ²) q(α). With w = E 1/σ²,
c = E b², m = E a + E b μ, e = exp(E ln α):

    q(z_i)  N(m_i, 1), truncated to z_i > 0 if known; else its part z_i > 0 times e
    q(θ)    N(μ, S),  S^-1 = w U^-1 + c I,  μ = S (w U^-1 θ0 + E b E z - E a E b 1)
    q(σ²)   IG(τ + n/2, τ + g),  g = (tr U^-1 S + (μ - θ0)ᵀ U^-1 (μ - θ0)) / 2
    q(a)    mean (1ᵀ E z - E b 1ᵀ μ) S_a,  S_a = 1 / (n + 1/v)
    q(b)    mean (μᵀ E z - E a 1ᵀ μ) S_b,  S_b = 1 / (μᵀ μ + tr S + 1/v)
    q(α)    Beta(1 + Σ P(z_i > 0, y_i = 0), 1 + Σ y_i)

The thesis keeps U_ii of U alone, which ascends no bound. θ is held in the eigenvectors of Q, where S is
diagonal. No product code uses this: its θ ranks as SS does, and at γ <= 0.3 it selects the known words alone.

Shapes: n words.
"""

import numpy as np
from scipy import sparse
from scipy.special import betaln, digamma, gammaln, log_ndtr, ndtr, ndtri_exp

from ich_mil.radiology_text.rank import DAMPING
from ich_mil.radiology_text.thesis import TAU, VAR_A

V = VAR_A


class MeanField:
    """Coordinate updates and ELBO of one graph and one mask of known keywords."""

    def __init__(self, Q: sparse.csr_array, known: np.ndarray) -> None:
        values, self.vectors = np.linalg.eigh(Q.toarray())
        self.precision = (1 - DAMPING * values) ** 2  # eigenvalues (n,) of U^-1
        self.known, self.n, self.n_known = known, len(known), int(known.sum())
        self.theta0 = self.vectors.T @ known / (1 - DAMPING * values)  # (n,) in eigenvectors
        self.mu, self.a, self.b, self.var_b, self.w, self.log_alpha = self.theta0, 0.0, 1.0, 0.0, 1.0, -0.5
        self.last_w, self.last_c, self.positive = 1.0, 1.0, 0.0

    @property
    def m(self) -> np.ndarray:
        """E a + E b E θ (n,)."""
        return self.a + self.b * (self.vectors @ self.mu)

    def posterior(self) -> np.ndarray:
        """P(z_i > 0) (n,) under q(z)."""
        e, p = np.exp(self.log_alpha), ndtr(self.m)
        return np.where(self.known, 1.0, e * p / (1 - p + e * p))

    def sweep(self) -> None:
        """Update all factors once, in the order z, α, θ, σ², a, b."""
        n, m, e = self.n, self.m, np.exp(self.log_alpha)
        log_density = -0.5 * m * m - 0.5 * np.log(2 * np.pi)
        shift = (e - 1) * np.exp(log_density) / (1 + (e - 1) * ndtr(m))
        z = m + np.where(self.known, np.exp(log_density - log_ndtr(m)), shift)
        self.positive = float(self.posterior()[~self.known].sum())
        self.log_alpha = float(digamma(1 + self.positive) - digamma(2 + self.positive + self.n_known))
        w, c = self.w, self.b**2 + self.var_b
        S = 1 / (w * self.precision + c)
        pull = self.b * (self.vectors.T @ (z - self.a))
        self.mu = S * (w * self.precision * self.theta0 + pull)
        self.last_w, self.last_c = w, c
        g = 0.5 * (self.precision @ (S + (self.mu - self.theta0) ** 2))
        self.w = (TAU + n / 2) / (TAU + g)
        theta = self.vectors @ self.mu
        self.a = (z.sum() - self.b * theta.sum()) / (n + 1 / V)
        self.var_b = 1 / (theta @ theta + S.sum() + 1 / V)
        self.b = self.var_b * (theta @ z - self.a * theta.sum())

    def elbo(self) -> float:
        """Evidence lower bound, with q(z) at its optimum given the other factors."""
        n, m = self.n, self.m
        S = 1 / (self.last_w * self.precision + self.last_c)
        var_a, square = 1 / (n + 1 / V), self.mu @ self.mu
        c = self.b**2 + self.var_b
        spread = n * var_a + c * (square + S.sum()) - self.b**2 * square  # Σ Var(a + b θ_i)
        e = np.exp(self.log_alpha)
        bound = np.where(self.known, log_ndtr(m), np.log1p((e - 1) * ndtr(m))).sum() - 0.5 * spread
        first, second = 1 + self.positive, 1 + self.n_known
        bound += betaln(first, second) - self.positive * (digamma(first) - digamma(first + second))
        shape = TAU + n / 2
        rate = shape / self.w
        log_var = np.log(rate) - digamma(shape)  # E ln σ²
        quadratic = self.precision @ (S + (self.mu - self.theta0) ** 2)
        bound += 0.5 * (n - n * log_var + np.log(self.precision * S).sum() - self.w * quadratic)
        bound += TAU * np.log(TAU) - gammaln(TAU) - (TAU + 1) * log_var + shape - TAU * self.w
        bound -= shape * np.log(rate) - gammaln(shape) - (shape + 1) * log_var
        for mean, var in ((self.a, var_a), (self.b, self.var_b)):
            bound += 0.5 * (1 + np.log(var / V) - (mean**2 + var) / V)
        return float(bound)


def mean_field(
    Q: sparse.csr_array, known: np.ndarray, *, tol: float = 1e-6, sweeps: int = 3000
) -> np.ndarray:
    """p̂ (n,) at the sweep that changes it by at most `tol` on average."""
    model = MeanField(Q, known)
    p = model.posterior()
    for _ in range(sweeps):
        model.sweep()
        last, p = p, model.posterior()
        if np.abs(p - last).mean() <= tol:
            break
    return p


def gibbs(Q: sparse.csr_array, known: np.ndarray, *, sweeps: int, rng: np.random.Generator) -> np.ndarray:
    """p̂ (n,) averaged over draws of all variables, after a quarter more that are discarded."""
    model, n = MeanField(Q, known), len(known)
    V_, precision, centre = model.vectors, model.precision, model.theta0
    theta, a, b, variance, alpha = V_ @ centre, 0.0, 1.0, 1.0, 0.6
    total = np.zeros(n)
    for draw in range(-(sweeps // 4), sweeps):
        p = ndtr(a + b * theta)
        posterior = np.where(known, 1.0, alpha * p / (1 - p + alpha * p))
        total += posterior if draw >= 0 else 0.0
        keyword = rng.random(n) < posterior
        alpha = rng.beta(1 + (keyword & ~known).sum(), 1 + known.sum())
        side = np.where(keyword, 1.0, -1.0)
        m = side * (a + b * theta)
        z = side * (m - ndtri_exp(np.log1p(-rng.random(n)) + log_ndtr(m)))  # truncated to its side
        X = np.column_stack([np.ones(n), theta])
        root = np.linalg.cholesky(X.T @ X + np.eye(2) / V)
        a, b = np.linalg.solve(root.T, np.linalg.solve(root, X.T @ z) + rng.standard_normal(2))
        S = 1 / (precision / variance + b**2)
        along = S * (precision * centre / variance + b * (V_.T @ (z - a)))
        along += np.sqrt(S) * rng.standard_normal(n)
        theta = V_ @ along
        variance = (TAU + 0.5 * (precision @ (along - centre) ** 2)) / rng.gamma(TAU + n / 2)
    return total / sweeps

"""Linear algebra of the prior precision U^-1 = BᵀB, B = I - d Q: solves, traces and log-determinants.

In: the normalised adjacency Q (n, n), symmetric, eigenvalues λ in [-1, 1]. U^-1 = B² is sparse and has the
eigenvalues (1 - d λ)²; U = B^-2 is dense and is never formed beyond `EXACT` words. The full-covariance q(θ)
of VBSS is N(μ, S) with S^-1 = w U^-1 + c I, and all its expectations follow from

    μ = S r,    tr S = Σ 1 / (w (1 - d λ)² + c),    tr U^-1 S,    log det S^-1,

which are one linear system and sums of functions of the eigenvalues of Q. Two implementations:

    DenseSpectrum   the eigendecomposition of Q: one n³, exact up to rounding
    SparseSpectrum  solves by conjugate gradients, whose number of steps is bounded because the condition
                    number of S^-1 is at most ((1 + d) / (1 - d))² = 152 at any n; sums by stochastic
                    Lanczos quadrature, whose relative standard error falls as 1 / sqrt(n · probes)

The quadrature replaces the n eigenvalues once by about a thousand nodes with weights. All traces and
log-determinants use the same nodes, so that the evidence bound is a fixed function, which coordinate ascent
never lowers.

Shapes: n words, K quadrature nodes, R probes.
"""

from typing import Protocol

import numpy as np
from scipy import sparse
from scipy.linalg import eigh, eigh_tridiagonal
from scipy.sparse.linalg import eigsh

from ich_mil.radiology_text.rank import DAMPING

EXACT = 1500
"""Largest number of words for the eigendecomposition (two seconds on one core)."""

PROBES, LANCZOS_STEPS = 16, 60
"""Random probes R of the quadrature, and number of nodes from each probe."""

DIAGONAL_PROBES, LEADING = 200, 8
"""Random probes for the diagonal of U in `SparseSpectrum`, and number of eigenvectors treated exactly."""

CG_STEPS, CG_RESIDUAL = 12, 1e-11
"""Maximum number of conjugate gradient steps from the last solution, and the relative residual at which they
stop earlier. Every step raises the evidence bound, so an early stop slows the ascent without changing its
limit."""


class Spectrum(Protocol):
    """Interface to the prior precision U^-1 of n words, as required by VBSS."""

    n: int

    def solve(self, r: np.ndarray, w: float, c: float, start: np.ndarray) -> np.ndarray:
        """(w U^-1 + c I)^-1 r (n,), from an initial guess `start` (n,)."""
        ...

    def traces(self, w: float, c: float) -> tuple[float, float, float]:
        """Return tr S, tr U^-1 S and log det S^-1 of S^-1 = w U^-1 + c I."""
        ...

    def apply(self, v: np.ndarray) -> np.ndarray:
        """B v (n,)."""
        ...

    def precision_diagonal(self) -> np.ndarray:
        """Diagonal (n,) of U^-1."""
        ...

    def covariance_diagonal(self) -> np.ndarray:
        """Diagonal (n,) of U."""
        ...


class DenseSpectrum:
    """Exact implementation by the eigendecomposition Q = V diag(λ) Vᵀ."""

    def __init__(self, Q: sparse.csr_array, *, damping: float = DAMPING) -> None:
        self.n = Q.shape[0]
        dense = Q.toarray()
        self._B = np.eye(self.n) - damping * dense
        values, self.vectors = eigh(dense, overwrite_a=True, check_finite=False)
        self.eigenvalues = (1 - damping * values) ** 2
        """Eigenvalues (n,) of U^-1; the columns of `vectors` (n, n) are their eigenvectors."""

    def solve(self, r: np.ndarray, w: float, c: float, start: np.ndarray) -> np.ndarray:
        """(w U^-1 + c I)^-1 r (n,); `start` is ignored."""
        return self.vectors @ ((self.vectors.T @ r) / (w * self.eigenvalues + c))

    def traces(self, w: float, c: float) -> tuple[float, float, float]:
        """Return tr S, tr U^-1 S and log det S^-1."""
        precision = w * self.eigenvalues + c
        variance = 1 / precision
        return float(variance.sum()), float(self.eigenvalues @ variance), float(np.log(precision).sum())

    def apply(self, v: np.ndarray) -> np.ndarray:
        """B v (n,)."""
        return self._B @ v

    def precision_diagonal(self) -> np.ndarray:
        """Diagonal (n,) of U^-1."""
        return (self._B**2).sum(axis=1)

    def covariance_diagonal(self) -> np.ndarray:
        """Diagonal (n,) of U."""
        return (self.vectors**2) @ (1 / self.eigenvalues)


class SparseSpectrum:
    """Conjugate gradients and stochastic Lanczos quadrature: memory and time linear in words and edges."""

    def __init__(
        self, Q: sparse.csr_array, *, damping: float = DAMPING, rng: np.random.Generator | None = None
    ) -> None:
        self.n = Q.shape[0]
        self.Q, self.damping = Q, damping
        self._rng = rng or np.random.default_rng(0)
        self.nodes, self.weights = self._quadrature()
        """Eigenvalues of U^-1 at the nodes (K,), and their weights (K,), whose sum is n."""

    def _quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and weights (K,) by the Lanczos method from R random sign vectors at once."""
        steps = min(LANCZOS_STEPS, self.n)
        V = self._rng.choice([-1.0, 1.0], size=(self.n, PROBES)) / np.sqrt(self.n)  # (n, R)
        before = np.zeros_like(V)
        diagonal, off = np.zeros((steps, PROBES)), np.zeros((steps, PROBES))
        for k in range(steps):
            W = self.Q @ V - (off[k - 1] * before if k else 0.0)
            diagonal[k] = (V * W).sum(axis=0)
            W -= diagonal[k] * V
            off[k] = np.linalg.norm(W, axis=0)
            before, V = V, W / np.maximum(off[k], 1e-300)
        nodes, weights = [], []
        for a, b in zip(diagonal.T, off.T, strict=True):
            # the Krylov space is exhausted: the remaining coefficients are rounding noise
            end = int(np.argmax(b < 1e-10)) + 1 if (b < 1e-10).any() else steps
            values, vectors = eigh_tridiagonal(a[:end], b[: end - 1])
            nodes.append(values)
            weights.append(vectors[0] ** 2 * self.n / PROBES)
        return (1 - self.damping * np.concatenate(nodes)) ** 2, np.concatenate(weights)

    def solve(self, r: np.ndarray, w: float, c: float, start: np.ndarray) -> np.ndarray:
        """(w U^-1 + c I)^-1 r (n,), by at most `CG_STEPS` steps from `start`."""
        x = start.copy()
        residual = r - self._precision(x, w, c)
        direction, size = residual, residual @ residual
        enough = CG_RESIDUAL**2 * (r @ r)
        for _ in range(CG_STEPS):
            if size <= enough:
                break
            image = self._precision(direction, w, c)
            step = size / (direction @ image)
            x += step * direction
            residual = residual - step * image
            size, last = residual @ residual, size
            direction = residual + size / last * direction
        return x

    def traces(self, w: float, c: float) -> tuple[float, float, float]:
        """Return tr S, tr U^-1 S and log det S^-1, by quadrature."""
        precision = w * self.nodes + c
        variance = self.weights / precision
        return float(variance.sum()), float(self.nodes @ variance), float(self.weights @ np.log(precision))

    def apply(self, v: np.ndarray) -> np.ndarray:
        """B v (n,)."""
        return v - self.damping * (self.Q @ v)

    def _precision(self, v: np.ndarray, w: float, c: float) -> np.ndarray:
        return w * self.apply(self.apply(v)) + c * v

    def precision_diagonal(self) -> np.ndarray:
        """Diagonal (n,) of U^-1, exact: (1 - d Q_ii)² + d² Σ_{j≠i} Q_ij²."""
        own, squares = self.Q.diagonal(), np.asarray((self.Q * self.Q).sum(axis=1)).ravel()
        return (1 - self.damping * own) ** 2 + self.damping**2 * (squares - own**2)

    def covariance_diagonal(self) -> np.ndarray:
        """Diagonal (n,) of U by Hutchinson's estimator: the mean of v ∘ X v over random sign vectors v.

        U = Σ_k (k + 1) d^k Q^k. The diagonals of its first three terms and of the part in the `LEADING`
        eigenvectors of Q are exact; X is the remainder.
        """
        d, Q = self.damping, self.Q
        values, vectors = eigsh(Q, k=min(LEADING, self.n - 1), which="LA", v0=np.ones(self.n))

        def rest(V: np.ndarray) -> np.ndarray:
            image = Q @ V
            terms = V + 2 * d * image + 3 * d**2 * (Q @ image)
            return self._inverse(self._inverse(V)) - terms

        V = self._rng.choice([-1.0, 1.0], size=(self.n, DIAGONAL_PROBES))
        inner = rest(V - vectors @ (vectors.T @ V))
        estimate = (V * (inner - vectors @ (vectors.T @ inner))).mean(axis=1)
        leading = 1 / (1 - d * values) ** 2 - (1 + 2 * d * values + 3 * d**2 * values**2)
        terms = 1 + 2 * d * Q.diagonal() + 3 * d**2 * np.asarray((Q * Q).sum(axis=1)).ravel()
        return np.maximum(terms + vectors**2 @ leading + estimate, 1 / (1 + d) ** 2)  # least eigenvalue of U

    def _inverse(self, V: np.ndarray) -> np.ndarray:
        """B^-1 V (n, R) by the Chebyshev expansion of 1 / (1 - d λ) on [-1, 1]."""
        root = np.sqrt(1 - self.damping**2)
        rho = (1 - root) / self.damping  # coefficients are 2 rho^k / root
        terms = int(np.ceil(np.log(1e-10) / np.log(rho)))
        before, now = V, self.Q @ V
        total = (V + 2 * rho * now) / root
        for k in range(2, terms):
            before, now = now, 2 * (self.Q @ now) - before
            total += 2 * rho**k / root * now
        return total


def spectrum_of(
    Q: sparse.csr_array, *, damping: float = DAMPING, rng: np.random.Generator | None = None
) -> Spectrum:
    """`DenseSpectrum` up to `EXACT` words, `SparseSpectrum` beyond."""
    if Q.shape[0] <= EXACT:
        return DenseSpectrum(Q, damping=damping)
    return SparseSpectrum(Q, damping=damping, rng=rng)

"""Laplace approximation of a multi-class Gaussian process with softmax likelihood, and draws from it.

In: covariance matrices K (R, C, n, n) of R chains, one-hot labels. Out: the Gaussian q(f) = N(f̂, Λ⁻¹) at the
mode of p(f | y, θ), exact draws from it, its log density, and the importance estimate of log p(y | θ).

    Λ = K⁻¹ + W       W = D - ΠΠᵀ       D = diag π       E_c = (K_c + D_c⁻¹)⁻¹       M = Σ_c E_c

Only n × n matrices are formed: Rasmussen & Williams (2006), section 3.5 and algorithm 3.3. Equations 11 and
12 of O'Harney et al. (2014) do not draw from q: the conditional of f^r must marginalise the classes after r,
and Λ[r, r] is a precision. The draw here is exact: with V = (K⁻¹ + D)⁻¹ = K - KEK and VΠ = KE,

    Λ⁻¹ = V + VΠ M⁻¹ ΠᵀV        f = f̂ + V^½ ε₁ + KE M^-½ ε₂

V^½ ε₁ is f₀ - KE f₀ + K D^½ B⁻¹ ε, with f₀ ~ N(0, K), ε ~ N(0, I) and B = I + D^½ K D^½.

Shapes: R chains, C classes, d sources, n scans, S importance samples. Leading (C, n) pairs are class by scan.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-8
"""Largest entry of the gradient y - π - K⁻¹f at the mode."""
LOOSE = 1e-4
"""Tolerance where the curvature is not that of the mode; q remains a valid importance density."""
FACTORISATIONS = 60
"""Newton steps with a new Hessian before the search for the mode ends."""
CHEAP_STEPS = 12
"""Steps at most with one Hessian: a step costs O(n²), a Hessian O(n³)."""
SLOW = 0.3
"""Factor by which a step must reduce the gradient; else the Hessian is computed again."""
HALVINGS = 20


@dataclass(frozen=True)
class Hessian:
    """W and the factors of Λ at some f.

    Attributes:
        root: D^½ = √π (R, C, n).
        B_inverse: B⁻¹ (R, C, n, n), so that E = D^½ B⁻¹ D^½.
        M_root: lower Cholesky factor (R, n, n) of M.
        log_det: log |I + KW| (R,).
    """

    root: Tensor
    B_inverse: Tensor
    M_root: Tensor
    log_det: Tensor

    def times_e(self, x: Tensor) -> Tensor:
        """E x of (R, C, n)."""
        return self.root * _times(self.B_inverse, self.root * x)


@dataclass(frozen=True)
class Laplace:
    """The Gaussian N(f̂, Λ⁻¹) of each chain.

    Attributes:
        K: (R, C, n, n).
        labels: one-hot y (R, C, n).
        mode: f̂ (R, C, n).
        a: K⁻¹ f̂ (R, C, n), exactly: f̂ is computed as K a.
        hessian: at f̂.
        log_evidence: Laplace's log p(y | θ) (R,); NaN where no mode was found.
    """

    K: Tensor
    labels: Tensor
    mode: Tensor
    a: Tensor
    hessian: Hessian
    log_evidence: Tensor


def log_likelihood(f: Tensor, labels: Tensor) -> Tensor:
    """Log-likelihood log p(y | f) (R,) of f (R, C, n)."""
    return ((labels * f).sum(-2) - f.logsumexp(-2)).sum(-1)


def covariance(theta: Tensor, sources: Tensor) -> Tensor:
    """K_c = Σ_h θ_ch S_h (Eq. 2).

    Args:
        theta: (R, C, d).
        sources: S (d, n, n).

    Returns:
        (R, C, n, n).
    """
    d, n, _ = sources.shape
    return (theta.reshape(-1, d) @ sources.reshape(d, n * n)).reshape(*theta.shape[:-1], n, n)


def _times(A: Tensor, x: Tensor) -> Tensor:
    """A x of symmetric A (..., n, n) and x (..., n); as xᵀA, which is several times faster on a CPU."""
    return (x[..., None, :] @ A)[..., 0, :]


def hessian(K: Tensor, f: Tensor) -> Hessian:
    """Factors at f (R, C, n); `log_det` is NaN where B or M is not positive definite in float64."""
    root = (f.log_softmax(-2) / 2).exp()
    B = K * root[..., :, None]
    B.mul_(root[..., None, :]).diagonal(dim1=-2, dim2=-1).add_(1.0)
    L, failed = torch.linalg.cholesky_ex(B)  # (R, C, n, n)
    log_det = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum((-1, -2))  # (R,)
    B_inverse = torch.cholesky_inverse(L)
    M = (B_inverse * root[..., :, None]).mul_(root[..., None, :]).sum(1)  # (R, n, n)
    M_root, M_failed = torch.linalg.cholesky_ex(M)
    log_det = log_det + 2 * M_root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    bad = (failed != 0).any(-1) | (M_failed != 0)
    return Hessian(root, B_inverse, M_root, torch.where(bad, torch.nan, log_det))


def newton_step(K: Tensor, at: Hessian, g: Tensor) -> Tensor:
    """(I + WK)⁻¹ g (R, C, n): the change of a = K⁻¹f for the gradient g = y - π - a.

    (I + WK)⁻¹ = I - EK + E M⁻¹ Σ_c E K, by Rasmussen & Williams Eq. 3.47.
    """
    c = at.times_e(_times(K, g))  # (R, C, n)
    pooled = torch.cholesky_solve(c.sum(-2)[..., None], at.M_root)[..., 0]  # (R, n)
    return g - c + at.times_e(pooled[:, None].expand_as(c))


def _objective(a: Tensor, f: Tensor, labels: Tensor) -> Tensor:
    """Log posterior of f up to a constant, log p(y | f) - ½ fᵀK⁻¹f (R,)."""
    return log_likelihood(f, labels) - (a * f).sum((-1, -2)) / 2


def _ascend(
    K: Tensor, labels: Tensor, at: Hessian, a: Tensor, f: Tensor, tolerance: float
) -> tuple[Tensor, Tensor]:
    """Steps with one Hessian, each at O(n²), in each chain for as long as they reduce its gradient well.

    A chain stops by its own gradient: q of θ must not depend on the θ of other chains, or the estimates of a
    chain at different steps are not of one distribution, which detailed balance needs.
    """
    objective = _objective(a, f, labels)
    g = labels - f.softmax(-2) - a
    size = g.abs().amax((-1, -2))
    going = torch.ones_like(size, dtype=torch.bool)
    for _ in range(CHEAP_STEPS):
        step = newton_step(K, at, g) * going[:, None, None]
        step_f = _times(K, step)
        length = torch.ones_like(size)[:, None, None]
        for _ in range(HALVINGS):
            new_a, new_f = a + length * step, f + length * step_f
            new = _objective(new_a, new_f, labels)
            worse = new < objective - 1e-10 * (1 + objective.abs())
            if not bool(worse.any()):
                break
            length = torch.where(worse[:, None, None], length / 2, length)
        a, f, objective = new_a, new_f, new
        g = labels - f.softmax(-2) - a
        before, size = size, g.abs().amax((-1, -2))
        going &= (size > tolerance) & (size < SLOW * before)
        if not bool(going.any()):
            break
    return a, f


def laplace(
    K: Tensor, labels: Tensor, start: Tensor | None = None, *, curvature_at_mode: bool = True
) -> Laplace:
    """Find the mode of p(f | y, θ) by Newton's method, several steps to a Hessian.

    Args:
        K: (R, C, n, n) positive definite, or semi-definite.
        labels: one-hot (R, C, n).
        start: f (R, C, n) to start from, for instance the mode of another θ; None starts at 0. The result
            does not depend on it beyond `TOLERANCE`.
        curvature_at_mode: compute W at f̂. Else W is that of the last step, near f̂ where `start` is, for
            one factorisation less; q then depends on `start`, and so does `log_evidence`.

    Returns:
        The approximation. `log_evidence` is NaN in chains where no mode was found.
    """
    R, C, n, _ = K.shape
    tolerance = TOLERANCE if curvature_at_mode else LOOSE
    f = torch.zeros(R, C, n).to(K) if start is None else start.clone()
    a = torch.zeros_like(f)
    at = Hessian(f, K, K[:, 0], f[:, 0, 0])  # set in the first turn
    active = torch.arange(R, device=K.device)
    for turn in range(FACTORISATIONS):
        every = len(active) == R
        K_, y, f_ = (K, labels, f) if every else (K[active], labels[active], f[active])
        current = hessian(K_, f_)
        if every:
            at = current
        else:
            for whole, part in zip(vars(at).values(), vars(current).values(), strict=True):
                whole[active] = part
        pi = current.root.square()
        if turn == 0 and start is not None:  # f is not K a yet: a Newton step from f, Eq. 3.39
            a = newton_step(K_, current, pi * f_ - pi * (pi * f_).sum(-2, keepdim=True) + y - pi)
            f = _times(K, a)
            a_, f_ = a, f
        else:
            a_ = a[active]
            left = ~((y - pi - a_).abs().amax((-1, -2)) <= tolerance) & current.log_det.isfinite()
            if not bool(left.any()):
                break
            if not bool(left.all()):
                chosen = left.nonzero()[:, 0]
                active, K_, y, a_, f_ = (x[chosen] for x in (active, K_, y, a_, f_))
                current = Hessian(*(x[chosen] for x in vars(current).values()))
        a[active], f[active] = _ascend(K_, y, current, a_, f_, tolerance)
        if not curvature_at_mode:
            size = (y - f[active].softmax(-2) - a[active]).abs().amax((-1, -2))
            active = active[(size > tolerance).nonzero()[:, 0]]
            if not len(active):
                break
    g = labels - f.softmax(-2) - a
    bad = ~(g.abs().amax((-1, -2)) <= 100 * tolerance)
    evidence = torch.where(bad, torch.nan, _objective(a, f, labels) - at.log_det / 2)
    return Laplace(K, labels, f, a, at, evidence)


def noise_rows(classes: int, sources: int, n: int) -> int:
    """Standard normal numbers behind one draw of f."""
    return n * (classes * (sources + 1) + 1)


def draw(q: Laplace, theta: Tensor, roots: Tensor, noise: Tensor) -> Tensor:
    """Exact draws from N(f̂, Λ⁻¹), as deviations from f̂.

    Args:
        q: the Gaussian.
        theta: (R, C, d) behind `q.K`.
        roots: A_h (d, n, n) with A_h A_hᵀ = S_h.
        noise: standard normal (`noise_rows`, R, S).

    Returns:
        δ = f - f̂ (R, C, n, S).
    """
    (R, C, n, _), d, S = q.K.shape, len(roots), noise.shape[-1]
    prior, eps, shared = noise.split([n * C * d, n * C, n])
    # f₀ = Σ_h √θ_ch A_h ε_ch, one product for all chains and classes
    scaled = prior.reshape(d, n, C, R, S) * theta.sqrt().permute(2, 1, 0)[:, None, :, :, None]
    f0 = roots.transpose(0, 1).reshape(n, d * n) @ scaled.reshape(d * n, C * R * S)
    f0 = f0.reshape(n, C, R, S).permute(2, 1, 0, 3).contiguous()  # (R, C, n, S)
    # t = M^-½ ε₂ - f₀, and δ = f₀ + K D^½ B⁻¹ (D^½ t + ε)
    t = torch.linalg.solve_triangular(q.hessian.M_root.mT, shared.transpose(0, 1), upper=True)[:, None] - f0
    root = q.hessian.root[..., None]
    beta = root * (q.hessian.B_inverse @ (root * t + eps.reshape(C, n, R, S).permute(2, 0, 1, 3)))
    return f0 + q.K @ beta


def log_weights(q: Laplace, delta: Tensor) -> Tensor:
    """Log weights log p(y | f) p(f | θ) / q(f) of draws f = f̂ + δ.

    K⁻¹ cancels: log p(f) - log q(f) = -½ f̂ᵀa - aᵀδ + ½ δᵀWδ - ½ log |I + KW|.

    Args:
        q: the Gaussian.
        delta: (R, C, n, S).

    Returns:
        (R, S).
    """
    pi = q.hessian.root.square()[..., None]
    f = q.mode[..., None] + delta
    fit = (q.labels[..., None] * f).sum((1, 2)) - f.logsumexp(1).sum(1)  # (R, S)
    weighted = pi * delta
    curved = (weighted * delta).sum((1, 2)) - weighted.sum(1).square().sum(1)  # δᵀWδ
    fixed = (q.mode * q.a).sum((1, 2)) + q.hessian.log_det  # (R,)
    return fit - (q.a[..., None] * delta).sum((1, 2)) + curved / 2 - fixed[:, None] / 2

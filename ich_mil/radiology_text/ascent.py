"""Convergence of VBSS: coordinate sweeps with squared extrapolation (SQUAREM).

In: a `Vbss` model. Out: a `VbssFit`. The moments are x = (μ, E a, E b, ln S_b, ln E 1/σ², E ln α). Two sweeps
F give their differences, and an extrapolation (R. Varadhan, C. Roland, Scand. J. Statist. 35, 2008, scheme
S3):

    r = F(x) - x,   v = F(F(x)) - F(x) - r,   s = -|r| / |v|,   x - 2 s r + s² v

The extrapolation, followed by a sweep, replaces F(F(x)) if its ELBO is not lower. Plain sweeps converge
linearly and need hundreds of sweeps for a digit or two.

Shapes: n words.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr

from ich_mil.radiology_text.vbss import State, Vbss

FARTHEST = 64.0
"""Largest extrapolation length |s|."""


@dataclass
class VbssFit:
    """Result of VBSS.

    Attributes:
        proba: (n,) p̂, P(keyword | y); 1 for known keywords.
        link: (n,) Φ(m), the p̂ of the thesis.
        mean: (n,) μ of q(θ).
        a: E a.
        b: E b.
        alpha: E α, a number, or (n,) with a separate α for each word.
        elbo: evidence lower bound after each accepted step.
        sweeps: number of sweeps, including those of rejected extrapolations.
        converged: whether Φ(m) converged before `max_sweeps`.
    """

    proba: np.ndarray
    link: np.ndarray
    mean: np.ndarray
    a: float
    b: float
    alpha: float | np.ndarray
    elbo: list[float] = field(repr=False)
    sweeps: int
    converged: bool


def _vector(state: State) -> np.ndarray:
    scalars = [state.a, state.b, np.log(state.var_b), np.log(state.w)]
    return np.concatenate([state.mu, scalars, np.atleast_1d(state.log_alpha)])


def _state(x: np.ndarray, like: State) -> State:
    n = len(like.mu)
    a, b, log_var, log_w = x[n : n + 4]
    scalar = np.ndim(like.log_alpha) == 0
    log_alpha = np.minimum(x[n + 4 :], 0.0)
    return State(x[:n], a, b, np.exp(log_var), np.exp(log_w), float(log_alpha[0]) if scalar else log_alpha)


def _extrapolated(first: State, second: State, third: State) -> State | None:
    """Extrapolated moments; None if the differences give no extrapolation (|v| = 0 or |r| <= |v|)."""
    x, y, z = _vector(first), _vector(second), _vector(third)
    r = y - x
    v = z - y - r
    length, turn = np.linalg.norm(r), np.linalg.norm(v)
    if not turn > 0 or length <= turn:
        return None
    s = -min(float(length / turn), FARTHEST)
    return _state(x - 2 * s * r + s * s * v, third)


def ascend(vbss: Vbss, *, tol: float = 1e-6, max_sweeps: int = 2000) -> VbssFit:
    """Maximise the ELBO from the starting point of the thesis.

    Args:
        vbss: the model. With `covariance="printed"` there is no extrapolation, since these updates do not
            ascend a bound.
        tol: mean absolute change of Φ(m) in one sweep at which the ascent ends.
        max_sweeps: maximum number of sweeps.
    """
    state = vbss.sweep(vbss.start())
    elbo = [vbss.elbo(state)]
    sweeps, moved = 1, np.inf
    while moved > tol and sweeps < max_sweeps:
        second = vbss.sweep(state)
        moved = float(np.abs(ndtr(second.m) - ndtr(state.m)).mean())
        if moved <= tol or not vbss.full:
            state = second
            sweeps += 1
            elbo.append(vbss.elbo(state))
            continue
        third = vbss.sweep(second)
        sweeps += 2
        best, height = third, vbss.elbo(third)
        far = _extrapolated(state, second, third)
        if far is not None:
            ahead = vbss.sweep(far)
            sweeps += 1
            above = vbss.elbo(ahead)
            if above >= height:
                best, height = ahead, above
        state = best
        elbo.append(height)
    return VbssFit(
        proba=vbss.posterior(state),
        link=ndtr(state.m),
        mean=state.mu,
        a=float(state.a),
        b=float(state.b),
        alpha=vbss.alpha(state),
        elbo=elbo,
        sweeps=sweeps,
        converged=bool(moved <= tol),
    )

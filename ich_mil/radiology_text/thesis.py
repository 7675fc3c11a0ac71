"""VBSS by the rules of the program published with the thesis, for the tables of the thesis only.

In: the normalised adjacency Q of one text and a mask y of known keywords. Out: p̂ of every word. The model is
that of the thesis (Y. Hu, sections 1.2 and 1.3.3): z_i ~ N(a + b θ_i, 1), word i is a keyword if z_i > 0,
θ ~ N(θ0, σ² U), U = B^-1 B^-T, B = I - d Q. The program differs from the text in six rules, and the published
tables follow the program:

* θ0 = B^-1 y, without the factor 1 - d.
* α is 0.7 at the start, and E z_i of a word without a label keeps its first value through all sweeps, so that
  a later value of α changes nothing.
* q(θ) is updated word by word with U_ii alone: S_i = 1 / (E b² + w / U_ii), w = E 1/σ².
* p̂ of a known word is 1 and of another word Φ(E a + E b E θ_i).
* Known words count among the selected words: in precision, in recall and in the estimated false discovery
  rate (`fdr.select` with `count_known`).

E b converges to 0, and σ² grows without bound. All words without a label then have nearly one p̂ = Φ(E a),
their order is that of θ0, that is of SS, and γ sets no more than the number of selected words. The estimated
rate says nothing on new words.

Shapes: n words.
"""

import numpy as np
from scipy import sparse
from scipy.special import ndtr

from ich_mil.radiology_text.rank import DAMPING

START_ALPHA = 0.7
TAU, VAR_A, VAR_B = 0.1, 10.0, 10.0
"""Prior σ² ~ IG(τ, τ), a ~ N(0, VAR_A), b ~ N(0, VAR_B) (section 1.4.1)."""
MAX_SWEEPS, TOLERANCE = 500, 1e-10
"""Maximum number of sweeps, and the mean change of p̂ in a sweep at which they end (section 1.4.1)."""
LEAST_PRECISION = 1e-100
"""Sweeps end at a smaller w too: σ² grows without bound, and p̂ has settled to six decimals by then."""


def published_vbss(Q: sparse.csr_array, known: np.ndarray) -> np.ndarray:
    """p̂ (n,) of each word: 1 for known words, Φ(E a + E b E θ_i) for others.

    Args:
        Q: (n, n) normalised adjacency, as from `WordGraph.normalised`.
        known: (n,) mask of known keywords.
    """
    n = len(known)
    B = np.eye(n) - DAMPING * Q.toarray()
    U_root = np.linalg.inv(B)
    theta0, U_diagonal, precision = U_root @ known, (U_root**2).sum(axis=1), (B**2).sum(axis=1)
    z_unlabelled = _truncated_mean(theta0, START_ALPHA)
    mu, a, b, var_b, w = theta0, 0.0, 1.0, 0.0, 1.0
    p, change, sweep = ndtr(theta0), np.inf, 0
    while change > TOLERANCE and sweep < MAX_SWEEPS and w > LEAST_PRECISION:
        z = np.where(known, _truncated_mean(a + b * mu, np.inf), z_unlabelled)
        S = 1 / (b**2 + var_b + w / U_diagonal)
        mu = S * (b * (z - a) + w * theta0 / U_diagonal)
        distance = B @ (mu - theta0)
        w = (TAU + n / 2) / (TAU + 0.5 * (precision @ S + distance @ distance))
        a = (z.sum() - b * mu.sum()) / (n + 1 / VAR_A)
        var_b = 1 / (mu @ mu + S.sum() + 1 / VAR_B)
        b = var_b * (mu @ z - a * mu.sum())
        last, p, sweep = p, ndtr(a + b * mu), sweep + 1
        change = float(np.abs(p - last).mean())
    return np.where(known, 1.0, p)


def _truncated_mean(m: np.ndarray, weight: float) -> np.ndarray:
    """Mean of N(m, 1) whose part z > 0 is multiplied by `weight`; infinite: the part z > 0 alone."""
    density, above = np.exp(-0.5 * m * m) / np.sqrt(2 * np.pi), ndtr(m)
    if np.isinf(weight):
        return m + density / above
    return m + (weight - 1) * density / (1 - above + weight * above)

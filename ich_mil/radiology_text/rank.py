"""Word ranking by random walks on the word graph, without probabilities: SS and TextRank.

In: a word graph. Out: a score for each word. With the damping d, Q = D^-1/2 A D^-1/2, G = D^-1 A and
B = I - d Q:

    SS        θ = (1 - d) y + d Qᵀ θ,   equivalent to B θ = (1 - d) y        (Li et al.; θ0 of VBSS)
    TextRank  θ = (1 - d) 1 + d Gᵀ θ,   equivalent to θ = D^1/2 φ, B φ = (1 - d) D^-1/2 1

B is symmetric with eigenvalues in [1 - d, 1 + d], so the number of conjugate gradient steps does not depend
on the number of words.

Shapes: n words.
"""

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg

from ich_mil.radiology_text.graph import WordGraph

DAMPING = 0.85
"""Damping factor d of PageRank, as in the thesis."""

RESIDUAL = 1e-12
"""Relative residual at which conjugate gradients stop."""

DIRECT = 200
"""Largest number of words for a dense solution, which is faster up to this size."""


def solve_walk(Q: sparse.csr_array, b: np.ndarray, *, damping: float = DAMPING) -> np.ndarray:
    """Solve (I - d Q) x = b for x (n,)."""
    if Q.shape[0] <= DIRECT:
        return np.linalg.solve(np.eye(Q.shape[0]) - damping * Q.toarray(), b)
    system = LinearOperator(Q.shape, matvec=lambda x: x - damping * (Q @ x), dtype=float)
    x, _ = cg(system, b, rtol=RESIDUAL, atol=0.0, maxiter=1000)
    return x


def semi_supervised(graph: WordGraph, known: np.ndarray, *, damping: float = DAMPING) -> np.ndarray:
    """SS scores (n,) for a mask (n,) of known keywords."""
    return (1 - damping) * solve_walk(graph.normalised(), known.astype(float), damping=damping)


def textrank(graph: WordGraph, *, damping: float = DAMPING) -> np.ndarray:
    """TextRank scores (n,); their mean is 1 where every word has a neighbour."""
    degrees = graph.degrees
    root = np.sqrt(np.where(degrees > 0, degrees, 1.0))
    return root * solve_walk(graph.normalised(), (1 - damping) / root, damping=damping)

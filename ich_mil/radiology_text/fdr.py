"""False discovery rate of keywords: estimate, and selection at a given level.

In: p̂ (n,), the probabilities that words are keywords. Out: for each word i, the estimated false discovery
rate of the set of all words with p̂ >= p̂_i, and the largest set whose rate is at most γ:

    FDR(h) = Σ_i (1 - p̂_i) 1(p̂_i >= h) / Σ_i 1(p̂_i >= h),      h = the smallest p̂_k with FDR(p̂_k) <= γ

The thesis (section 1.3.3) writes "the largest h" and then takes the smallest p̂_k; the second is correct.
Known keywords are not discoveries: they are always selected and do not enter the rate, except with
`count_known`, as in the tables of the thesis. The estimate is as well calibrated as p̂.

Shapes: n words.
"""

import numpy as np

from ich_mil.errors import ConfigError


def estimated_fdr(proba: np.ndarray, known: np.ndarray, *, count_known: bool = False) -> np.ndarray:
    """Estimated false discovery rate (n,) of the words at least as probable as each word.

    Args:
        proba: (n,) in [0, 1].
        known: (n,) mask of known keywords; their rate is 0 unless they count.
        count_known: whether known keywords count as discoveries, with their probability in `proba`.
    """
    counted = np.ones(len(proba), dtype=bool) if count_known else ~known
    p = proba[counted]
    order = np.argsort(-p, kind="stable")
    running = np.cumsum(1 - p[order]) / np.arange(1, len(p) + 1)
    last_of_ties = np.searchsorted(-p[order], -p, side="right") - 1  # tied words enter together
    fdr = np.zeros(len(proba))
    fdr[counted] = running[last_of_ties]
    return fdr


def select(fdr: np.ndarray, *, gamma: float) -> np.ndarray:
    """Mask (n,) of the largest set of words whose estimated false discovery rate is at most γ.

    Raises:
        ConfigError: γ is not in [0, 1].
    """
    if not 0 <= gamma <= 1:
        raise ConfigError(f"gamma must be in [0, 1]; got {gamma}")
    return fdr <= gamma  # the rate does not decrease as p̂ decreases

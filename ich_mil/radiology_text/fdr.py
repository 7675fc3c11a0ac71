"""False discovery rate of keywords: estimate, selection at a given level, recalibration of probabilities.

In: p̂ (n,), the probabilities that words are keywords. Out: for each word i, the estimated false discovery
rate of the set of all words with p̂ >= p̂_i, and the largest set whose rate is at most γ:

    FDR(h) = Σ_i (1 - p̂_i) 1(p̂_i >= h) / Σ_i 1(p̂_i >= h),      h = the smallest p̂_k with FDR(p̂_k) <= γ

The thesis (section 1.3.3) writes "the largest h" and then takes the smallest p̂_k; the second is correct.
Known keywords are not discoveries: they are always selected and do not enter the rate, except with
`count_known`, as in the tables of the thesis.

The estimate is only as well calibrated as p̂, which depends on the fraction of keywords that are known; the
text itself carries little information on that fraction. `Recalibration` is a monotone map of p̂ learned from
words with known truth.

Shapes: n words.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from ich_mil.errors import ConfigError, DataError

LEAST = 1e-9
"""Clipping distance of a probability from 0 and 1 before the logit."""


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


def select(proba: np.ndarray, known: np.ndarray, *, gamma: float, count_known: bool = False) -> np.ndarray:
    """Mask (n,) of the largest set of keywords whose estimated false discovery rate is at most γ.

    Raises:
        ConfigError: γ is not in [0, 1].
    """
    if not 0 <= gamma <= 1:
        raise ConfigError(f"gamma must be in [0, 1]; got {gamma}")
    # the running mean of 1 - p̂ does not decrease as p̂ decreases: all words with a rate of at most γ
    chosen = estimated_fdr(proba, known, count_known=count_known) <= gamma
    return chosen if count_known else chosen | known


@dataclass(frozen=True)
class Recalibration:
    """Monotone map p̂ -> 1 / (1 + exp(-(u + v logit p̂))), v > 0, fitted to words with known truth.

    The truth comes either from texts whose keywords are all labelled (`fit`) or, without such texts, from
    known keywords that were hidden from the fit one at a time (`fit_hidden`).

    Attributes:
        offset: u.
        slope: v.
    """

    offset: float
    slope: float

    @classmethod
    def fit(cls, proba: np.ndarray, keyword: np.ndarray) -> Self:
        """Fit to completely labelled words by maximum likelihood.

        Args:
            proba: (n,) p̂ of words that were not known keywords in the fit.
            keyword: (n,) whether each word is a keyword.

        Raises:
            DataError: there is no word, or all words are of one class.
        """
        keyword = np.asarray(keyword, dtype=bool)
        if len(keyword) == 0 or keyword.all() or not keyword.any():
            raise DataError("recalibration needs words that are keywords and words that are none")
        return cls._most_likely(proba, keyword, np.inf, keyword.mean())

    @classmethod
    def fit_hidden(cls, proba: np.ndarray, hidden: np.ndarray, *, keywords: float) -> Self:
        """Fit to keywords hidden one at a time, without labels of the other words.

        Let f1 be the density of p̂ of hidden keywords, f the density of p̂ of all other words, and
        π = keywords / others. A word among the others is a keyword with probability
        P(p̂) = π f1(p̂) / f(p̂). A word of the pooled sample is a hidden keyword with odds
        P(p̂) · hidden / keywords, and the likelihood of these odds identifies P (learning from positive and
        unlabelled examples).

        Args:
            proba: (n,) p̂ of the hidden keywords and of the unlabelled words.
            hidden: (n,) mask of the hidden keywords.
            keywords: expected number of keywords among the other words. The user must state it: neither the
                texts nor the known words determine it.

        Raises:
            DataError: there is no hidden keyword.
            ConfigError: `keywords` is not between 0 and the number of other words.
        """
        hidden = np.asarray(hidden, dtype=bool)
        others = len(hidden) - int(hidden.sum())
        if not 0 < keywords < others:
            raise ConfigError(
                f"keywords must be between 0 and {others}, the words not hidden; got {keywords}"
            )
        if not hidden.any():
            raise DataError("recalibration needs at least one hidden keyword")
        return cls._most_likely(proba, hidden, hidden.sum() / keywords, keywords / others)

    @classmethod
    def _most_likely(cls, proba: np.ndarray, event: np.ndarray, ratio: float, share: float) -> Self:
        """Maximum likelihood fit where an event has odds `ratio` · P, or P / (1 - P) for infinite `ratio`."""
        x = _logit(proba)
        centre = x.mean()

        def loss(parameters: np.ndarray) -> float:
            p = expit(parameters[0] + np.exp(parameters[1]) * (x - centre))
            rate = p if np.isinf(ratio) else ratio * p / (1 + ratio * p)
            rate = np.clip(rate, 1e-12, 1 - 1e-12)
            return -float(np.log(np.where(event, rate, 1 - rate)).mean())

        start = np.array([float(_logit(np.array([share]))[0]), 0.0])
        found = minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-10}).x
        slope = float(np.exp(found[1]))
        return cls(float(found[0]) - slope * float(centre), slope)

    def __call__(self, proba: np.ndarray) -> np.ndarray:
        """Recalibrated probabilities (n,)."""
        return expit(self.offset + self.slope * _logit(proba))


def _logit(proba: np.ndarray) -> np.ndarray:
    return logit(np.clip(proba, LEAST, 1 - LEAST))

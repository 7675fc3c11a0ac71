"""False discovery rate of keywords: estimate, control, and recalibration of the probabilities behind it.

In: p̂ (n,), probabilities that words are keywords. Out: the estimated false discovery rate of the set of all
words at least as probable as word i, and the largest set whose rate is at most γ:

    FDR(h) = Σ_i (1 - p̂_i) 1(p̂_i >= h) / Σ_i 1(p̂_i >= h),      h = the smallest p̂_k with FDR(p̂_k) <= γ

The thesis (section 1.3.3) asks for "the largest h" and then takes the smallest p̂_k; the second is meant.
Words that were known to be keywords are no discoveries: they are always selected and never count in the
rate, unless `count_known`, by which the thesis' tables are computed.

The estimate is as honest as p̂, and p̂ depends on the share of keywords that are known, about which a text
says little. `Recalibration` is a monotone map of p̂ learned from words whose truth is known.

Shapes: n words.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from ich_mil.errors import ConfigError, DataError

LEAST = 1e-9
"""Least distance of a probability from 0 and 1 in a logit."""


def estimated_fdr(proba: np.ndarray, known: np.ndarray, *, count_known: bool = False) -> np.ndarray:
    """Estimated false discovery rate (n,) of the words at least as probable as each word.

    Args:
        proba: (n,) in [0, 1].
        known: (n,) mask of known keywords; 0 is their rate unless they count.
        count_known: whether known words count as discoveries, with the probability they have in `proba`.
    """
    counted = np.ones(len(proba), dtype=bool) if count_known else ~known
    p = proba[counted]
    order = np.argsort(-p, kind="stable")
    running = np.cumsum(1 - p[order]) / np.arange(1, len(p) + 1)
    last_of_ties = np.searchsorted(-p[order], -p, side="right") - 1  # words of one p̂ enter together
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
    # the running mean of 1 - p̂ never falls along falling p̂, so the set is where it is at most γ
    chosen = estimated_fdr(proba, known, count_known=count_known) <= gamma
    return chosen if count_known else chosen | known


@dataclass(frozen=True)
class Recalibration:
    """Monotone map p̂ -> 1 / (1 + exp(-(u + v logit p̂))), v > 0, fitted to words whose truth is known.

    Two kinds of known truth: words of texts whose keywords are all labelled (`fit`); or, where no text is,
    known keywords that were hidden from the fit one by one (`fit_hidden`).

    Attributes:
        offset: u.
        slope: v.
    """

    offset: float
    slope: float

    @classmethod
    def fit(cls, proba: np.ndarray, keyword: np.ndarray) -> Self:
        """Learn from words whose labels are complete, by maximum likelihood.

        Args:
            proba: (n,) p̂ of words that were not known to the fit.
            keyword: (n,) whether each is a keyword.

        Raises:
            DataError: no word, or words of one kind only.
        """
        keyword = np.asarray(keyword, dtype=bool)
        if len(keyword) == 0 or keyword.all() or not keyword.any():
            raise DataError("recalibration needs words that are keywords and words that are none")
        return cls._most_likely(proba, keyword, np.inf, keyword.mean())

    @classmethod
    def fit_hidden(cls, proba: np.ndarray, hidden: np.ndarray, *, keywords: float) -> Self:
        """Learn from keywords hidden in turn, where the labels of all other words are unknown.

        With f1 the density of p̂ of hidden keywords, f that of all others, and π = keywords / others, a word
        among the others is a keyword with probability P(p̂) = π f1(p̂) / f(p̂). So a word drawn from both
        is a hidden one with odds P(p̂) · hidden / keywords, and the likelihood of that tells P (learning from
        positive and unlabelled examples).

        Args:
            proba: (n,) p̂ of the hidden keywords and of the words that nobody labelled.
            hidden: (n,) mask of the hidden keywords.
            keywords: expected number of keywords among the others, a statement of the user: neither texts
                nor known words tell it.

        Raises:
            DataError: no hidden keyword.
            ConfigError: `keywords` is not between 0 and the number of others.
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
        """Maximum likelihood where the odds of an event are `ratio` P, or P / (1 - P) if it is infinite."""
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

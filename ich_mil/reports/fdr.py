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
from sklearn.isotonic import IsotonicRegression

from ich_mil.errors import ConfigError, DataError


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


@dataclass
class Recalibration:
    """Monotone map p̂ -> event rate, by isotonic regression on words whose truth is known.

    Two kinds of known truth: words of texts whose keywords are all labelled; or, where no text is,
    known keywords that were hidden from the fit (`fit_hidden`).
    """

    regression: IsotonicRegression

    @classmethod
    def fit(cls, proba: np.ndarray, keyword: np.ndarray) -> Self:
        """Learn from words whose labels are complete.

        Args:
            proba: (n,) p̂ of words that were not known to the fit.
            keyword: (n,) whether each is a keyword.

        Raises:
            DataError: no word, or words of one kind only.
        """
        if len(proba) == 0 or keyword.all() or not keyword.any():
            raise DataError("recalibration needs words that are keywords and words that are none")
        rate = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(
            proba, keyword.astype(float)
        )
        return cls(rate)

    @classmethod
    def fit_hidden(cls, proba: np.ndarray, hidden: np.ndarray, *, keywords: float) -> Self:
        """Learn from keywords hidden in turn, where the labels of all other words are unknown.

        With f1 the density of p̂ of hidden keywords, f that of all others, and π = keywords / others, a word
        among the others is a keyword with probability π f1(p̂) / f(p̂) (learning from positive and unlabelled
        examples). The ratio is monotone by isotonic regression.

        Args:
            proba: (n,) p̂ of the hidden keywords and of the words that nobody labelled.
            hidden: (n,) mask of the hidden keywords.
            keywords: expected number of keywords among the others, a statement of the user: neither texts
                nor known words tell it.

        Raises:
            DataError: no hidden keyword, or no other word.
            ConfigError: `keywords` is not between 0 and the number of others.
        """
        others = len(hidden) - int(hidden.sum())
        if not 0 < keywords < others:
            raise ConfigError(
                f"keywords must be between 0 and {others}, the words not hidden; got {keywords}"
            )
        if not hidden.any():
            raise DataError("recalibration needs at least one hidden keyword")
        # density ratio of hidden keywords and others as a function of p̂: a balanced isotonic rate
        weight = np.where(hidden, others / hidden.sum(), 1.0)
        rate = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
        rate.fit(proba, hidden.astype(float), sample_weight=weight)
        balanced = np.clip(rate.y_thresholds_, 0.0, 1.0 - 1e-9)
        share = np.minimum(balanced / (1 - balanced) * keywords / others, 1.0)  # π f1 / f of the others
        mapped = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(rate.X_thresholds_, share)
        return cls(mapped)

    def __call__(self, proba: np.ndarray) -> np.ndarray:
        """Recalibrated probabilities (n,)."""
        return self.regression.predict(proba)

"""Keyword extraction from texts as a scikit-learn estimator.

In: one text or a collection, and known keywords. Out: the probability that each other word is a keyword.

    extractor = KeywordExtractor(alpha=0.7).fit(reports, known=["hemorrhage"])
    extractor.keywords_           # terms selected at gamma, the most probable first
    extractor.table()             # term, probability, fdr
    extractor.select(gamma=0.3)   # selection at another level of the false discovery rate

A collection forms one graph: counts are summed, and co-occurrence windows end at the end of a text. Words are
identified by their stems and shown in their most frequent written form.

Accuracy: up to `spectrum.EXACT` words `vbss` is exact up to rounding and tolerance. Beyond, linear systems
are still solved to tolerance, while traces are stochastic (`spectrum`), seeded by `random_state`. `bss` uses
the dense graph and rejects more than `BSS_WORDS` words.

Shapes: n words.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ich_mil.errors import ConfigError, DataError
from ich_mil.radiology_text.ascent import VbssFit, ascend
from ich_mil.radiology_text.fdr import estimated_fdr, select
from ich_mil.radiology_text.gibbs import GibbsFit, Link, sample
from ich_mil.radiology_text.graph import Tokenizer, Weights, WordGraph, Words, build_graph
from ich_mil.radiology_text.rank import DAMPING, semi_supervised, textrank
from ich_mil.radiology_text.spectrum import DenseSpectrum, spectrum_of
from ich_mil.radiology_text.vbss import Alpha, Covariance, Prior, PriorMean, Vbss

METHODS = ("vbss", "bss", "ss", "textrank")

BSS_WORDS = 3000
"""Largest number of words for Gibbs sampling."""

TOP_SHARE = 1 / 3
"""Fraction of the words that `ss` and `textrank` select, the customary third (thesis, section 1.3.3)."""


class KeywordExtractor(BaseEstimator):
    """Semi-supervised keyword extraction with probabilities and a controlled false discovery rate.

    Parameters:
        method: `vbss`; `bss` (Gibbs sampling); `ss` or `textrank` (scores without probabilities).
        gamma: level of the estimated false discovery rate of `keywords_`; known keywords do not count.
        language: language of the Snowball stemmer; None: no stemming.
        stop_words: words to leave out; None: scikit-learn's list for English, none otherwise.
        tokenizer: function from a text to its words; None: `graph.tokenize`.
        window: number of neighbouring words that a word is linked with (`graph.build_graph`).
        min_count: words that occur less often are left out.
        weights: weights of the links.
        damping: damping factor d of the random walk.
        alpha: fraction of keywords that are not known. `one` value or one for each `word`, learned under a
            uniform prior; or a fixed number. The texts carry little information on it and the probabilities
            depend on it, so pass a number if it is roughly known (the thesis suggests 0.5 to 0.7).
        prior_mean: prior mean of θ, `unit` or `restart` (`vbss.Prior`).
        tau: shape and rate of the prior of σ².
        var_a: prior variance of the intercept.
        var_b: prior variance of the slope.
        covariance: of q(θ), `full` or as `printed` in the thesis (`vbss`).
        tol: mean absolute change of the probabilities in a sweep at which `vbss` has converged.
        max_sweeps: largest number of sweeps of `vbss`.
        link: link function of `bss`.
        draws: kept draws of `bss`.
        burn_in: discarded draws of `bss`.
        random_state: seed of the stochastic traces and of `bss`.

    Attributes:
        graph_: the `WordGraph`.
        terms_: n terms, the most frequent written form of each stem.
        stems_: n stems.
        known_: (n,) mask of known keywords.
        proba_: (n,) P(keyword | y), 1 for known keywords; NaN for `ss` and `textrank`.
        fdr_: (n,) estimated false discovery rate of the terms at least as probable, 0 for known keywords; NaN
            for `ss` and `textrank`.
        scores_: (n,) ranking scores of the terms: `proba_`, or θ.
        keywords_: terms selected at `gamma` (`ss`, `textrank`: the top third), the highest score first.
        fit_: the `VbssFit` or `GibbsFit`; absent for `ss` and `textrank`.
    """

    def __init__(
        self,
        method: str = "vbss",
        *,
        gamma: float = 0.1,
        language: str | None = "english",
        stop_words: Sequence[str] | None = None,
        tokenizer: Tokenizer | None = None,
        window: int = 2,
        min_count: int = 1,
        weights: Weights = "count",
        damping: float = DAMPING,
        alpha: Alpha = "one",
        prior_mean: PriorMean = "unit",
        tau: float = 0.1,
        var_a: float = 10.0,
        var_b: float = 10.0,
        covariance: Covariance = "full",
        tol: float = 1e-6,
        max_sweeps: int = 2000,
        link: Link = "logistic",
        draws: int = 5000,
        burn_in: int = 1000,
        random_state: int = 0,
    ) -> None:
        """Store the parameters; `fit` validates them."""
        self.method, self.gamma = method, gamma
        self.language, self.stop_words, self.tokenizer = language, stop_words, tokenizer
        self.window, self.min_count, self.weights = window, min_count, weights
        self.damping, self.alpha, self.prior_mean = damping, alpha, prior_mean
        self.tau, self.var_a, self.var_b = tau, var_a, var_b
        self.covariance, self.tol, self.max_sweeps = covariance, tol, max_sweeps
        self.link, self.draws, self.burn_in = link, draws, burn_in
        self.random_state = random_state

    def fit(self, texts: str | Sequence[str], known: Sequence[str] = ()) -> Self:
        """Extract keywords.

        Args:
            texts: one text or a collection.
            known: known keywords in any written form; every word of a phrase is a keyword. Required by all
                methods except `textrank`.

        Raises:
            DataError: the texts have fewer than two different words, no keyword is known, or a known keyword
                is in no text.
            ConfigError: a parameter is out of range.
        """
        self._check()
        words = Words(self.language, self.stop_words, self.tokenizer)
        self.graph_ = build_graph(
            [texts] if isinstance(texts, str) else texts,
            words=words,
            window=self.window,
            min_count=self.min_count,
            weights=self.weights,
        )
        self.stems_, self.terms_ = self.graph_.stems, self.graph_.forms
        self.known_ = self._mask([known] if isinstance(known, str) else known, words)
        self._score(self.graph_, self.known_)
        self.keywords_ = self.select(self.gamma)
        return self

    def _check(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}")
        if not 0 < self.damping < 1:
            raise ConfigError(f"damping must be between 0 and 1; got {self.damping}")
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma must be in [0, 1]; got {self.gamma}")

    def _mask(self, known: Sequence[str], words: Words) -> np.ndarray:
        """Mask (n,) of known keywords."""
        place = {stem: i for i, stem in enumerate(self.stems_)}
        mask = np.zeros(len(place), dtype=bool)
        for term in known:
            stems = [stem for stem in words.stems(words.split(term)) if stem]
            absent = [stem for stem in stems if stem not in place]
            if absent or not stems:
                often = "" if self.min_count == 1 else f" {self.min_count} times or more"
                raise DataError(f"known keyword {term!r}: no text has it{often}, or it is a stop word")
            mask[[place[stem] for stem in stems]] = True
        if not mask.any() and self.method != "textrank":
            raise DataError(f"method {self.method} needs at least one known keyword; textrank needs none")
        return mask

    def _score(self, graph: WordGraph, known: np.ndarray) -> None:
        n = len(known)
        self.proba_, self.fdr_ = np.full(n, np.nan), np.full(n, np.nan)
        if self.method == "textrank":
            self.scores_ = textrank(graph, damping=self.damping)
            return
        if self.method == "ss":
            self.scores_ = semi_supervised(graph, known, damping=self.damping)
            return
        self.fit_ = self._infer(graph, known)
        self.proba_ = self.scores_ = self.fit_.proba
        self.fdr_ = estimated_fdr(self.proba_, known)

    def _infer(self, graph: WordGraph, known: np.ndarray) -> VbssFit | GibbsFit:
        prior = Prior(self.tau, self.var_a, self.var_b, self.alpha, self.prior_mean)
        prior.check()
        Q, rng = graph.normalised(), np.random.default_rng(self.random_state)
        theta0 = prior.theta0(Q, known, damping=self.damping)
        if self.method == "vbss":
            spectrum = spectrum_of(Q, damping=self.damping, rng=rng)
            model = Vbss(spectrum, theta0, known, prior, covariance=self.covariance)
            return ascend(model, tol=self.tol, max_sweeps=self.max_sweeps)
        if len(known) > BSS_WORDS:
            raise ConfigError(f"bss takes at most {BSS_WORDS} words, there are {len(known)}; use vbss")
        return sample(
            DenseSpectrum(Q, damping=self.damping),
            theta0,
            known,
            prior,
            link=self.link,
            sweeps=self.draws,
            burn_in=self.burn_in,
            rng=rng,
        )

    def _order(self) -> np.ndarray:
        """Indices (n,) of the terms by decreasing score; ties by θ where available, then alphabetically.

        `vbss` and `bss` list known keywords first.
        """
        tie = self.fit_.mean if hasattr(self, "fit_") else self.scores_
        first = self.known_ if self.method in ("vbss", "bss") else np.zeros(len(self.known_), dtype=bool)
        return np.lexsort((-tie, -self.scores_, ~first))

    def select(self, gamma: float) -> list[str]:
        """Terms at an estimated false discovery rate of at most γ, the most probable first.

        `ss` and `textrank` have no such rate and return the top third at any γ.

        Raises:
            NotFittedError: `fit` has not been called.
            ConfigError: γ is not in [0, 1].
        """
        check_is_fitted(self, "scores_")
        order = self._order()
        if self.method in ("ss", "textrank"):
            return [self.terms_[i] for i in order[: max(1, round(TOP_SHARE * len(order)))]]
        chosen = select(self.proba_, self.known_, gamma=gamma)
        return [self.terms_[i] for i in order if chosen[i]]

    def table(self) -> pd.DataFrame:
        """All terms, the highest score first: columns `term`, `probability`, `fdr`.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_is_fitted(self, "scores_")
        order = self._order()
        return pd.DataFrame(
            {
                "term": [self.terms_[i] for i in order],
                "probability": self.proba_[order],
                "fdr": self.fdr_[order],
            }
        )

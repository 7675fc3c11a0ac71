"""Keyword extraction from texts as a scikit-learn estimator.

In: a document or a collection, and known keywords. Out: the other words ranked as keywords. Known keywords
are given: they are not counted, neither among the selected words nor in the false discovery rate.

    extractor = KeywordExtractor().fit(document, known=["hemorrhage"])
    extractor.ranked_             # new terms, the best first
    extractor.table()             # rank, term, probability, fdr
    extractor.select(gamma=0.2)   # new terms at an estimated false discovery rate of at most 0.2

A document (`str`) is ranked by `word_model`, with probabilities. The rate holds on documents like those that
the model was fitted to, abstracts and papers: within 0.054 on others of both collections, while a model of
one is off by up to 0.38 on the other (docs/reports.md). A collection (a sequence of texts) forms one
graph: counts are summed, and co-occurrence windows end at the end of a text. No labelled collection exists to
calibrate its probabilities on, and words have no position in it: terms are ranked by θ_i / √d_i, with θ of SS
and the degree d_i in the graph of likelihood ratios. SS makes this quotient alike between neighbours, while
θ_i itself grows with the frequency of a word.

Words are identified by their stems and shown in their most frequent written form.

Shapes: n words.
"""

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ich_mil.errors import ConfigError, DataError
from ich_mil.radiology_text.fdr import estimated_fdr, select
from ich_mil.radiology_text.graph import Tokenizer, Words, build_graph
from ich_mil.radiology_text.rank import semi_supervised
from ich_mil.radiology_text.thesis import published_vbss
from ich_mil.radiology_text.word_model import keyword_probability, word_features


class KeywordExtractor(BaseEstimator):
    """Semi-supervised keyword extraction.

    Parameters:
        preset: `thesis` follows the published program of VBSS (`thesis`), for the tables of the thesis: known
            words count in the rate, which says nothing on new words. None: the rules above.
        language: language of the Snowball stemmer; None: no stemming.
        stop_words: words to leave out; None: scikit-learn's list for English, none otherwise.
        tokenizer: function from a text to its words; None: `graph.tokenize`.
        min_count: words that occur less often are left out; in a paper, less than three times.

    Attributes:
        graph_: the `WordGraph`.
        terms_: n terms, the most frequent written form of each stem.
        known_: (n,) mask of known keywords.
        proba_: (n,) P(keyword), 1 for known keywords; NaN for a collection.
        fdr_: (n,) estimated false discovery rate of the new terms at least as probable, 0 for known keywords;
            NaN for a collection.
        scores_: (n,) ranking scores.
        ranked_: new terms, the best first.
    """

    def __init__(
        self,
        *,
        preset: Literal["thesis"] | None = None,
        language: str | None = "english",
        stop_words: Sequence[str] | None = None,
        tokenizer: Tokenizer | None = None,
        min_count: int = 1,
    ) -> None:
        """Store the parameters; `fit` validates them."""
        self.preset, self.min_count = preset, min_count
        self.language, self.stop_words, self.tokenizer = language, stop_words, tokenizer

    def fit(self, texts: str | Sequence[str], known: str | Sequence[str]) -> Self:
        """Rank the words of a document (`str`) or of a collection (a sequence of texts).

        Args:
            texts: the document, or the texts of the collection.
            known: known keywords in any written form; every word of a phrase is a keyword.

        Raises:
            DataError: the texts have fewer than two different words, no keyword is known, or a known keyword
                is in no text.
            ConfigError: a parameter is out of range.
        """
        if self.preset not in (None, "thesis"):
            raise ConfigError(f"preset must be None or thesis; got {self.preset!r}")
        words, document = Words(self.language, self.stop_words, self.tokenizer), isinstance(texts, str)
        self.graph_ = build_graph(
            [texts] if isinstance(texts, str) else texts,
            words=words,
            window=2 if self.preset else 1,
            min_count=self.min_count,
            weights="count" if self.preset or document else "likelihood",
        )
        self.terms_ = self.graph_.forms
        self.known_ = self._mask([known] if isinstance(known, str) else known, words)
        self.proba_, self.fdr_ = np.full((2, len(self.known_)), np.nan)
        if self.preset:
            self.scores_ = self.proba_ = published_vbss(self.graph_.normalised(), self.known_)
            self.fdr_ = estimated_fdr(self.proba_, self.known_, count_known=True)
        elif isinstance(texts, str):
            features = word_features(texts, self.graph_, self.known_, words)
            self.scores_ = self.proba_ = np.where(self.known_, 1.0, keyword_probability(features))
            self.fdr_ = estimated_fdr(self.proba_, self.known_)
        else:
            degrees = self.graph_.degrees
            theta = semi_supervised(self.graph_, self.known_)
            self.scores_ = theta / np.sqrt(np.where(degrees > 0, degrees, np.inf))
        self.ranked_ = [self.terms_[i] for i in self._order() if not self.known_[i]]
        return self

    def _mask(self, known: Sequence[str], words: Words) -> np.ndarray:
        """Mask (n,) of known keywords."""
        index = {stem: i for i, stem in enumerate(self.graph_.stems)}
        mask = np.zeros(len(index), dtype=bool)
        for term in known:
            stems = [stem for stem in words.stems(words.split(term)) if stem]
            absent = [stem for stem in stems if stem not in index]
            if absent or not stems:
                often = "" if self.min_count == 1 else f" {self.min_count} times or more"
                raise DataError(f"known keyword {term!r}: no text has it{often}, or it is a stop word")
            mask[[index[stem] for stem in stems]] = True
        if not mask.any():
            raise DataError("keyword extraction needs at least one known keyword")
        return mask

    def _order(self) -> np.ndarray:
        """Indices (n,) of the terms: known keywords, then by decreasing score, ties alphabetically."""
        return np.lexsort((-self.scores_, ~self.known_))

    def select(self, gamma: float) -> list[str]:
        """New terms at an estimated false discovery rate of at most γ, the most probable first.

        Raises:
            NotFittedError: `fit` has not been called.
            ConfigError: γ is not in [0, 1].
            DataError: a collection, for which no rate is estimated.
        """
        check_is_fitted(self, "scores_")
        if np.isnan(self.fdr_).any():
            raise DataError(
                "no false discovery rate is estimated for a collection; take the first of ranked_"
            )
        chosen = select(self.fdr_, gamma=gamma)
        return [self.terms_[i] for i in self._order() if chosen[i] and not self.known_[i]]

    def table(self) -> pd.DataFrame:
        """All terms: columns `rank` (0 for known keywords), `term`, `probability`, `fdr`.

        Probability and fdr are NaN for a collection.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_is_fitted(self, "scores_")
        order = self._order()
        return pd.DataFrame(
            {
                "rank": np.maximum(np.arange(len(order)) - self.known_.sum() + 1, 0),
                "term": [self.terms_[i] for i in order],
                "probability": self.proba_[order],
                "fdr": self.fdr_[order],
            }
        )

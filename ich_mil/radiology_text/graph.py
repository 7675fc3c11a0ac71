"""Word graph of a text collection: weighted co-occurrence of word stems.

In: texts. Out: a `WordGraph`. Its nodes are the sufficiently frequent stems. The edge weight A_ij counts the
co-occurrences of words i and j at most `window` places apart in one text, after removal of stop words. A word
next to itself adds no edge. `weights="likelihood"` replaces each count O with total N by Dunning's
log-likelihood ratio against independence, for pairs that occur more often than by chance:

    E_ij = d_i d_j / N,  d = A 1;    A_ij <- 2 (O_ij log(O_ij / E_ij) - (O_ij - E_ij)) if O_ij > E_ij, else 0

(the Poisson form; T. Dunning, Accurate methods for the statistics of surprise and coincidence, 1993). With
counts, frequent words are close to every word; with the ratio, only to words with which they form terms.

The thesis (Y. Hu, chapter 1, section 1.4.1) keeps nouns, verbs and adjectives selected by a part-of-speech
tagger. Here a list of stop words replaces the tagger, so that no model is downloaded.

Shapes: n words, T tokens.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

import numpy as np
import snowballstemmer
from scipy import sparse
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from ich_mil.errors import ConfigError, DataError

Weights = Literal["count", "likelihood"]
Tokenizer = Callable[[str], list[str]]

WORD = re.compile(r"[^\W_]+")
"""A run of letters and digits of any script."""

LETTER = re.compile(r"[^\W\d_]")

SHORTEST = 2
"""Minimum length of a word, characters; single letters are initials, units or formula symbols."""

STEMMERS = {"english": "porter"}
"""Snowball algorithm by language, where the names differ; the thesis uses Porter's algorithm for English."""


def tokenize(text: str) -> list[str]:
    """Split a text into lower-case words: runs of letters and digits with at least one letter."""
    return [word for word in WORD.findall(text.lower()) if len(word) >= SHORTEST and LETTER.search(word)]


@cache
def _stemmer(algorithm: str) -> Callable[[str], str]:
    """Stem of a word, kept for the next text: the stemmer is plain Python."""
    return lru_cache(maxsize=2**17)(snowballstemmer.stemmer(algorithm).stemWord)


@dataclass(frozen=True)
class Words:
    """Tokenisation, stop words and stemming of texts.

    Attributes:
        language: a language of the Snowball stemmer; None: no stemming, and no default stop words.
        stop_words: words to leave out; None: scikit-learn's English list for English, none otherwise.
        tokenizer: function from a text to its words; None: `tokenize`.
    """

    language: str | None = "english"
    stop_words: Sequence[str] | None = None
    tokenizer: Tokenizer | None = None

    def split(self, text: str) -> list[str]:
        """Words of a text, before stemming and removal of stop words."""
        return (self.tokenizer or tokenize)(text)

    def stems(self, words: Sequence[str]) -> list[str]:
        """Stem of each word, '' for a stop word.

        Raises:
            ConfigError: there is no stemmer for the language.
        """
        stopped: frozenset[str] = frozenset(self.stop_words or ())
        if self.stop_words is None and self.language == "english":
            stopped = ENGLISH_STOP_WORDS
        if self.language is None:
            return ["" if word in stopped else word for word in words]
        algorithm = STEMMERS.get(self.language, self.language)
        if algorithm not in snowballstemmer.algorithms():
            allowed = ", ".join(sorted({"english", *snowballstemmer.algorithms()}))
            raise ConfigError(f"language must be None or one of {allowed}; got {self.language!r}")
        stem = _stemmer(algorithm)
        return ["" if word in stopped else stem(word) for word in words]


@dataclass(frozen=True)
class WordGraph:
    """Stems of a collection and their co-occurrence.

    Attributes:
        stems: n stems in alphabetical order.
        forms: most frequent written form of each stem, of several the first of the alphabet.
        counts: (n,) occurrences.
        adjacency: (n, n) symmetric weights with zero diagonal.
    """

    stems: list[str]
    forms: list[str]
    counts: np.ndarray
    adjacency: sparse.csr_array

    @property
    def degrees(self) -> np.ndarray:
        """Row sums (n,) of the weights; 0 for a word without neighbours."""
        return np.asarray(self.adjacency.sum(axis=1), dtype=float).ravel()

    def normalised(self) -> sparse.csr_array:
        """Q = D^-1/2 A D^-1/2 (n, n), eigenvalues in [-1, 1]; rows of words without neighbours are zero."""
        degrees = self.degrees
        root = np.where(degrees > 0, degrees, 1.0) ** -0.5
        edges = self.adjacency.tocoo()
        scaled = root[edges.row] * edges.data * root[edges.col]
        return sparse.csr_array(sparse.coo_array((scaled, (edges.row, edges.col)), shape=edges.shape))


def _log_likelihood(counts: sparse.csr_array) -> sparse.csr_array:
    """Dunning's ratio for each stored count above its expectation."""
    pairs = counts.tocoo()
    degrees = np.asarray(counts.sum(axis=1), dtype=float).ravel()
    expected = degrees[pairs.row] * degrees[pairs.col] / degrees.sum()
    ratio = 2 * (pairs.data * np.log(pairs.data / expected) - (pairs.data - expected))
    above = pairs.data > expected
    kept = (ratio[above], (pairs.row[above], pairs.col[above]))
    return sparse.csr_array(sparse.coo_array(kept, shape=counts.shape))


def build_graph(
    texts: Sequence[str],
    *,
    words: Words | None = None,
    window: int = 2,
    min_count: int = 1,
    weights: Weights = "count",
) -> WordGraph:
    """Build the word graph of a collection; co-occurrence windows do not cross the end of a text.

    Args:
        texts: one or more texts.
        words: tokenisation, stop words and stemming.
        window: largest distance in places between words that count as neighbours.
        min_count: minimum number of occurrences in the collection; rarer words are removed before windows are
            applied.
        weights: `count` or `likelihood`.

    Raises:
        DataError: the texts have fewer than two different words; a text is no `str`.
        ConfigError: a parameter is out of range.
    """
    if window < 1 or min_count < 1 or weights not in ("count", "likelihood"):
        raise ConfigError(
            "window and min_count must be at least 1 and weights count or likelihood; "
            f"got {window}, {min_count} and {weights!r}"
        )
    words = words or Words()
    if other := [i for i, text in enumerate(texts) if not isinstance(text, str)]:
        raise DataError(f"text {other[0]} is no text ({texts[other[0]]!r}); leave out empty cells")
    split = [words.split(text) for text in texts]
    index: dict[str, int] = {}
    flat = np.array([index.setdefault(word, len(index)) for text in split for word in text], dtype=np.int64)
    text_of = np.repeat(np.arange(len(split)), [len(text) for text in split])
    written = list(index)
    stem_of = words.stems(written)
    names = sorted(set(stem_of) - {""})
    number = {stem: i for i, stem in enumerate(names)}
    of_form = np.array([number.get(stem, -1) for stem in stem_of], dtype=np.int64)

    form_counts = np.bincount(flat, minlength=len(written))
    stem_counts = np.bincount(of_form[of_form >= 0], form_counts[of_form >= 0], len(names))
    frequent = stem_counts >= min_count
    if frequent.sum() < 2:
        needs = "" if min_count == 1 else f" that occur {min_count} times"
        raise DataError(
            f"a word graph needs two different words{needs} beside stop words; {len(split)} texts have "
            f"{int(frequent.sum())}"
        )
    renumbered = np.append(np.where(frequent, np.cumsum(frequent) - 1, -1), -1)  # -1 stays -1
    of_form = renumbered[of_form]
    kept = [name for name, often in zip(names, frequent, strict=True) if often]
    form, most = [""] * len(kept), np.zeros(len(kept))
    for i, (stem, count) in enumerate(zip(of_form, form_counts, strict=True)):
        if stem >= 0 and (count > most[stem] or (count == most[stem] and written[i] < form[stem])):
            form[stem], most[stem] = written[i], count

    tokens = of_form[flat]
    text_of, tokens = text_of[tokens >= 0], tokens[tokens >= 0]  # (T,)
    adjacency = _co_occurrence(tokens, text_of, len(kept), window)
    if weights == "likelihood":
        adjacency = _log_likelihood(adjacency)
    return WordGraph(kept, form, stem_counts[frequent].astype(int), adjacency)


def _co_occurrence(tokens: np.ndarray, text_of: np.ndarray, n: int, window: int) -> sparse.csr_array:
    """Counts (n, n) of word pairs at most `window` places apart in one text."""
    total = sparse.csr_array((n, n))
    for gap in range(1, window + 1):
        left, right = tokens[:-gap], tokens[gap:]
        near = (text_of[:-gap] == text_of[gap:]) & (left != right)
        ones = np.ones(near.sum())
        total = total + sparse.csr_array(sparse.coo_array((ones, (left[near], right[near])), shape=(n, n)))
    return sparse.csr_array(total + total.T)

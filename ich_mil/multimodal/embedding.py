"""Features of sentences: TF-IDF of words and pairs of words, reduced by truncated SVD.

In: sentences. Out: (N, K) features. This is latent semantic analysis (Deerwester et al. 1990) as in
scikit-learn; it is learned from the training sentences alone and needs no network and no download.

A word of fewer than `LEAST_SENTENCES` training sentences is not used. This keeps most names out of a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from ich_mil.errors import DataError

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

LEAST_SENTENCES = 3


@dataclass(frozen=True)
class SentenceEmbedding:
    """A fitted embedding.

    Attributes:
        words: V words and pairs of words, sorted.
        idf: (V,) inverse document frequencies.
        axes: (K, V) right singular vectors.
    """

    words: tuple[str, ...]
    idf: np.ndarray
    axes: np.ndarray

    @classmethod
    def fit(cls, sentences: Sequence[str], *, seed: int, features: int = 10) -> Self:
        """Learn the embedding, with fewer than `features` features where there are fewer words.

        Raises:
            DataError: fewer than two words are in `LEAST_SENTENCES` sentences.
        """
        from sklearn.decomposition import TruncatedSVD  # slow to import, and heads of slices do without

        vectorizer = _vectorizer(min_df=LEAST_SENTENCES)
        try:
            table = vectorizer.fit_transform(sentences)
        except ValueError:  # no word is left
            table = np.empty((0, 0))
        if table.shape[1] < 2:
            raise DataError(
                f"the {len(sentences)} sentences to learn from have no two words that occur in "
                f"{LEAST_SENTENCES} of them; give more texts, or leave them out"
            )
        words = tuple(map(str, vectorizer.get_feature_names_out()))
        size = min(features, len(words) - 1, max(1, len(sentences) - 1))
        axes = TruncatedSVD(size, random_state=seed).fit(table).components_
        return cls(words, vectorizer.idf_.astype(np.float64), np.ascontiguousarray(axes, np.float64))

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """Features (N, K)."""
        if not sentences:
            return np.empty((0, len(self.axes)))
        vectorizer = _vectorizer(vocabulary={word: column for column, word in enumerate(self.words)})
        vectorizer.idf_ = self.idf
        return np.asarray(vectorizer.transform(sentences) @ self.axes.T)


def _vectorizer(**settings: object) -> "TfidfVectorizer":
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, strip_accents="unicode", **settings)

"""Documents and metrics of `research.benchmarks.keywords`.

Inspec and SemEval-2010 (texts and key phrases) are prepared as in section 1.4 of the thesis, except for its
part-of-speech tagger: stop words removed, Porter stems, words with less than three occurrences removed from
the long texts, documents with at least 11 keywords among their words, of which some are known, drawn with a
seed. Of the sorted files those of even number are there to build on (`part=0`), the others to measure.

Shapes: n words of a document.
"""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yake

from ich_mil.errors import DataError
from ich_mil.radiology_text.graph import Words, build_graph
from ich_mil.radiology_text.word_model import word_features
from research.benchmarks.public_features import DATA

TEXTS = DATA / "text"
SEED = 0
GAMMAS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
KNOWN, FEWEST = 5, 11
SETS = {"Inspec": 1, "SemEval2010": 3}
"""Minimum number of occurrences of a word, by data set."""

PUBLISHED = {
    "Inspec": [(0.971, 0.273), (0.886, 0.34), (0.774, 0.421), (0.657, 0.527), (0.548, 0.666), (0.447, 0.828)],
    "SemEval2010": [(1, 0.24), (0.979, 0.28), (0.939, 0.315), (0.908, 0.351), (0.835, 0.401), (0.749, 0.463)],
}
"""Published precision and recall of VBSS at `GAMMAS`: tables 1.2 (appendix) and 1.5 of the thesis."""


@dataclass(frozen=True)
class Document:
    """A document: its text, its n stems, masks (n,) of keywords and of known keywords, features (n, 6)."""

    text: str
    stems: list[str]
    truth: np.ndarray
    known: np.ndarray
    features: np.ndarray

    @property
    def new(self) -> np.ndarray:
        """Mask (n,) of the words that are not known."""
        return ~self.known


def load(name: str, *, part: int, every: int = 1, known: int = KNOWN, folder: Path = TEXTS) -> list[Document]:
    """Load the documents of one part of a LIAAD archive that have at least `FEWEST` keywords."""
    rng, words, documents = np.random.default_rng(SEED), Words(), []
    with zipfile.ZipFile(folder / f"{name}.zip") as archive:
        members = sorted(
            member for member in archive.namelist() if member.endswith(".txt") and "docsutf8" in member
        )
        for member in members[part::2][::every]:
            text = archive.read(member).decode("utf-8", "replace")
            keys = archive.read(f"{name}/keys/{Path(member).stem}.key").decode("utf-8", "replace")
            try:
                graph = build_graph([text], words=words, window=1, min_count=SETS[name])
            except DataError:
                continue
            stems = set(words.stems(words.split(keys)))
            truth = np.array([stem in stems for stem in graph.stems])
            if truth.sum() >= FEWEST:
                given = np.zeros(len(truth), dtype=bool)
                given[rng.choice(np.flatnonzero(truth), known, replace=False)] = True
                features = word_features(text, graph, given, words)
                documents.append(Document(text, graph.stems, truth, given, features))
    return documents


def yake_scores(document: Document) -> np.ndarray:
    """YAKE score (n,) of each word, higher is better: the best score of its inflected forms."""
    words, scores = Words(), np.full(len(document.truth), -np.inf)
    place = {stem: i for i, stem in enumerate(document.stems)}
    found = yake.KeywordExtractor(lan="en", n=1, top=100_000, dedupLim=1.0).extract_keywords(document.text)
    for term, score in found:
        for stem in words.stems(words.split(term)):
            if stem in place:
                scores[place[stem]] = max(scores[place[stem]], -score)
    return scores


def measures(
    chosen: Sequence[np.ndarray], documents: Sequence[Document], *, new: bool
) -> tuple[float, float, float]:
    """Precision, recall and F, pooled over all documents; with `new` known words do not count."""
    hit = total = wanted = 0
    for mask, document in zip(chosen, documents, strict=True):
        counted = document.new if new else np.ones(len(mask), dtype=bool)
        hit += int((mask & document.truth & counted).sum())
        total += int((mask & counted).sum())
        wanted += int((document.truth & counted).sum())
    return hit / max(total, 1), hit / wanted, 2 * hit / (total + wanted)


def as_many_new(score: np.ndarray, document: Document, number: int) -> np.ndarray:
    """Mask (n,) of the `number` new words of the highest score."""
    order = np.lexsort((-score, document.known))
    return np.isin(np.arange(len(score)), order[:number])

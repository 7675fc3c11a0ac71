"""Documents and metrics of `research.benchmarks.keywords`.

Inspec and SemEval-2010 (texts and key phrases) are prepared as in section 1.4 of the thesis, except for its
part-of-speech tagger: stop words removed, Porter stems, words with less than three occurrences removed from
the long texts, documents with at least 11 keywords among their words, of which five are known, drawn with a
seed. PubMed comes with the authors' stems and without keys.

Shapes: n words of a document.
"""

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yake

from ich_mil.errors import DataError
from ich_mil.radiology_text.ascent import VbssFit, ascend
from ich_mil.radiology_text.fdr import select
from ich_mil.radiology_text.graph import WordGraph, Words, build_graph
from ich_mil.radiology_text.spectrum import spectrum_of
from ich_mil.radiology_text.vbss import Covariance, Prior, Vbss
from research.benchmarks.public_features import DATA

TEXTS = DATA / "text"
SEED = 0
STATED = 0.7
"""Value of α where it is fixed: the upper end of the range suggested in the thesis."""
GAMMAS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
KNOWN, FEWEST = 5, 11

PUBLISHED = {
    "Inspec": [(0.971, 0.273), (0.886, 0.34), (0.774, 0.421), (0.657, 0.527), (0.548, 0.666), (0.447, 0.828)],
    "SemEval2010": [(1, 0.24), (0.979, 0.28), (0.939, 0.315), (0.908, 0.351), (0.835, 0.401), (0.749, 0.463)],
}
"""Published precision and recall of VBSS at `GAMMAS`: tables 1.2 (appendix) and 1.5 of the thesis."""


@dataclass(frozen=True)
class Document:
    """A document: its text, the graph of its n words, masks (n,) of keywords and of known keywords."""

    text: str
    graph: WordGraph
    truth: np.ndarray
    known: np.ndarray


def load(folder: Path, name: str, *, min_count: int, seed: int) -> list[Document]:
    """Load the documents of a LIAAD archive that have at least `FEWEST` keywords."""
    rng, words, documents = np.random.default_rng(seed), Words(), []
    with zipfile.ZipFile(folder / f"{name}.zip") as archive:
        members = [
            member for member in archive.namelist() if member.endswith(".txt") and "docsutf8" in member
        ]
        for member in sorted(members):
            text = archive.read(member).decode("utf-8", "replace")
            keys = archive.read(f"{name}/keys/{Path(member).stem}.key").decode("utf-8", "replace")
            try:
                graph = build_graph([text], words=words, min_count=min_count)
            except DataError:
                continue
            stems = set(words.stems(words.split(keys)))
            truth = np.array([stem in stems for stem in graph.stems])
            if truth.sum() >= FEWEST:
                known = np.zeros(len(truth), dtype=bool)
                known[rng.choice(np.flatnonzero(truth), KNOWN, replace=False)] = True
                documents.append(Document(text, graph, truth, known))
    return documents


def load_pubmed(folder: Path, *, number: int, seed: int) -> list[WordGraph]:
    """Load the graphs of `number` PubMed documents, stemmed and without stop words."""
    with zipfile.ZipFile(folder / "PubMed.zip") as archive:
        members = sorted(m for m in archive.namelist() if re.fullmatch(r"docs/PubMed.*\.txt", m))
        chosen = np.random.default_rng(seed).choice(len(members), number, replace=False)
        texts = [archive.read(members[i]).decode("utf-8", "replace") for i in sorted(chosen)]
    return [build_graph([text], words=Words(language=None), min_count=3) for text in texts]


def vbss(
    graph: WordGraph, known: np.ndarray, prior: Prior | None = None, covariance: Covariance = "full"
) -> VbssFit:
    """Fit VBSS to a document."""
    prior, Q = prior or Prior(), graph.normalised()
    model = Vbss(spectrum_of(Q), prior.theta0(Q, known), known, prior, covariance=covariance)
    return ascend(model, max_sweeps=500 if covariance == "printed" else 2000)


def yake_scores(document: Document) -> np.ndarray:
    """YAKE score (n,) of each word, higher is better: the best score of its inflected forms."""
    words, scores = Words(), np.full(len(document.truth), -np.inf)
    place = {stem: i for i, stem in enumerate(document.graph.stems)}
    found = yake.KeywordExtractor(lan="en", n=1, top=100_000, dedupLim=1.0).extract_keywords(document.text)
    for term, score in found:
        for stem in words.stems(words.split(term)):
            if stem in place:
                scores[place[stem]] = max(scores[place[stem]], -score)
    return scores


def measures(chosen: Sequence[np.ndarray], documents: Sequence[Document]) -> tuple[float, float, float]:
    """Precision, recall and F, pooled over all documents."""
    hit = sum(int((c & d.truth).sum()) for c, d in zip(chosen, documents, strict=True))
    total = sum(int(c.sum()) for c in chosen)
    wanted = sum(int(d.truth.sum()) for d in documents)
    precision, recall = hit / max(total, 1), hit / wanted
    return precision, recall, 2 * hit / (total + wanted)


def by_share(
    scores: Sequence[np.ndarray], documents: Sequence[Document], share: float, *, force: bool
) -> list[np.ndarray]:
    """Mask of the top share of the words of each document; with `force` known words are taken first."""
    masks = []
    for s, d in zip(scores, documents, strict=True):
        order = np.lexsort((-s, ~d.known)) if force else np.argsort(-s, kind="stable")
        masks.append(np.isin(np.arange(len(s)), order[: round(share * len(s))]))
    return masks


def share_of(chosen: Sequence[np.ndarray]) -> float:
    """Share of chosen words among all words."""
    return sum(int(c.sum()) for c in chosen) / sum(len(c) for c in chosen)


def at_level(
    proba: Sequence[np.ndarray], documents: Sequence[Document], gamma: float, *, count_known: bool
) -> list[np.ndarray]:
    """Mask of the words selected in each document at level γ."""
    pairs = zip(proba, documents, strict=True)
    return [select(p, d.known, gamma=gamma, count_known=count_known) for p, d in pairs]

"""Probability that a word of a document is a keyword, from six features and a stored logistic regression.

In: one document, its word graph and a mask of known keywords. Out: P(keyword) of every word. The features of
word i, with θ_i for a score of `rank`, c_i for its occurrences, t_i for its first position, T
for the number of words in the text with stop words:

    ss         ln (θ_i / mean θ + 0.001), SS from the known words
    textrank   ln (θ_i + 0.001)
    position   ln ((t_i + 1) / T)
    words      ln n
    phrase     neighbours in the text that are other words of the graph, no stop word between, divided by c_i
    letters    number of letters of its most frequent form

`word_model.csv` holds the coefficients, fitted to every third document of one half of Inspec and of
SemEval-2010, abstracts and papers in English, with five known words each. The probabilities are calibrated
for such documents only. The command is

    python -m research.benchmarks.keywords --parts fit --every 3

Features that were tried and carried nothing beside these: number of occurrences (TextRank holds it), the last
occurrence, and E θ of VBSS, whose ranks correlate with those of SS by 0.99.

Shapes: n words, T words of the text.
"""

import csv
from functools import cache
from importlib.resources import files

import numpy as np
from scipy.special import expit

from ich_mil.radiology_text.graph import WordGraph, Words
from ich_mil.radiology_text.rank import semi_supervised, textrank

FEATURES = ("ss", "textrank", "position", "words", "phrase", "letters")
COEFFICIENTS = "word_model.csv"


def word_features(text: str, graph: WordGraph, known: np.ndarray, words: Words) -> np.ndarray:
    """Features (n, 6) of the words of a graph, in the order of `FEATURES`.

    Args:
        text: the document.
        graph: its word graph with `window=1`.
        known: (n,) mask of known keywords.
        words: the tokenisation of the graph.
    """
    n, split = len(known), words.split(text)
    number = {stem: i for i, stem in enumerate(graph.stems)}
    forms, of_form = np.unique(split, return_inverse=True)
    node = np.array([number.get(stem, -1) for stem in words.stems(forms.tolist())])[of_form]  # (T,)
    nodes, positions = np.unique(node, return_index=True)
    first = np.empty(n)
    first[nodes[nodes >= 0]] = positions[nodes >= 0]
    left, right = node[:-1], node[1:]
    pair = (left >= 0) & (right >= 0) & (left != right)
    neighbours = np.bincount(np.concatenate([left[pair], right[pair]]), minlength=n)
    ss = semi_supervised(graph, known)
    return np.column_stack(
        [
            np.log(ss / ss.mean() + 1e-3),
            np.log(textrank(graph) + 1e-3),
            np.log((first + 1) / len(split)),
            np.full(n, np.log(n)),
            neighbours / graph.counts,
            [len(form) for form in graph.forms],
        ]
    )


@cache
def coefficients() -> tuple[float, np.ndarray]:
    """Return the intercept and the coefficients (6,) of `word_model.csv`."""
    text = (files("ich_mil.radiology_text") / COEFFICIENTS).read_text()
    value = {row["feature"]: float(row["coefficient"]) for row in csv.DictReader(text.splitlines())}
    return value["intercept"], np.array([value[name] for name in FEATURES])


def keyword_probability(features: np.ndarray) -> np.ndarray:
    """P(keyword) (n,) of words with features (n, 6) that are not known."""
    intercept, slopes = coefficients()
    return expit(intercept + features @ slopes)

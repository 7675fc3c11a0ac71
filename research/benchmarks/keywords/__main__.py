"""Keyword extraction: the thesis's tables, the word model, and head CT reports.

    python -m research.benchmarks.keywords [--parts thesis,new,yake,headct] [--every 1] [--write]
    python -m research.benchmarks.keywords --parts fit --every 3    # writes word_model.csv

`fit` uses half of the documents of each set, `new` and `yake` the other half. All methods select as many new
words of a document as the word model at γ.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ich_mil.radiology_text import word_model
from ich_mil.radiology_text.fdr import estimated_fdr, select
from ich_mil.radiology_text.graph import build_graph
from ich_mil.radiology_text.keywords import KeywordExtractor
from ich_mil.radiology_text.thesis import published_vbss
from research.benchmarks.keywords.documents import (
    GAMMAS,
    PUBLISHED,
    SETS,
    TEXTS,
    Document,
    as_many_new,
    load,
    measures,
    yake_scores,
)
from research.benchmarks.record import command_line, record, table

Weights = tuple[float, np.ndarray]
Sets = Sequence[str]


def rounded(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.3f}" for value in values)


def thesis(sets: Sets, every: int) -> None:
    """Tables 1.2 (appendix) and 1.5 of the thesis by the preset `thesis`."""
    for name in sets:
        documents = [*load(name, part=0, every=every), *load(name, part=1, every=every)]
        fdr = []
        for d in documents:
            Q = build_graph([d.text], window=2, min_count=SETS[name]).normalised()
            fdr.append(estimated_fdr(published_vbss(Q, d.known), d.known, count_known=True))
        rows = []
        for gamma, published in zip(GAMMAS, PUBLISHED[name], strict=True):
            chosen = [select(rate, gamma=gamma) for rate in fdr]
            all_words = measures(chosen, documents, new=False)
            true = 1 - measures(chosen, documents, new=True)[0]
            gap = np.abs(np.subtract(all_words[:2], published)).max()
            rows.append([gamma, rounded(published), rounded(all_words[:2]), f"{gap:.3f}", f"{true:.3f}"])
        head = ["γ", "published", "preset", "largest difference", "true rate of new words"]
        text = f"{len(documents)} documents. Precision / recall, known words counted.\n\n{table(head, rows)}"
        record(f"Tables of the thesis, {name}", text)


def fitted(documents: Sequence[Document]) -> Weights:
    """Intercept and coefficients (6,) of the logistic regression on the new words of documents."""
    x = np.concatenate([d.features[d.new] for d in documents])
    y = np.concatenate([d.truth[d.new] for d in documents])
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, y)
    slopes = model[1].coef_[0] / model[0].scale_
    return float(model[1].intercept_[0] - slopes @ model[0].mean_), slopes


def fit(sets: Sets, every: int) -> None:
    """Fit the word model to the first half of both sets."""
    intercept, slopes = fitted([d for name in sets for d in load(name, part=0, every=every)])
    path = Path(word_model.__file__).with_name(word_model.COEFFICIENTS)
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["feature", "coefficient"])
        for name, value in zip(("intercept", *word_model.FEATURES), (intercept, *slopes), strict=True):
            rows.writerow([name, f"{value:.4f}"])


def new(sets: Sets, every: int) -> None:
    """New keywords of documents that were used for nothing: F beside baselines, estimated and true rate."""
    for name in sets:
        other = next(key for key in SETS if key != name)
        across = fitted(load(other, part=0, every=every))
        documents = load(name, part=1, every=every)
        baselines = {
            label: [d.features[:, i] for d in documents] for i, label in enumerate(("SS", "TextRank"))
        }
        counted = {"5 known": documents} | {
            f"{known} known": load(name, part=1, every=every, known=known) for known in (3, 7)
        }
        rates = []
        for gamma in GAMMAS[1:]:
            by_model = [_told(some, word_model.coefficients(), gamma) for some in counted.values()]
            rates.append([gamma, *by_model, _told(documents, across, gamma)])
        text = f"{len(documents)} documents. Precision / recall / F of new words.\n\n"
        text += _beside(documents, baselines)
        head = ["γ", *counted, f"model of {other} alone, 5 known"]
        text += f"\n\nWords: estimated / true false discovery rate of new words.\n\n{table(head, rates)}"
        record(f"New keywords of {name}", text)


def yake(sets: Sets, every: int) -> None:
    """New keywords beside YAKE, which takes two seconds for a paper."""
    for name in sets:
        documents = load(name, part=1, every=every)
        text = _beside(documents, {"YAKE": [yake_scores(d) for d in documents]})
        record(f"New keywords of {name} beside YAKE", f"{len(documents)} documents.\n\n{text}")


def _beside(documents: Sequence[Document], baselines: dict[str, list[np.ndarray]]) -> str:
    """Precision, recall and F of the word model at γ, and of as many new words by each baseline."""
    rows = []
    rates = _rates(documents, word_model.coefficients())
    for gamma in GAMMAS[1:]:
        chosen = [select(fdr, gamma=gamma) & d.new for fdr, d in zip(rates, documents, strict=True)]
        sizes = [int(mask.sum()) for mask in chosen]
        row: list[object] = [gamma, sum(sizes), rounded(measures(chosen, documents, new=True))]
        for scores in baselines.values():
            triples = zip(scores, documents, sizes, strict=True)
            row.append(rounded(measures([as_many_new(*each) for each in triples], documents, new=True)))
        rows.append(row)
    return table(["γ", "new words", "word model", *baselines], rows)


def _rates(documents: Sequence[Document], weights: Weights) -> list[np.ndarray]:
    """Estimated false discovery rate (n,) of the words of each document."""
    return [estimated_fdr(_proba(d, weights), d.known) for d in documents]


def _proba(document: Document, weights: Weights) -> np.ndarray:
    return 1 / (1 + np.exp(-(weights[0] + document.features @ weights[1])))


def _told(documents: Sequence[Document], weights: Weights, gamma: float) -> str:
    rates = _rates(documents, weights)
    chosen = [select(fdr, gamma=gamma) & d.new for fdr, d in zip(rates, documents, strict=True)]
    pairs = list(zip(chosen, documents, strict=True))
    estimated = np.concatenate([1 - _proba(d, weights)[mask] for mask, d in pairs])
    true = np.concatenate([~d.truth[mask] for mask, d in pairs])
    return f"{len(true)}: {estimated.mean():.3f} / {true.mean():.3f}" if len(true) else "0"


def headct(sets: Sets, every: int) -> None:
    """The first new terms of head CT sentences from the single known word `hemorrhage`."""
    with (TEXTS / "headct_sentences.csv").open(newline="") as file:
        sentences = [row["sentence"] for row in csv.DictReader(file)]
    began = process_time()
    first = KeywordExtractor(min_count=3).fit(sentences, known="hemorrhage").ranked_[:20]
    text = (
        f"{len(sentences)} sentences, {process_time() - began:.1f} s. First 20 new terms: {', '.join(first)}."
    )
    record("Head CT reports: terms from one word", text)


PARTS = {"thesis": thesis, "new": new, "yake": yake, "headct": headct}

if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated; also fit")
    parser.add_argument("--sets", default=",".join(SETS), help="comma-separated")
    parser.add_argument("--every", type=int, default=1, help="take every n-th document of a set")
    arguments = parser.parse_args()
    for chosen_part in arguments.parts.split(","):
        {**PARTS, "fit": fit}[chosen_part](arguments.sets.split(","), arguments.every)

"""Keyword extraction: accuracy on two public sets, and head CT reports.

    python -m research.benchmarks.keywords [--parts sets,headct] [--every 1] [--write]

As in the thesis, methods without probabilities select the same share of words as VBSS over all documents, and
TextRank and YAKE receive the known words.
"""

import csv
from collections.abc import Sequence
from time import process_time

import numpy as np

from ich_mil.radiology_text.keywords import KeywordExtractor
from ich_mil.radiology_text.rank import semi_supervised, textrank
from ich_mil.radiology_text.vbss import Prior
from research.benchmarks.keywords import documents as texts
from research.benchmarks.keywords.documents import (
    GAMMAS,
    KNOWN,
    SEED,
    STATED,
    TEXTS,
    Document,
    at_level,
    measures,
    vbss,
)
from research.benchmarks.record import command_line, record, table

SETS = {"Inspec": 1, "SemEval2010": 3}
"""Minimum number of occurrences of a word, by data set."""


def rounded(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.3f}" for value in values)


def sets(every: int) -> None:
    """Reproduce tables 1.2 and 1.5 of the thesis, and report the sizes of the PubMed graphs."""
    for name, min_count in SETS.items():
        documents = texts.load(TEXTS, name, min_count=min_count, seed=SEED)[::every]
        began = process_time()
        fits = {
            "α learned": [vbss(d.graph, d.known) for d in documents],
            f"α = {STATED}": [vbss(d.graph, d.known, Prior(alpha=STATED)) for d in documents],
        }
        taken = (process_time() - began) / 2
        as_printed = [vbss(d.graph, d.known, Prior(prior_mean="restart"), "printed") for d in documents]
        baselines = _baselines(documents)
        words = [len(d.truth) for d in documents]
        keys = [int(d.truth.sum()) for d in documents]
        text = (
            f"{len(documents)} documents, {np.mean(words):.1f} words and {np.mean(keys):.1f} keywords on "
            f"average, {KNOWN} known (seed {SEED}). VBSS took {taken:.1f} s of processor time. "
            "Precision / recall / F.\n\n"
        )
        rows = []
        for gamma, (precision, recall) in zip(GAMMAS, texts.PUBLISHED[name], strict=True):
            thesis = precision, recall, 2 * precision * recall / (precision + recall)
            ours = _at_published(documents, [f.mean for f in fits["α learned"]], precision, recall)
            printed = at_level([f.link for f in as_printed], documents, gamma, count_known=True)
            rows.append([gamma, *(rounded(part) for part in (thesis, ours, measures(printed, documents)))])
        head = ["γ", "thesis", "as many words by our ranking, known first", "text as printed"]
        text += table(head, rows) + "\n\n"
        for label, fitted in fits.items():
            for count_known in (False, True):
                levels = {
                    gamma: at_level([f.proba for f in fitted], documents, gamma, count_known=count_known)
                    for gamma in GAMMAS
                }
                rule = "known words count in the rate" if count_known else "known words never count"
                text += f"{label}, {rule}:\n\n{_beside_baselines(levels, documents, baselines)}\n\n"
        record(f"Keywords of {name}", text)
    graphs = texts.load_pubmed(TEXTS, number=30, seed=SEED)
    began = process_time()
    for graph in graphs:  # no keys; the first five words of TextRank serve as known words for the timing
        known = np.zeros(len(graph.stems), dtype=bool)
        known[np.argsort(-textrank(graph))[:KNOWN]] = True
        vbss(graph, known)
    taken = process_time() - began
    sizes = np.percentile([len(graph.stems) for graph in graphs], [0, 25, 50, 75, 100])
    text = (
        f"30 documents: {' / '.join(f'{size:.0f}' for size in sizes)} words "
        f"(least, quartiles, most; the thesis': 73 / 179 / 220 / 242 / 262); "
        f"VBSS took {taken:.2f} s of processor time (thesis 20.28 s). "
    )
    text += "They come without keys: table 1.4 cannot be computed."
    record("Keywords of PubMed", text)


Baselines = dict[str, tuple[list[np.ndarray], bool]]


def _beside_baselines(
    levels: dict[float, list[np.ndarray]], documents: Sequence[Document], baselines: Baselines
) -> str:
    """Precision, recall and F of the words chosen at each level, and of as many words by each baseline."""
    rows = []
    for gamma, chosen in levels.items():
        row = [gamma, f"{sum(int(c.sum()) for c in chosen) / len(documents):.1f}"]
        row.append(rounded(measures(chosen, documents)))
        for scores, force in baselines.values():
            as_many = texts.by_share(scores, documents, texts.share_of(chosen), force=force)
            row.append(rounded(measures(as_many, documents)))
        rows.append(row)
    return table(["γ", "words", "VBSS", *baselines], rows)


def _baselines(documents: Sequence[Document]) -> Baselines:
    """Scores of methods without probabilities, and whether they receive the known words."""
    return {
        "SS": ([semi_supervised(d.graph, d.known) for d in documents], False),
        "TextRank": ([textrank(d.graph) for d in documents], True),
        "YAKE": ([texts.yake_scores(d) for d in documents], True),
    }


def _at_published(
    documents: Sequence[Document], scores: Sequence[np.ndarray], precision: float, recall: float
) -> tuple[float, float, float]:
    """Precision, recall and F of a ranking at the thesis' number of selected words, known words first."""
    number = recall * sum(int(d.truth.sum()) for d in documents) / precision
    share = number / sum(len(d.truth) for d in documents)
    return measures(texts.by_share(scores, documents, share, force=True), documents)


def headct(every: int) -> None:
    """Ranks of other bleeding terms in head CT reports, from the single known word `hemorrhage`."""
    with (TEXTS / "headct_sentences.csv").open(newline="") as file:
        sentences = [row["sentence"] for row in csv.DictReader(file)]
    wanted = ("subdural", "subarachnoid", "intraparenchymal", "intraventricular", "hematoma")
    rows = []
    for window in (1, 2, 5):
        for weights in ("likelihood", "count"):
            extractor = KeywordExtractor(window=window, weights=weights)
            terms = extractor.fit(sentences, known=["hemorrhage"]).table()["term"].tolist()
            places = [terms.index(word) for word in wanted]
            rows.append(
                [window, weights, f"{sum(p <= 20 for p in places)} of 5", *places, ", ".join(terms[1:21])]
            )
    text = f"{len(sentences)} sentences, known: hemorrhage. Places among the terms found.\n\n"
    text += table(["window", "weights", "in the first 20", *wanted, "first 20"], rows)
    record("Head CT reports: terms from one word", text)


PARTS = {"sets": sets, "headct": headct}

if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--every", type=int, default=1, help="take every n-th document of a set")
    arguments = parser.parse_args()
    for chosen_part in arguments.parts.split(","):
        PARTS[chosen_part](arguments.every)

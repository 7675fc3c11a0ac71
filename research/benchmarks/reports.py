"""Labels from radiology reports: accuracy on sentences, throughput.

    python -m research.benchmarks.reports [--negspacy PYTHON] [--write]

* Sentences: macro F of the five labels on `headct_gold.csv`, and F of present against the rest, with 95 %
  intervals of 2,000 resamples of sentences. Results are given for two parts, since the rules were written
  with the first part in view. Baselines: a regular expression, and negspacy alone; PYTHON is an interpreter
  with negspacy.
* Throughput: 10,000 reports of 200 words from real sentences, each made unique by a number, so that no
  sentence is cached.
"""

import json
import re
import subprocess
from collections.abc import Sequence
from time import perf_counter, process_time

import numpy as np
import pandas as pd

from ich_mil.radiology_text.context import LABELS, classify
from ich_mil.radiology_text.labels import label_scans, read_sentences
from ich_mil.radiology_text.read import Report
from research.benchmarks.public_features import DATA
from research.benchmarks.record import command_line, record, table, with_interval

RESAMPLES = 2000
UNSEEN = (218, 422)
"""Sentences with ids between these were not seen before the first evaluation (commit 24e9b33)."""
BLOOD = re.compile(r"h(a)?emorrhag|h(a)?ematoma|bleed|\bblood|\b[sie][da]h\b")
NEGATED = re.compile(r"\b(no|not|without|negative for|resolved)\b")
HEDGED = re.compile(
    r"\b(possibl[ey]|probabl[ey]|may|could|might|likely|suspected|suspicious|versus|question)\b"
)
NEGSPACY = """
import json, sys, spacy
from negspacy.negation import Negex
nlp = spacy.blank("en")
nlp.add_pipe("sentencizer")
words = "hemorrhage hemorrhages hemorrhagic hematoma hematomas bleed bleeding blood sdh sah".split()
nlp.add_pipe("entity_ruler").add_patterns([{"label": "BLOOD", "pattern": [{"LOWER": w}]} for w in words])
nlp.add_pipe("negex", config={"ent_types": ["BLOOD"]})
labels = []
for sentence in json.load(sys.stdin):
    found = [one._.negex for one in nlp(sentence).ents]
    labels.append("none" if not found else "absent" if all(found) else "present")
json.dump(labels, sys.stdout)
"""


def expression(sentence: str) -> str:
    """Baseline label by regular expressions: word for blood, negation or hedge anywhere in the sentence."""
    if not BLOOD.search(sentence):
        return "none"
    return "absent" if NEGATED.search(sentence) else "uncertain" if HEDGED.search(sentence) else "present"


def negspacy(python: str, sentences: Sequence[str]) -> list[str]:
    """Labels by negspacy: present, absent or none."""
    words, text = [python, "-W", "ignore", "-c", NEGSPACY], json.dumps(list(sentences))
    done = subprocess.run(words, input=text, check=True, capture_output=True, text=True)
    return list(json.loads(done.stdout))


def scores(truth: np.ndarray, told: np.ndarray) -> np.ndarray:
    """F of each label, NaN if absent in `truth`; `truth` and predictions `told` are indices in `LABELS`."""
    counts = np.bincount(len(LABELS) * truth + told, minlength=len(LABELS) ** 2).reshape(len(LABELS), -1)
    there = counts.sum(1)
    f = 2 * np.diag(counts) / np.maximum(there + counts.sum(0), 1)
    return np.where(there > 0, f, np.nan)


def _row(name: str, gold: pd.DataFrame, labels: Sequence[str]) -> list[str]:
    place: dict[str, int] = {label: i for i, label in enumerate(LABELS)}
    truth, told = (np.array([place[one] for one in given]) for given in (gold.label, labels))
    rng = np.random.default_rng(0)
    drawn = (rng.integers(0, len(truth), len(truth)) for _ in range(RESAMPLES))
    each = scores(truth, told)
    resampled = np.array([scores(truth[one], told[one]) for one in drawn])
    cells = [
        with_interval(value, np.percentile(some, [2.5, 97.5]))
        for value, some in ((np.nanmean(each), np.nanmean(resampled, axis=1)), (each[0], resampled[:, 0]))
    ]
    counts = gold.label.value_counts()
    cells += [f"{f:.2f} ({counts.get(label, 0)})" for label, f in zip(LABELS, each, strict=True)]
    return [f"{name} ({len(gold)})", *cells]


def sentences(gold: pd.DataFrame, python: str | None) -> str:
    """Result table of sentence labels."""
    unseen = gold.id.between(*UNSEEN, inclusive="neither")
    parts = {
        "rules, all": gold,
        "rules, written in view of these": gold[~unseen],
        "rules, looked at after the first measurement": gold[unseen],
    }
    rows = [_row(name, part, [classify(one).label for one in part.sentence]) for name, part in parts.items()]
    rows.append(_row("regular expression, all", gold, [expression(one) for one in gold.sentence]))
    if python:
        rows.append(_row("negspacy alone, all", gold, negspacy(python, gold.sentence.tolist())))
    return table(["", "macro F", "F present", *(f"{label} (sentences)" for label in LABELS)], rows)


def throughput(lines: Sequence[str], *, reports: int = 10_000, words: int = 200) -> str:
    """Seconds for reports of real sentences, all unique."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(reports):
        text: list[str] = []
        while len(text) < words:
            line = lines[int(rng.integers(len(lines)))].rstrip(" .")
            text += f"{line} ( {rng.integers(1 << 30)} ) .".split()
        made.append(Report(str(i), str(i), " ".join(text[:words])))
    start, used = perf_counter(), process_time()
    statements = read_sentences(made)
    labels = label_scans(statements)
    taken, used = perf_counter() - start, process_time() - used
    return (
        f"{reports:,} reports of {words} words ({sum(map(len, statements)):,} sentences, {len(labels):,} "
        f"labels) on one thread: {used:.1f} s of processor time, {taken:.1f} s by the clock."
    )


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--negspacy", metavar="PYTHON", help="interpreter of an environment with negspacy")
    chosen = parser.parse_args()
    texts = DATA / "text"
    gold = pd.read_csv(texts / "headct_gold.csv", keep_default_na=False)
    lines = pd.read_csv(texts / "headct_sentences.csv", keep_default_na=False).sentence.tolist()
    parts = [sentences(gold, chosen.negspacy), throughput(lines)]
    record("Labels from reports", "\n\n".join(parts))


if __name__ == "__main__":
    main()

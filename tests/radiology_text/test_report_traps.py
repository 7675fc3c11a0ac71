"""Reports written to mislead: `traps.csv`, by kind, each with its label (1, 0, out).

A line break is written as \u23ce. `built` ones were in view of the rules; `later` and `last` were measured
once before rules followed them; `held` ones were written before all rules and measured once at the end;
`first`, `second`, `third` by three writers who had seen neither rules nor texts, measured once before
rules followed; `fourth` by another one, which no rule followed: keep it so.
"""

from pathlib import Path

import pandas as pd
import pytest

from ich_mil.radiology_text.labels import label_scans, read_sentences
from ich_mil.radiology_text.read import Report

TRAPS = pd.read_csv(Path(__file__).with_name("traps.csv"), dtype=str, keep_default_na=False)
OF_STRANGERS = ("first", "second", "third", "fourth")
LABELS = {"positive": "1", "negative": "0", "uncertain": "out"}


def label_of(text):
    """Label of a report: 1, 0 or out."""
    statements = read_sentences([Report("r", "S", text.replace("\u23ce", "\n"))])
    return LABELS[label_scans(statements)[0].outcome]


@pytest.mark.parametrize("part", ["built", "later", "last", "held", *OF_STRANGERS])
def test_none_is_wrong_and_most_are_labelled(part):
    traps = TRAPS[TRAPS.part == part].assign(given=lambda rows: rows.text.map(label_of))
    wrong = traps[(traps.given != "out") & (traps.given != traps.label)]
    definite = traps[traps.label != "out"]
    assert len(wrong) <= (2 if part == "fourth" else 0), wrong.text.tolist()
    assert (definite.given != "out").mean() >= (0.65 if part in OF_STRANGERS else 0.75)

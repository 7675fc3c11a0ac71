import csv

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from ich_mil.errors import ConfigError, DataError
from ich_mil.radiology_text.fdr import estimated_fdr
from ich_mil.radiology_text.keywords import KeywordExtractor
from ich_mil.radiology_text.thesis import published_vbss

REPORTS = [
    "Acute subdural hematoma along the left convexity.",
    "Subarachnoid hemorrhage in the basal cisterns; subdural hematoma on the right.",
    "No acute hemorrhage. Hematomas have resolved.",
    "Paranasal sinuses are clear. Mastoid air cells are clear.",
]
DOCUMENT = " ".join(REPORTS)
KNOWN = ["hemorrhages", "Subdural", "hematoma"]


def test_table_of_a_document():
    extractor = KeywordExtractor().fit(DOCUMENT, known=KNOWN)
    table = extractor.table()
    assert list(table.columns) == ["rank", "term", "probability", "fdr"]
    assert set(table["term"][:3]) == {"subdural", "hemorrhage", "hematoma"}
    assert table["rank"].tolist() == [0, 0, *range(len(table) - 2)]
    assert table["probability"].is_monotonic_decreasing
    assert (table["fdr"][:3] == 0).all()
    np.testing.assert_allclose(table["fdr"][3:], (1 - table["probability"][3:]).expanding().mean(), rtol=1e-9)
    assert extractor.ranked_ == table["term"][3:].tolist()


def test_known_words_are_not_selected():
    extractor = KeywordExtractor().fit(DOCUMENT, known=KNOWN)
    assert extractor.select(1.0) == extractor.ranked_
    rates = extractor.fdr_[~extractor.known_]
    gamma = float(np.median(rates))
    assert extractor.select(gamma) == extractor.ranked_[: (rates <= gamma).sum()]


def test_collection_ranks_by_ss_over_root_of_degree():
    extractor = KeywordExtractor().fit(REPORTS, known="hemorrhage")
    Q = extractor.graph_.normalised().toarray()
    theta = 0.15 * np.linalg.solve(np.eye(len(Q)) - 0.85 * Q, extractor.known_.astype(float))
    degrees = extractor.graph_.degrees
    np.testing.assert_allclose(extractor.scores_, theta / np.sqrt(degrees), rtol=1e-9)
    assert "hemorrhage" not in extractor.ranked_
    assert np.isnan(extractor.table()[["probability", "fdr"]]).all(axis=None)


def test_rate_of_a_collection_is_not_estimated():
    with pytest.raises(DataError, match="no false discovery rate"):
        KeywordExtractor().fit(REPORTS, known=KNOWN).select(0.2)


def test_preset_counts_known_words():
    extractor = KeywordExtractor(preset="thesis").fit(DOCUMENT, known=KNOWN)
    p = published_vbss(extractor.graph_.normalised(), extractor.known_)
    np.testing.assert_array_equal(extractor.proba_, p)
    np.testing.assert_array_equal(extractor.fdr_, estimated_fdr(p, extractor.known_, count_known=True))
    assert extractor.select(1.0) == extractor.ranked_


def test_fit_repeats_itself():
    first = KeywordExtractor(min_count=2).fit(DOCUMENT, known="hematoma")
    again = clone(first).fit(DOCUMENT, known="hematoma")
    np.testing.assert_array_equal(first.scores_, again.scores_)


def test_a_phrase_makes_each_of_its_words_known():
    phrase = KeywordExtractor().fit(REPORTS, known=["subdural hematoma"])
    words = KeywordExtractor().fit(REPORTS, known=["subdural", "hematoma"])
    np.testing.assert_array_equal(phrase.known_, words.known_)
    assert phrase.known_.sum() == 2


@pytest.mark.parametrize(
    ("texts", "known", "match"),
    [
        ([], ["hemorrhage"], "two different words"),
        (REPORTS, [], "at least one known keyword"),
        (REPORTS, ["epidural"], "epidural"),
        (REPORTS, ["epidural hematoma"], "epidural"),
    ],
)
def test_bad_input(texts, known, match):
    with pytest.raises(DataError, match=match):
        KeywordExtractor().fit(texts, known=known)


@pytest.mark.parametrize("bad", [{"preset": "yake"}, {"min_count": 0}, {"language": "klingon"}])
def test_bad_parameters(bad):
    with pytest.raises(ConfigError):
        KeywordExtractor(**bad).fit(REPORTS, known=["hemorrhage"])


def test_nothing_is_selected_before_a_fit():
    with pytest.raises(NotFittedError):
        KeywordExtractor().table()


@pytest.mark.realdata
def test_from_one_word_to_the_vocabulary_of_bleeding(shared_data):
    with (shared_data / "text" / "headct_sentences.csv").open(newline="") as file:
        sentences = [row["sentence"] for row in csv.DictReader(file)]
    first = KeywordExtractor(min_count=3).fit(sentences, known="hemorrhage").ranked_[:10]
    wanted = {"subarachnoid", "intraparenchymal", "intraventricular", "petechial", "intracranial"}
    assert wanted <= set(first)

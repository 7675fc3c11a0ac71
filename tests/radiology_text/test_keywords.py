import csv

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from ich_mil.errors import ConfigError, DataError
from ich_mil.radiology_text import keywords
from ich_mil.radiology_text.keywords import KeywordExtractor

REPORTS = [
    "Acute subdural hematoma along the left convexity.",
    "Subarachnoid hemorrhage in the basal cisterns; subdural hematoma on the right.",
    "No acute hemorrhage. Hematomas have resolved.",
    "Paranasal sinuses are clear. Mastoid air cells are clear.",
]


def test_terms_and_probabilities():
    extractor = KeywordExtractor(alpha=0.7).fit(REPORTS, known=["hemorrhages", "Subdural"])
    assert extractor.get_params()["alpha"] == 0.7
    table = extractor.table()
    assert list(table.columns) == ["term", "probability", "fdr"]
    assert table["term"].tolist()[:2] == ["subdural", "hemorrhage"]
    assert table["probability"].is_monotonic_decreasing
    assert table["fdr"].is_monotonic_increasing
    assert (table["fdr"][:2] == 0).all()
    others = 1 - table["probability"][2:]
    np.testing.assert_allclose(table["fdr"][2:], others.expanding().mean(), rtol=1e-9)


def test_levels_are_nested():
    extractor = KeywordExtractor(gamma=0.0).fit(REPORTS, known=["hemorrhage"])
    assert extractor.keywords_ == ["hemorrhage"]
    previous = extractor.keywords_
    for gamma in (0.5, 0.9, 1.0):
        chosen = extractor.select(gamma)
        assert chosen[: len(previous)] == previous
        previous = chosen
    assert len(previous) == len(extractor.terms_)


@pytest.mark.parametrize("method", ["vbss", "bss", "ss", "textrank"])
def test_every_method_runs_and_repeats_itself(method):
    one = KeywordExtractor(method, draws=200, burn_in=50).fit(REPORTS, known=["hemorrhage"])
    other = clone(one).fit(REPORTS, known=["hemorrhage"])
    np.testing.assert_array_equal(one.scores_, other.scores_)
    assert np.isnan(one.proba_).all() == (method in ("ss", "textrank"))
    assert set(one.keywords_) <= set(one.terms_)


def test_a_phrase_makes_each_of_its_words_known():
    phrase = KeywordExtractor().fit(REPORTS, known=["subdural hematoma"])
    words = KeywordExtractor().fit(REPORTS, known=["subdural", "hematoma"])
    np.testing.assert_array_equal(phrase.known_, words.known_)
    assert phrase.known_.sum() == 2


def test_one_text_is_a_collection_of_one():
    text = " ".join(REPORTS)
    one = KeywordExtractor().fit(text, known="hemorrhage")
    many = KeywordExtractor().fit([text], known=["hemorrhage"])
    np.testing.assert_array_equal(one.proba_, many.proba_)


def test_a_large_collection_takes_the_sparse_way(monkeypatch):
    exact = KeywordExtractor().fit(REPORTS, known=["hemorrhage"])
    monkeypatch.setattr("ich_mil.radiology_text.spectrum.EXACT", 3)
    sparse = KeywordExtractor().fit(REPORTS, known=["hemorrhage"])
    np.testing.assert_allclose(sparse.proba_, exact.proba_, atol=0.03)


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


@pytest.mark.parametrize(
    "bad", [{"method": "yake"}, {"damping": 1.0}, {"gamma": 2.0}, {"alpha": 0.0}, {"language": "klingon"}]
)
def test_bad_parameters(bad):
    with pytest.raises(ConfigError):
        KeywordExtractor(**bad).fit(REPORTS, known=["hemorrhage"])


def test_bss_refuses_what_it_cannot_hold(monkeypatch):
    monkeypatch.setattr(keywords, "BSS_WORDS", 5)
    with pytest.raises(ConfigError, match="bss takes at most 5 words"):
        KeywordExtractor("bss").fit(REPORTS, known=["hemorrhage"])


def test_nothing_is_selected_before_a_fit():
    with pytest.raises(NotFittedError):
        KeywordExtractor().table()


@pytest.mark.realdata
def test_from_one_word_to_the_vocabulary_of_bleeding(shared_data):
    with (shared_data / "text" / "headct_sentences.csv").open(newline="") as file:
        sentences = [row["sentence"] for row in csv.DictReader(file)]
    extractor = KeywordExtractor(window=1, weights="likelihood").fit(sentences, known=["hemorrhage"])
    first = extractor.table()["term"][:21].tolist()
    assert first[0] == "hemorrhage"
    wanted = {"subdural", "subarachnoid", "intraparenchymal", "intraventricular", "hematoma"}
    assert wanted <= set(first[1:])

import numpy as np
import pytest

from ich_mil.radiology_text.fdr import estimated_fdr, select
from ich_mil.radiology_text.graph import Words, build_graph
from ich_mil.radiology_text.rank import semi_supervised, textrank
from ich_mil.radiology_text.word_model import FEATURES, coefficients, keyword_probability, word_features
from research.benchmarks.keywords.documents import as_many_new, load, measures

PLAIN = Words(language=None, stop_words=["of"])


def test_features_by_hand():
    text = "of bb cc of aa aa bb"
    graph = build_graph([text], words=PLAIN, window=1)
    known = np.array([False, True, False])
    features = word_features(text, graph, known, PLAIN)
    assert graph.stems == ["aa", "bb", "cc"]
    # bb cc | aa aa bb: a stop word parts cc and aa, and a word is no neighbour of itself
    np.testing.assert_allclose(features[:, FEATURES.index("phrase")], [1 / 2, 2 / 2, 1 / 1])
    np.testing.assert_allclose(features[:, FEATURES.index("position")], np.log(np.array([5, 2, 3]) / 7))
    np.testing.assert_allclose(features[:, FEATURES.index("words")], np.log(3))
    np.testing.assert_allclose(features[:, FEATURES.index("letters")], 2)
    ss = semi_supervised(graph, known)
    np.testing.assert_allclose(features[:, FEATURES.index("ss")], np.log(ss / ss.mean() + 1e-3))
    np.testing.assert_allclose(features[:, FEATURES.index("textrank")], np.log(textrank(graph) + 1e-3))


def test_rare_words_are_no_neighbours():
    text = "aa bb aa cc aa bb"
    graph = build_graph([text], words=PLAIN, window=1, min_count=2)
    features = word_features(text, graph, np.array([True, False]), PLAIN)
    np.testing.assert_allclose(features[:, FEATURES.index("phrase")], [3 / 3, 3 / 2])


def test_probability_is_the_logistic_of_the_stored_coefficients():
    intercept, slopes = coefficients()
    x = np.random.default_rng(0).standard_normal((5, len(FEATURES)))
    odds = np.exp(intercept + x @ slopes)
    np.testing.assert_allclose(keyword_probability(x), odds / (1 + odds), rtol=1e-12)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["Inspec", "SemEval2010"])
def test_new_keywords_of_the_measured_half(shared_data, name):
    """The rate of new words holds, and F is above those of SS and TextRank at as many words."""
    documents = load(name, part=1, every=4, folder=shared_data / "text")
    proba = [keyword_probability(d.features) for d in documents]
    chosen = [
        select(estimated_fdr(p, d.known), gamma=0.3) & d.new for p, d in zip(proba, documents, strict=True)
    ]
    precision, _, f = measures(chosen, documents, new=True)
    assert 1 - precision == pytest.approx(0.3, abs=0.05)
    for column in (0, 1):
        pairs = zip(documents, chosen, strict=True)
        peers = [as_many_new(d.features[:, column], d, int(mask.sum())) for d, mask in pairs]
        assert f > measures(peers, documents, new=True)[2] + 0.02

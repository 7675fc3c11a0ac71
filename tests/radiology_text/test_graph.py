import numpy as np
import pytest

from ich_mil.errors import ConfigError, DataError
from ich_mil.radiology_text.graph import Words, build_graph, tokenize
from ich_mil.radiology_text.rank import semi_supervised, solve_walk, textrank
from tests.radiology_text.graphs import random_walk_matrix

PLAIN = Words(language=None)


def weight(graph, one, other):
    return graph.adjacency[graph.stems.index(one), graph.stems.index(other)]


def test_words_are_runs_of_letters_and_digits():
    assert tokenize("Real-time CT: 3 mm, 512x512; Größe x_y, 42.") == [
        "real", "time", "ct", "mm", "512x512", "größe",
    ]  # fmt: skip


def test_counts_by_hand():
    graph = build_graph(["aa bb cc aa", "cc bb"], words=PLAIN, window=2)
    assert graph.stems == ["aa", "bb", "cc"]
    assert graph.counts.tolist() == [2, 2, 2]
    # one gap: aa-bb, bb-cc, cc-aa, cc-bb; two gaps: aa-cc, bb-aa
    np.testing.assert_array_equal(graph.adjacency.toarray(), [[0, 2, 2], [2, 0, 2], [2, 2, 0]])
    apart = build_graph(["aa bb", "cc dd ee"], words=PLAIN, window=1)  # windows end with the text
    assert (weight(apart, "bb", "cc"), weight(apart, "cc", "ee")) == (0, 0)


def test_stop_and_rare_words_are_removed_before_windows():
    graph = build_graph(["brain of the bleeds", "brain mass bleeding"], window=1, min_count=2)
    assert graph.stems == ["bleed", "brain"]
    assert weight(graph, "brain", "bleed") == 2


def test_stem_in_its_most_frequent_form():
    graph = build_graph(["bleeding bleeds bleeding brain"])
    assert dict(zip(graph.stems, graph.forms, strict=True)) == {"bleed": "bleeding", "brain": "brain"}
    for texts in (["sum sums brain"], ["sums sum brain"]):  # as often: the first of the alphabet
        assert build_graph(texts).forms == ["brain", "sum"]


def test_any_language():
    german = build_graph(["Blutungen im Gehirn", "Blutung"], words=Words("german", stop_words=["im"]))
    assert german.stems == ["blutung", "gehirn"]
    spaced = build_graph(["出血 脳 出血"], words=Words(None, tokenizer=str.split))
    assert weight(spaced, "出血", "脳") == 2


def test_normalised_weights_have_unit_radius():
    graph = build_graph(["aa bb cc aa dd bb", "ee ee"], words=PLAIN)
    Q = graph.normalised().toarray()
    assert np.abs(np.linalg.eigvalsh(Q)).max() == pytest.approx(1.0, rel=1e-12)
    d = graph.degrees
    assert d[graph.stems.index("ee")] == 0
    np.testing.assert_allclose(Q @ np.sqrt(d), np.sqrt(d), rtol=1e-12)


def test_likelihood_weights_by_hand():
    counts = build_graph(["aa bb", "aa bb", "aa cc"], words=PLAIN, window=1)
    graph = build_graph(["aa bb", "aa bb", "aa cc"], words=PLAIN, window=1, weights="likelihood")
    assert counts.degrees.tolist() == [3, 2, 1]
    expected = 3 * 2 / 6
    wanted = 2 * (2 * np.log(2 / expected) - (2 - expected))
    assert weight(graph, "aa", "bb") == pytest.approx(wanted, rel=1e-12)
    texts = ["aa bb", "aa cc", "bb cc", "aa bb cc bb aa"]
    counts, graph = (build_graph(texts, words=PLAIN, window=1, weights=w) for w in ("count", "likelihood"))
    d, A = counts.degrees, counts.adjacency.toarray()
    np.testing.assert_array_equal(graph.adjacency.toarray() > 0, np.outer(d, d) / d.sum() < A)


@pytest.mark.parametrize("texts", [[], ["the of and"], ["bleed bleeding"]])
def test_fewer_than_two_words(texts):
    with pytest.raises(DataError, match="two different words"):
        build_graph(texts)


@pytest.mark.parametrize("empty", [None, float("nan")])
def test_an_empty_cell_is_no_text(empty):
    with pytest.raises(DataError, match="text 1 is no text"):
        build_graph(["brain bleed", empty])


@pytest.mark.parametrize("bad", [{"window": 0}, {"min_count": 0}, {"weights": "pmi"}])
def test_parameters_out_of_range(bad):
    with pytest.raises(ConfigError):
        build_graph(["aa bb"], **bad)
    with pytest.raises(ConfigError, match="klingon"):
        build_graph(["aa bb"], words=Words("klingon"))


@pytest.fixture(name="graph")
def _graph():
    return build_graph(["aa bb cc dd aa cc ee ff bb ee", "aa ff gg"], words=Words(language=None))


def test_the_walk_is_solved():
    Q, b = random_walk_matrix(50), np.arange(50.0)
    np.testing.assert_allclose(
        solve_walk(Q, b), np.linalg.solve(np.eye(50) - 0.85 * Q.toarray(), b), rtol=1e-9
    )


def test_ss_solves_its_equation(graph):
    known = np.array([stem in ("aa", "ee") for stem in graph.stems])
    theta = semi_supervised(graph, known, damping=0.7)
    np.testing.assert_allclose(theta, 0.3 * known + 0.7 * graph.normalised().T @ theta, rtol=1e-9)


def test_textrank_solves_its_equation(graph):
    theta = textrank(graph)
    A = graph.adjacency.toarray()
    G = A / A.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(theta, 0.15 + 0.85 * G.T @ theta, rtol=1e-9)
    assert theta.mean() == pytest.approx(1.0, rel=1e-9)

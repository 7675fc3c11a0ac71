import numpy as np
import pytest

from ich_mil.reports.graph import Words, build_graph
from ich_mil.reports.rank import semi_supervised, solve_walk, textrank
from tests.reports.graphs import random_walk_matrix


@pytest.fixture
def graph():
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


def test_little_damping_leaves_the_known_words_alone(graph):
    known = np.arange(len(graph.stems)) < 2
    np.testing.assert_allclose(semi_supervised(graph, known, damping=1e-9), known, atol=1e-8)

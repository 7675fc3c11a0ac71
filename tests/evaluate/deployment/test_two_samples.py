import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import energy_distance, ks_2samp

from ich_mil.evaluate.deployment.two_samples import chance, column_distances, energy_distances, whitened


def deals(scans, n, r, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(scans) < n for _ in range(r)]).T


def test_column_distances_are_scipys():
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.normal(size=30), rng.integers(0, 4, 30)])
    batch = deals(30, 12, 5)
    found = column_distances(table, batch)
    assert found.shape == (2, 5)
    for r in range(5):
        for c in range(2):
            expected = ks_2samp(table[batch[:, r], c], table[~batch[:, r], c]).statistic
            assert found[c, r] == pytest.approx(expected, rel=1e-12)


def test_energy_of_one_column_is_scipys():
    x, batch = np.random.default_rng(1).normal(size=25), deals(25, 9, 4)
    for r, value in enumerate(energy_distances(x[:, None], batch)):
        square = energy_distance(x[batch[:, r]], x[~batch[:, r]]) ** 2
        assert value == pytest.approx(9 * 16 / 25 * square, rel=1e-9)


def test_energy_of_many_columns_by_its_definition():
    points, batch = np.random.default_rng(2).normal(size=(12, 3)), deals(12, 5, 1)
    a, b = points[batch[:, 0]], points[~batch[:, 0]]
    expected = 2 * cdist(a, b).mean() - cdist(a, a).mean() - cdist(b, b).mean()
    assert energy_distances(points, batch)[0] == pytest.approx(5 * 7 / 12 * expected, rel=1e-9)


def test_whitened_components_have_variance_1_and_no_correlation():
    rng = np.random.default_rng(3)
    table = rng.normal(size=(200, 4)) @ rng.normal(size=(4, 4)) * [1, 10, 100, 1e4]
    points = whitened(table)
    np.testing.assert_allclose(points.T @ points / 200, np.eye(4), atol=1e-9)


def test_whitened_does_not_depend_on_unit_or_constant_columns():
    rng = np.random.default_rng(4)
    table = rng.normal(size=(100, 3)) + rng.normal(size=(100, 1))
    moved = np.column_stack([table * [1, 50, 1e-6] + [0, 7, -3], np.full(100, 0.1)])
    np.testing.assert_allclose(
        cdist(whitened(moved), whitened(moved)), cdist(*[whitened(table)] * 2), atol=1e-6
    )


def test_components_that_are_rounding_or_too_many_are_left_out():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(100, 1))
    assert whitened(np.column_stack([x, x + 1e-6 * rng.normal(size=(100, 1))])).shape == (100, 1)
    assert whitened(rng.normal(size=(60, 40))).shape == (60, 6)
    assert whitened(rng.normal(size=(9, 4))).shape == (9, 1)


def test_nothing_varies():
    points = whitened(np.full((20, 3), 0.1))
    assert points.shape == (20, 0)
    np.testing.assert_array_equal(energy_distances(points, deals(20, 8, 3)), 0)


def test_chance_counts_equal_distances():
    assert chance(np.array([2, 1, 2 - 1e-12, 3, 0]), 2) == 3 / 5
    assert chance(np.zeros(7), 0) == 1

"""Pointing game and energy inside a mask, on maps small enough to count by hand."""

import numpy as np
import pytest
import torch
from scipy.special import expit

from research.benchmarks.localise import energy_inside, hits, localise


def square(size, rows, columns):
    mask = np.zeros((1, size, size), bool)
    mask[0, rows, columns] = True
    return mask


def one_cell(side, y, x):
    cells = torch.zeros(1, side, side)
    cells[0, y, x] = 1.0
    return cells


def test_the_maximum_hits_or_misses():
    mask = square(8, slice(0, 4), slice(4, 8))
    # cells of two pixels; the middle of cell (1, 3) lies in pixel (3, 7)
    for cell, wanted in (((1, 3), 1.0), ((2, 3), 0.0), ((1, 1), 0.0)):
        assert hits(one_cell(4, *cell), mask, tolerance=0).tolist() == [wanted]
    point = one_cell(10, 5, 6)  # 3 down, 4 across from (2, 2): 5 pixels away
    for tolerance, wanted in ((4.99, 0.0), (5.0, 1.0)):
        assert hits(point, square(10, 2, 2), tolerance=tolerance).tolist() == [wanted]


def test_a_flat_map_scores_the_area():
    mask, flat = square(8, slice(0, 2), slice(0, 4)), torch.full((1, 8, 8), 0.3)
    assert hits(flat, mask, tolerance=0).tolist() == [8 / 64]
    assert energy_inside(flat, mask).tolist() == [pytest.approx(8 / 64, rel=1e-12)]


def test_energy_counts_positive_parts_and_parts_of_cells():
    cells = torch.tensor([[[4.0, -9.0], [1.0, 3.0]]])
    # the upper left cell is half on the mask, the lower left wholly: (2 + 1) / 8, at any scale of the map
    mask = square(4, slice(1, 4), slice(0, 2))
    for scale in (1, 7):
        assert energy_inside(scale * cells, mask).tolist() == [pytest.approx(3 / 8, rel=1e-12)]
    assert energy_inside(-cells.abs(), mask).tolist() == [0.0]


def test_means_and_intervals():
    """Patient a hits with both slices, b misses with its one: 2/3; resampled, 0, 2/3 or 1."""
    masks = np.concatenate([square(10, slice(0, 5), slice(0, 2))] * 3)
    heads = np.ones_like(masks)
    heads[:, 5:] = False
    maps = torch.cat([one_cell(10, 1, 1), one_cell(10, 3, 0), one_cell(10, 9, 9)])
    found = localise(maps, masks, heads, ["a", "a", "b"], seed=0)
    assert found.strict.tolist() == found.near.tolist() == found.energy.tolist() == [1.0, 1.0, 0.0]
    assert found.area.tolist() == [0.2, 0.2, 0.2]
    third = pytest.approx(2 / 3)
    assert found.means == {
        "strict": third,
        "near": third,
        "energy": third,
        "area": pytest.approx(0.2),
        "gain": pytest.approx(10 / 3),
    }
    strict = found.intervals["strict"]
    assert strict.error == pytest.approx(np.sqrt((1 / 4 + 4 / 9 / 2) - (1 / 4 + 1 / 3) ** 2), abs=0.02)
    assert (strict.low, strict.high) == (pytest.approx(0, abs=1e-6), pytest.approx(1))  # t of 1 is 12.7
    three = localise(maps, masks, heads, ["a", "b", "c"], seed=0).intervals["strict"]
    assert three.error == pytest.approx(np.sqrt(2 / 9 / 3), abs=0.02)
    reach = 4.302653 * np.sqrt(3 / 2) * three.error * 9 / 2  # t of 2
    ends = expit(np.log(2) + np.array([-reach, reach]))
    assert [three.low, three.high] == pytest.approx(ends.tolist(), rel=1e-3)

"""Pointing and energy, on maps small enough to count by hand."""

import numpy as np
import pytest
import torch
from scipy.special import expit

from benchmarks.localise import TOLERANCE, energy_inside, hits, localise


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
    assert hits(one_cell(4, 1, 3), mask, tolerance=0).tolist() == [1.0]
    assert hits(one_cell(4, 2, 3), mask, tolerance=0).tolist() == [0.0]
    assert hits(one_cell(4, 1, 1), mask, tolerance=0).tolist() == [0.0]
    assert hits(one_cell(4, 1, 3), square(8, slice(3, 4), slice(7, 8)), tolerance=0).tolist() == [1.0]


def test_the_tolerance_is_a_distance_in_pixels():
    mask = square(10, slice(2, 3), slice(2, 3))
    point = one_cell(10, 5, 6)  # 3 down, 4 across: 5 pixels away
    assert hits(point, mask, tolerance=4.99).tolist() == [0.0]
    assert hits(point, mask, tolerance=5.0).tolist() == [1.0]


def test_a_flat_map_scores_the_share_of_the_area():
    mask = square(8, slice(0, 2), slice(0, 4))
    assert hits(torch.full((1, 8, 8), 0.3), mask, tolerance=0).tolist() == [8 / 64]
    assert energy_inside(torch.full((1, 8, 8), 0.3), mask).tolist() == [pytest.approx(8 / 64, rel=1e-12)]


def test_energy_counts_positive_parts_and_parts_of_cells():
    cells = torch.tensor([[[4.0, -9.0], [1.0, 3.0]]])
    # the upper left cell is half on the mask, the lower left wholly: (2 + 1) / 8
    mask = square(4, slice(1, 4), slice(0, 2))
    assert energy_inside(cells, mask).tolist() == [pytest.approx(3 / 8, rel=1e-12)]
    assert energy_inside(-cells.abs(), mask).tolist() == [0.0]


def test_it_does_not_depend_on_the_scale_of_the_map():
    rng = np.random.default_rng(0)
    maps = torch.from_numpy(rng.normal(size=(5, 6, 6)))
    masks = rng.random((5, 12, 12)) < 0.3
    np.testing.assert_array_equal(
        hits(maps, masks, tolerance=1), hits(torch.exp(3 * maps), masks, tolerance=1)
    )
    np.testing.assert_allclose(energy_inside(maps, masks), energy_inside(7 * maps, masks), rtol=1e-12)


def test_means_and_intervals():
    """Patient a hits with both slices, b misses with its one: 2/3; resampled, 0, 2/3 or 1."""
    masks = np.concatenate([square(10, slice(0, 5), slice(0, 2))] * 3)
    heads = np.ones_like(masks)
    heads[:, 5:] = False
    maps = torch.cat([one_cell(10, 1, 1), one_cell(10, 3, 0), one_cell(10, 9, 9)])
    found = localise(maps, masks, heads, ["a", "a", "b"], seed=0)
    assert found.strict.tolist() == found.near.tolist() == found.energy.tolist() == [1.0, 1.0, 0.0]
    assert found.area.tolist() == [0.2, 0.2, 0.2]
    assert found.means == {
        "strict": pytest.approx(2 / 3),
        "near": pytest.approx(2 / 3),
        "energy": pytest.approx(2 / 3),
        "area": pytest.approx(0.2),
        "gain": pytest.approx(10 / 3),
    }
    strict = found.intervals["strict"]
    assert strict.error == pytest.approx(np.sqrt((1 / 4 + 4 / 9 / 2) - (1 / 4 + 1 / 3) ** 2), abs=0.02)
    assert (strict.low, strict.high) == (pytest.approx(0, abs=1e-6), pytest.approx(1))  # t of 1 is 12.7
    three = localise(maps, masks, heads, ["a", "b", "c"], seed=0).intervals["strict"]
    assert three.error == pytest.approx(np.sqrt(2 / 9 / 3), abs=0.02)
    reach = 4.302653 * np.sqrt(3 / 2) * three.error * 9 / 2  # t of 2
    assert (three.low, three.high) == (
        pytest.approx(expit(np.log(2) - reach), rel=1e-3),
        pytest.approx(expit(np.log(2) + reach), rel=1e-3),
    )
    assert (found.intervals["area"].low, found.intervals["area"].high) == (
        pytest.approx(0.2),
        pytest.approx(0.2),
    )


def test_all_hits_of_a_few_patients_are_not_always():
    masks = square(10, slice(0, 5), slice(0, 2)).repeat(3, axis=0)
    maps = torch.cat([one_cell(10, 1, 1)] * 3)
    found = localise(maps, masks, np.ones_like(masks), ["a", "a", "b"], seed=0)
    ends = found.intervals["strict"]
    assert (ends.low, ends.high) == (pytest.approx(np.sqrt(0.025)), 1.0)  # two of two patients


def test_the_stated_tolerance_is_a_share_of_the_pictures_side():
    """3 % of 200 pixels: 6, as far as from pixel 0 to the middle of the second cell of 4 pixels."""
    masks = square(200, slice(2, 3), slice(0, 1))
    heads = np.ones_like(masks)
    assert pytest.approx(6.0) == TOLERANCE * 200
    for cell, wanted in ((1, 1.0), (2, 0.0)):
        assert localise(one_cell(50, 0, cell), masks, heads, ["a"], seed=0).near.tolist() == [wanted]


def test_pictures_that_are_not_square():
    """20 x 100 pixels in cells of 2 x 4: the tolerance is 3 % of the longer side, heads are small."""
    masks, heads = np.zeros((1, 20, 100), bool), np.zeros((1, 20, 100), bool)
    masks[0, 18:, 80:] = heads[0, 19, 80:] = heads[0, 10, :80] = True
    maps = torch.zeros(3, 10, 25)
    maps[0, 9, 20], maps[1, 9, 19], maps[2, 9, 18] = 1.0, 1.0, 1.0  # columns 82, 78 and 74
    found = localise(maps, masks.repeat(3, 0), heads.repeat(3, 0), ["a"] * 3, seed=0)
    assert found.strict.tolist() == [1.0, 0.0, 0.0]
    assert found.near.tolist() == [1.0, 1.0, 0.0]
    assert found.area.tolist() == [0.2] * 3  # 20 of the head's 100 pixels; 20 of blood lie outside it


@pytest.mark.parametrize("what", ["mask", "head", "nan", "shape"])
def test_what_cannot_be_measured_is_refused(what):
    maps, masks, heads = one_cell(4, 0, 0), square(8, slice(0, 2), slice(0, 2)), np.ones((1, 8, 8), bool)
    message = f"slice 0 has an empty {what}"
    if what == "mask":
        masks = np.zeros_like(masks)
    elif what == "head":
        heads = np.zeros_like(heads)
    elif what == "nan":
        maps[0, 1, 1], message = torch.nan, "NaN"
    else:
        heads, message = heads[:, :4], "need as many maps"
    with pytest.raises(ValueError, match=message):
        localise(maps, masks, heads, ["a"], seed=0)

"""Location of bleeds: boxes on the cropped picture, anatomy by hand, and drawn bleeds that are found."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import avg_pool2d

from ich_mil.errors import ModelError
from ich_mil.network.location import BONE, BRIGHT, PARTS, Location, anatomy, box_target
from ich_mil.network.settings import EncoderSettings
from ich_mil.study.head_box import HeadBox

BOX = np.array([[0.25, 0.5, 0.5, 0.75]])
BRAIN, BLOOD = 35, 65


def edges_of(target):
    """First and last row, first and last column that are set."""
    rows, columns = np.flatnonzero(target.any(1)), np.flatnonzero(target.any(0))
    return [int(end) for ends in (rows, columns) for end in (ends[0], ends[-1])]


def test_a_box_lies_where_the_picture_shows_it():
    whole = box_target(BOX, HeadBox(0, 0, 96, 96), (96, 96))
    assert edges_of(whole) == [48, 71, 24, 47]
    assert whole.sum() == 24 * 24
    half = box_target(BOX, HeadBox(48, 0, 96, 48), (96, 96))  # twice as large
    assert edges_of(half) == [0, 47, 48, 95]
    wide = box_target(BOX, HeadBox(24, 0, 72, 96), (96, 96))  # padded to a square by 24 above and below
    assert edges_of(wide) == [48, 71, 24, 47]
    assert box_target(BOX, HeadBox(0, 60, 40, 96), (96, 96)).sum() == 0


def head(row=None, column=None):
    """A slice (192, 192) of a skull around brain, with a square bleed of 24 pixels at this place."""
    y, x = np.mgrid[:192, :192] - 95.5
    radius = np.hypot(y, x)
    hu = np.where(radius < 80, BRAIN, np.where(radius < 90, 900, -1000)).astype(np.int16)
    if row is not None:
        hu[row : row + 24, column : column + 24] = BLOOD
    return hu


def test_only_what_bone_encloses_is_inside():
    open_skull = head()
    open_skull[:, 95:] = -1000
    inside, density = anatomy(torch.from_numpy(np.stack([head(), open_skull])))
    assert inside[0, 48, 48]
    assert not inside[0, 48, 2]  # air
    assert not inside[0, 48, 6]  # bone
    assert inside[0].mean() == pytest.approx(np.pi * 80**2 / 192**2, abs=0.02)
    assert inside[1, 48, 90]  # bone encloses nothing: all but bone
    assert density[0, 48, 48] == pytest.approx(BRAIN)
    assert density[0].max() <= BRAIN + 1e-3 < BONE


class Network:
    """In place of a CNN: maps (n, 2, 6, 6) of the mean density of a cell, and of its row."""

    encoder_settings = EncoderSettings(crop=False)
    encoder = ("pooling",)

    def parameters(self):
        return iter([torch.zeros(1)])

    def pictures(self):
        return SimpleNamespace(scan=lambda hu: hu[:, None].float())

    def frozen_maps(self, pictures, *, blocks):
        assert blocks == len(self.encoder)
        cells = avg_pool2d(pictures.clamp(0, 80), 32)
        rows = torch.arange(6.0)[:, None].expand_as(cells)
        return torch.cat([cells, rows], 1)


class Drawn:
    """In place of a prepared set: slices with one box each, by name."""

    def __init__(self, count, seed):
        self.places = np.random.default_rng(seed).integers(50, 120, (count, 2)).tolist()
        names = [f"s{n}" for n in range(count)]
        self.table = pd.DataFrame({"scan": names, "sop": names})
        self.boxes = {
            name: np.array([[x, y, x + 24, y + 24]]) / 192
            for name, (y, x) in zip(names, self.places, strict=True)
        }

    def hu(self, scan):
        return head(*self.places[int(scan[1:])])[None]

    def slices(self, scan):
        return self.table[self.table.scan == scan]


@pytest.fixture(scope="module")
def location():
    drawn = Drawn(30, seed=0)
    return Location.fit(Network(), drawn, drawn.table.scan[1:], drawn.boxes)


def test_drawn_bleeds_are_found(location):
    new = Drawn(10, seed=1)
    for scan, box in new.boxes.items():
        hu = torch.from_numpy(new.hu(scan))
        (found,) = location.maps(Network(), hu, [0])
        target = box_target(box, HeadBox.whole(hu), (192, 192))
        assert target.ravel()[found.argmax()]
        assert found[target].mean() > 0.8
        assert found[~target].mean() < 0.05
        assert not found[:4].any()  # outside the skull


def test_dense_parts_are_likelier():
    alone = Location(np.zeros(2), 0.0, 1.0, -10.0)  # cells say nothing
    (found,) = alone.maps(Network(), torch.from_numpy(head(60, 100)[None]), [0])
    assert found[70, 40] == pytest.approx(1 / (1 + np.exp(10 - BRIGHT * BRAIN)), rel=1e-4)
    assert found[36, 56] == pytest.approx(1 / (1 + np.exp(10 - BRIGHT * BLOOD)), rel=1e-2)


def test_slices_are_those_chosen(location):
    hu = torch.from_numpy(np.stack([head(60, 60), head(), head(110, 100)]))
    every, chosen = (location.maps(Network(), hu, which) for which in ([0, 1, 2], [2]))
    assert every.shape == (3, PARTS, PARTS)
    np.testing.assert_array_equal(chosen[0], every[2])


def test_slices_that_are_not_learned_do_not_count(location):
    drawn = Drawn(30, seed=0)
    drawn.boxes["s0"] = np.array([[0.0, 0.0, 0.1, 0.1]])
    again = Location.fit(Network(), drawn, drawn.table.scan[1:], drawn.boxes)
    np.testing.assert_array_equal(again.weight, location.weight)


def test_what_is_saved_is_loaded(location, tmp_path):
    assert Location.load(tmp_path, 2) is None
    location.save(tmp_path)
    again = Location.load(tmp_path, 2)
    np.testing.assert_array_equal(again.weight, location.weight)
    assert (again.offset, again.slope, again.intercept) == (
        location.offset,
        location.slope,
        location.intercept,
    )
    with pytest.raises(ModelError, match="does not fit the CNN"):
        Location.load(tmp_path, 3)

"""Varied scans: keyed by seed, epoch and scan; off means untouched; labels follow what was drawn."""

import numpy as np
import pandas as pd
import pytest
import torch

from ich_mil.data.bags import EpochSampler, ScanDataset, loader
from ich_mil.data.prepare import prepare
from ich_mil.training import augment as module
from ich_mil.training.augment import EpochKeys, VariedScans, augment
from ich_mil.windows import PRESETS
from tests import phantoms

WINDOWS = PRESETS["papers"]


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("augment")
    prepared = prepare("rsna", phantoms.rsna(folder / "set", studies=6), folder / "prepared", jobs=1)
    return ScanDataset(prepared, list(prepared.scans.index), windows=WINDOWS, image_size=32, keep=True)


def varied(scans, **changes):
    settings = {"seed": 0, "augmented": True, "bleeds": 0.5, "controls": 0.3} | changes
    return VariedScans(scans, **settings)


def negatives(scans):
    return [i for i, label in enumerate(scans.labels) if label == 0]


def test_off_is_the_scan_itself(scans):
    off = varied(scans, augmented=False, bleeds=0.0, controls=0.0)
    for i in range(len(scans)):
        one, other = off[5, i], scans[i]
        assert torch.equal(one.pictures, other.pictures)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.offsets, other.offsets)
        assert one.scans == other.scans


def test_seed_epoch_and_scan_decide_whatever_came_before(scans):
    first = varied(scans)[3, 1]
    busy = varied(scans)
    for i in range(len(scans)):
        busy[0, i]
    again = busy[3, 1]
    assert torch.equal(first.pictures, again.pictures)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.pictures, busy[4, 1].pictures)
    assert not torch.equal(first.pictures, varied(scans, seed=1)[3, 1].pictures)


def test_the_scan_not_its_place_is_the_key(scans):
    turned = ScanDataset(scans.prepared, scans.scans[::-1], windows=WINDOWS, image_size=32)
    last = len(scans) - 1
    assert torch.equal(varied(scans)[2, 0].pictures, varied(turned)[2, last].pictures)


def test_workers_see_the_same_pictures(scans):
    def pictures(workers):
        sampler = EpochKeys(len(scans), seed=0)
        batches = loader(varied(scans), bags=2, workers=workers, sampler=sampler)
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append(torch.cat([batch.pictures for batch in batches]))
        return epochs

    alone, helped = pictures(0), pictures(1)
    assert all(torch.equal(a, b) for a, b in zip(alone, helped, strict=True))
    assert alone[0].shape != alone[1].shape or not torch.equal(alone[0], alone[1])


def test_keys_are_the_order_of_the_plain_sampler():
    keys, plain = EpochKeys(9, seed=4), EpochSampler(9, seed=4)
    keys.set_epoch(2)
    plain.set_epoch(2)
    assert list(keys) == [(2, place) for place in plain]


def test_a_bleed_makes_a_negative_scan_positive_and_a_control_does_not(scans):
    bleeding = varied(scans, augmented=False, bleeds=1.0, controls=0.0)
    grey = varied(scans, augmented=False, bleeds=0.0, controls=1.0)
    for i in negatives(scans):
        assert bleeding[0, i].labels.tolist() == [1.0]
        assert grey[0, i].labels.tolist() == [0.0]
        for one in (bleeding[0, i], grey[0, i]):
            assert not torch.equal(one.pictures, scans[i].pictures)
    for i in set(range(len(scans))) - set(negatives(scans)):
        assert torch.equal(bleeding[0, i].pictures, scans[i].pictures)
        assert bleeding[0, i].labels.tolist() == [1.0]


def test_slices_without_the_shape_are_bit_identical(scans):
    bleeding = varied(scans, augmented=False, bleeds=1.0, controls=0.0)
    for i in negatives(scans):
        rng = module.generator_of(0, 0, scans.scans[i])
        rng.random()  # whether there is a bleed
        drawn = bleeding.drawn(i, rng, blood=True)
        assert drawn is not None
        rest = [n for n in range(len(scans[i].pictures)) if n not in set(drawn.slices.tolist())]
        assert rest
        now = bleeding[0, i].pictures
        assert torch.equal(now[rest], scans[i].pictures[rest])
        assert torch.equal(now[drawn.slices], drawn.pictures)
        assert int((drawn.pictures != scans[i].pictures[drawn.slices]).flatten(1).any(1).sum()) > 0


def test_windowing_some_slices_equals_windowing_the_scan(scans):
    hu = scans.prepared.hu(scans.scans[0])
    assert torch.equal(scans.window(hu[2:4]), scans[0].pictures[2:4])


def test_no_room_leaves_the_scan_negative(scans, monkeypatch):
    monkeypatch.setattr(module, "insert", lambda *_, **__: None)
    i = negatives(scans)[0]
    got = varied(scans, augmented=False, bleeds=1.0, controls=0.0)[0, i]
    assert got.labels.tolist() == [0.0]
    assert torch.equal(got.pictures, scans[i].pictures)


def test_shares_of_epochs(scans, monkeypatch):
    room = module.Drawn(torch.tensor([0]), scans[0].pictures[:1], torch.tensor([True]))
    monkeypatch.setattr(VariedScans, "drawn", lambda *_, **__: room)
    i = negatives(scans)[0]
    many = varied(scans, augmented=False, bleeds=0.5, controls=0.3)
    labels = [many[epoch, i].labels.item() for epoch in range(120)]
    # 4 standard deviations of a binomial of 120
    assert np.mean(labels) == pytest.approx(0.5, abs=4 * (0.25 / 120) ** 0.5)


class Fixed:
    """A generator whose uniform draws are set: flip?, angle, zoom, shifts, noise, brightness."""

    def __init__(self, *, flip=0.9, angle=0.0, zoom=0.0, shift=(0.0, 0.0), noise=0.0, brighter=0.0):
        self.flip = flip
        self.draws = [angle, zoom, np.array(shift), noise, brighter]

    def random(self):
        return self.flip

    def uniform(self, *_):
        return self.draws.pop(0)

    def standard_normal(self, size, dtype):
        return np.ones(size, dtype)


@pytest.fixture
def pictures():
    return torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_no_change_is_the_identity(pictures):
    torch.testing.assert_close(augment(pictures, WINDOWS, Fixed()), pictures, rtol=1e-5, atol=1e-6)


def test_flip_and_quarter_turn_by_hand(pictures):
    flipped = augment(pictures, WINDOWS, Fixed(flip=0.1))
    torch.testing.assert_close(flipped, pictures.flip(-1), rtol=1e-5, atol=1e-6)
    turned = augment(pictures, WINDOWS, Fixed(angle=90.0))
    torch.testing.assert_close(turned, torch.rot90(pictures, 1, (-2, -1)), rtol=1e-5, atol=1e-5)


def test_a_shift_of_one_pixel_brings_in_air(pictures):
    moved = augment(pictures, WINDOWS, Fixed(shift=(2 / 8, 0.0)))  # the grid runs from -1 to 1
    torch.testing.assert_close(moved[..., :-1], pictures[..., 1:], rtol=1e-5, atol=1e-6)
    assert (moved[..., -1] == 0).all()


def test_four_hu_brighter_is_four_hu_in_every_window():
    grey = torch.full((1, 3, 4, 4), 0.4)
    brighter = augment(grey, WINDOWS, Fixed(brighter=3.0, noise=1.0))
    for channel, (_, width) in enumerate(WINDOWS):
        torch.testing.assert_close(brighter[:, channel], torch.full((1, 4, 4), 0.4 + 4 / width))
    outside = torch.tensor([0.0, 1.0]).repeat(1, 3, 4, 2)
    assert torch.equal(augment(outside, WINDOWS, Fixed(brighter=3.0)), outside)


def test_all_slices_of_a_scan_move_alike():
    same = torch.rand(1, 3, 16, 16).expand(4, -1, -1, -1).contiguous()
    rng = np.random.default_rng(1)
    rng_quiet = Fixed(angle=rng.uniform(-15, 15), zoom=0.05, shift=(0.1, -0.05), brighter=2.0)
    got = augment(same, WINDOWS, rng_quiet)
    assert all(torch.equal(got[0], one) for one in got)


def test_pictures_stay_in_range(scans):
    for epoch in range(5):
        got = varied(scans)[epoch, 0].pictures
        assert 0 <= float(got.min()) <= float(got.max()) <= 1
        assert not pd.isna(got.sum().item())

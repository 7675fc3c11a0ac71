"""Varied scans: keyed by seed, epoch and scan; off means untouched; labels follow what was drawn."""

import numpy as np
import pytest
import torch

from ich_mil.data.bags import Pictures, ScanDataset
from ich_mil.data.loader import loader
from ich_mil.dicom.head_box import HeadBox, head_box
from ich_mil.synthetic.bleeds import Insertion, inside_skull
from ich_mil.training import augment as module
from ich_mil.training.augment import VariedScans, draw_variation, generator_of
from ich_mil.window_presets import PRESETS

WINDOWS = PRESETS["papers"]


@pytest.fixture(scope="module")
def scans(prepared):
    return ScanDataset(prepared, list(prepared.scans.index[:6]))


def varied(scans, **changes):
    settings = {"seed": 0, "augmented": True, "bleeds": 0.5, "controls": 0.3} | changes
    return VariedScans(scans, **settings)


def seen(batch):
    """The pictures of a batch, varied where it says so."""
    return Pictures(WINDOWS, 32)(batch)


def negatives(scans):
    return [i for i, label in enumerate(scans.labels) if label == 0]


def test_off_is_the_scan_itself(scans):
    off = varied(scans, augmented=False, bleeds=0.0, controls=0.0)
    for i in range(len(scans)):
        one, other = off[5, i], scans[i]
        assert torch.equal(one.hu[0], other.hu[0])
        assert one.changed[0].tolist() == []
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.offsets, other.offsets)
        assert (one.scans, one.variations) == (other.scans, ())


def test_seed_epoch_and_scan_decide_whatever_came_before(scans):
    first = varied(scans)[3, 1]
    busy = varied(scans)
    for i in range(len(scans)):
        busy[0, i]
    again = busy[3, 1]
    assert torch.equal(seen(first), seen(again))
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(seen(first), seen(busy[4, 1]))
    assert not torch.equal(seen(first), seen(varied(scans, seed=1)[3, 1]))
    assert generator_of(0, 3, "a").random() != generator_of(0, 3, "b").random()


def test_threads_other_batches_and_other_places_do_not_change_a_scan(scans):
    steps = [[(1, 0), (1, 1), (1, 2)], [(1, 1)]]
    packed, alone = loader(varied(scans), workers=0, steps=steps)
    helped, _ = loader(varied(scans), workers=3, steps=steps)
    assert torch.equal(seen(packed), seen(helped))
    assert 0 <= float(seen(packed).min()) <= float(seen(packed).max()) <= 1
    start, end = packed.offsets[1:3].tolist()
    assert torch.equal(seen(packed)[start:end], seen(alone))
    turned = ScanDataset(scans.prepared, scans.scans[::-1])
    assert torch.equal(seen(varied(scans)[2, 0]), seen(varied(turned)[2, len(scans) - 1]))


def test_a_bleed_makes_a_negative_scan_positive_and_a_control_does_not(scans):
    bleeding = varied(scans, augmented=False, bleeds=1.0, controls=0.0)
    grey = varied(scans, augmented=False, bleeds=0.0, controls=1.0)
    for i in negatives(scans):
        assert bleeding[0, i].labels.tolist() == [1.0]
        assert grey[0, i].labels.tolist() == [0.0]
        for one in (bleeding[0, i], grey[0, i]):
            assert not torch.equal(seen(one), seen(scans[i]))
    for i in set(range(len(scans))) - set(negatives(scans)):
        assert torch.equal(bleeding[0, i].hu[0], scans[i].hu[0])
        assert bleeding[0, i].labels.tolist() == [1.0]


def test_slices_without_the_shape_are_bit_identical_and_the_file_is_untouched(scans):
    bleeding = varied(scans, augmented=False, bleeds=1.0, controls=0.0)
    for i in negatives(scans):
        before = scans[i].hu[0].clone()
        one = bleeding[0, i]
        (changed,) = one.changed
        rest = [n for n in range(len(before)) if n not in set(changed.tolist())]
        assert rest
        assert torch.equal(one.hu[0][rest], before[rest])
        inside = inside_skull(before.numpy())
        cell = before.shape[1] // inside.shape[1]
        inside = inside.repeat(cell, 1).repeat(cell, 2)
        assert not ((one.hu[0] != before).numpy() & ~inside).any()
        assert int((one.hu[0][changed] != before[changed]).flatten(1).any(1).sum()) > 0
        assert torch.equal(scans[i].hu[0], before)


def test_no_room_leaves_the_scan_negative(scans, monkeypatch):
    monkeypatch.setattr(module, "insert", lambda *_, **__: None)
    i = negatives(scans)[0]
    got = varied(scans, augmented=False, bleeds=1.0, controls=0.0)[0, i]
    assert got.labels.tolist() == [0.0]
    assert torch.equal(got.hu[0], scans[i].hu[0])
    assert len(got.changed[0]) == 0


def test_shares_of_epochs(scans, monkeypatch):
    room = Insertion(np.array([0]), scans[0].hu[0][:1].numpy(), np.array([True]))
    monkeypatch.setattr(VariedScans, "drawn", lambda *_, **__: room)
    i = negatives(scans)[0]
    many = varied(scans, augmented=False, bleeds=0.5, controls=0.3)
    labels = [many[epoch, i].labels.item() for epoch in range(120)]
    # 4 standard deviations of a binomial of 120
    assert np.mean(labels) == pytest.approx(0.5, abs=4 * (0.25 / 120) ** 0.5)


def test_what_is_drawn_lies_in_its_ranges():
    rng = np.random.default_rng(0)
    drawn = [draw_variation(rng) for _ in range(300)]
    linear = torch.stack([one.matrix[:, :2] for one in drawn])
    size = linear.det().abs().sqrt()
    assert 1 / 1.1 < float(size.min()) < 0.93
    assert 1.07 < float(size.max()) < 1 / 0.9
    flips = float((linear.det() < 0).float().mean())
    assert 0.4 < flips < 0.6
    angle = torch.rad2deg(torch.atan2(linear[:, 1, 0] / linear[:, 0, 0].sign(), linear[:, 1, 1]))
    assert 13 < float(angle.abs().max()) < 15.01
    shift = torch.stack([one.matrix[:, 2] for one in drawn])
    for way in (shift, -shift):
        assert (way.amax(0) > 0.11).all()
        assert (way.amax(0) <= 0.12).all()
    brighter = [one.brighter for one in drawn]
    assert -3.0 <= min(brighter) < -2.8
    assert 2.8 < max(brighter) <= 3.0
    assert 0 <= min(one.noise for one in drawn) < max(one.noise for one in drawn) <= 3.0
    assert len({one.seed for one in drawn}) == 300


def test_a_cropped_scan_shows_its_head_also_where_something_is_drawn_in(scans):
    prepared, names = scans.prepared, scans.scans
    whole, cropped = ScanDataset(prepared, names), ScanDataset(prepared, names, crop=True)
    box = head_box(prepared.hu(names[0]))
    assert box != HeadBox.whole(prepared.hu(names[0]))
    assert torch.equal(cropped[0].hu[0], torch.from_numpy(box.crop(whole[0].hu[0].numpy())))
    negative = cropped.labels.index(0)
    varied = VariedScans(cropped, seed=0, augmented=False, bleeds=1.0 - 1e-9, controls=0.0)
    drawn = next(one for epoch in range(20) if len((one := varied[epoch, negative]).changed[0]))
    assert drawn.hu[0].shape == cropped[negative].hu[0].shape
    before = cropped[negative].hu[0]
    assert not torch.equal(drawn.hu[0], before)

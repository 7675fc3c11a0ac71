"""Varied scans: keyed by seed, epoch and scan; off means untouched."""

import numpy as np
import pytest
import torch

from ich_mil.network.bags import Pictures, ScanDataset
from ich_mil.network.loader import loader
from ich_mil.network.training.augment import VariedScans, draw_variation, generator_of
from ich_mil.study.window_presets import PRESETS


@pytest.fixture(scope="module")
def scans(prepared):
    return ScanDataset(prepared, list(prepared.scans.index[:6]))


def varied(scans, **changes):
    return VariedScans(scans, **{"seed": 0, "augmented": True} | changes)


def seen(batch):
    """The pictures of a batch, varied where it says so."""
    return Pictures(PRESETS["papers"], 32)(batch)


def test_off_is_the_scan_itself(scans):
    off = varied(scans, augmented=False)
    for i in range(len(scans)):
        one, other = off[5, i], scans[i]
        assert torch.equal(one.hu[0], other.hu[0])
        assert torch.equal(one.labels, other.labels)
        assert (one.scans, one.variations) == (other.scans, ())


def test_seed_epoch_and_scan_decide_whatever_came_before(scans):
    first = varied(scans)[3, 1]
    busy = varied(scans)
    for i in range(len(scans)):
        busy[0, i]
    assert torch.equal(seen(first), seen(busy[3, 1]))
    assert not torch.equal(seen(first), seen(busy[4, 1]))
    assert not torch.equal(seen(first), seen(varied(scans, seed=1)[3, 1]))
    assert generator_of(0, 3, "a").random() != generator_of(0, 3, "b").random()


def test_draws_are_those_of_earlier_versions(scans):
    """A negative scan has one draw more, so that published figures stay."""
    for i, label in enumerate(scans.labels):
        rng = generator_of(0, 2, scans.scans[i])
        if label == 0:
            rng.random()
        (variation,) = varied(scans)[2, i].variations
        assert variation.seed == draw_variation(rng).seed


def test_processes_and_batches_change_nothing(scans):
    steps = [[(1, 0), (1, 1), (1, 2)], [(1, 1)]]
    packed, alone = loader(varied(scans), workers=0, steps=steps)
    helped, _ = loader(varied(scans), workers=3, steps=steps)
    assert torch.equal(seen(packed), seen(helped))
    assert 0 <= float(seen(packed).min()) <= float(seen(packed).max()) <= 1
    start, end = packed.offsets[1:3].tolist()
    assert torch.equal(seen(packed)[start:end], seen(alone))


def test_what_is_drawn_lies_in_its_ranges():
    rng = np.random.default_rng(0)
    drawn = [draw_variation(rng) for _ in range(300)]
    linear = torch.stack([one.matrix[:, :2] for one in drawn])
    size = linear.det().abs().sqrt()
    assert 1 / 1.1 < float(size.min()) < 0.93
    assert 1.07 < float(size.max()) < 1 / 0.9
    assert 0.4 < float((linear.det() < 0).float().mean()) < 0.6  # flips
    angle = torch.rad2deg(torch.atan2(linear[:, 1, 0] / linear[:, 0, 0].sign(), linear[:, 1, 1]))
    assert 13 < float(angle.abs().max()) < 15.01
    shift = torch.stack([one.matrix[:, 2] for one in drawn])
    for way in (shift, -shift):
        assert (way.amax(0) > 0.11).all()
        assert (way.amax(0) <= 0.12).all()
    brighter = [one.brighter for one in drawn]
    assert -3.0 <= min(brighter) < -2.8 < 2.8 < max(brighter) <= 3.0
    assert 0 <= min(one.noise for one in drawn) < max(one.noise for one in drawn) <= 3.0
    assert len({one.seed for one in drawn}) == 300

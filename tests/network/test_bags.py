"""Packed bags: pictures made where a batch lies and kept where that pays, steps of equal load."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ich_mil.network import bags as module
from ich_mil.network.bags import Batch, Pictures, ScanDataset, StepSampler, collate
from ich_mil.network.pictures import Variation
from ich_mil.network.windows import apply_windows, resize
from ich_mil.ranks import Ranks
from ich_mil.study.window_presets import PRESETS

WINDOWS = PRESETS["papers"]


def a_batch(*sizes, side=20, seed=0):
    rng = np.random.default_rng(seed)
    hu = tuple(torch.from_numpy(rng.integers(-1000, 1500, (n, side, side), dtype=np.int16)) for n in sizes)
    offsets = torch.tensor([0, *np.cumsum(sizes).tolist()])
    return Batch(hu, offsets, torch.zeros(len(sizes)), tuple(f"s{i}" for i in range(len(sizes))))


def by_hand(hu):
    """Windows by the formula in float64, then resized."""
    level, width = (torch.tensor([w[i] for w in WINDOWS], dtype=torch.float64)[:, None, None] for i in (0, 1))
    return resize(((hu.double()[:, None] - level) / width + 0.5).clamp(0, 1), 12)


def test_an_item_is_a_whole_scan_as_stored(dataset, prepared):
    for i, scan in enumerate(prepared.scans.index):
        one = dataset[i]
        assert torch.equal(one.hu[0], torch.from_numpy(prepared.hu(scan).copy()))
        assert one.hu[0].dtype == torch.int16
        assert one.offsets.tolist() == [0, prepared.scans.slices[scan]]
        assert one.labels.tolist() == [prepared.scans.label[scan]]
        assert one.labels.dtype == torch.float32
        assert one.scans == (scan,)
    assert dataset.sizes.tolist() == prepared.scans.slices.tolist()


def test_items_are_copies_of_the_file(dataset):
    first = dataset[0].hu[0]
    before = first.clone()
    first += 7
    assert torch.equal(dataset[0].hu[0], before)


def test_kept_scans_are_read_once(prepared, monkeypatch):
    """And are the same copies, up to the limit in bytes."""
    scans, read = list(prepared.scans.index), []
    hu = type(prepared).hu
    monkeypatch.setattr(type(prepared), "hu", lambda of, scan: read.append(scan) or hu(of, scan))
    monkeypatch.setattr(module, "KEEP_HU_BYTES", hu(prepared, scans[0]).nbytes)
    kept = ScanDataset(prepared, scans[:2], keep=True)
    first = kept[0].hu[0]
    before = first.clone()
    first += 7
    assert torch.equal(kept[0].hu[0], before)
    for _ in range(2):
        assert torch.equal(kept[1].hu[0], torch.from_numpy(hu(prepared, scans[1])))
    assert read == [scans[0], scans[1], scans[1]]


def test_packing_keeps_variations_with_their_scans():
    def varied(seed):
        return replace(a_batch(seed, seed=seed), variations=(Variation(torch.eye(2, 3), 0, 0, seed),))

    both = collate([varied(2), varied(3)])
    assert both.offsets.tolist() == [0, 2, 5]
    assert [one.seed for one in both.variations] == [2, 3]


def test_pictures_are_windowed_then_resized(device):
    batch = a_batch(2, 1, 4)
    got = Pictures(WINDOWS, 12)(batch.to(device)).cpu()
    torch.testing.assert_close(got.double(), by_hand(torch.cat(batch.hu)), rtol=0, atol=2e-6)
    assert got.dtype == torch.float32


def test_scans_of_different_width_share_a_batch():
    wide, tall = a_batch(2, side=30), a_batch(3, side=14)
    got = Pictures(WINDOWS, 12)(collate([wide, tall]))
    torch.testing.assert_close(got[:2], Pictures(WINDOWS, 12)(wide), rtol=0, atol=0)
    torch.testing.assert_close(got[2:], Pictures(WINDOWS, 12)(tall), rtol=0, atol=0)


def test_offsets_stay_on_the_host():
    moved = a_batch(2, 3).to(torch.device("meta"))
    assert moved.offsets.device.type == "cpu"
    assert {one.device.type for one in (*moved.hu, moved.labels)} == {"meta"}


@pytest.mark.parametrize("most", [0, 1, 2])
def test_pictures_are_cached_if_all_fit(monkeypatch, most):
    made, batch = [], a_batch(5)
    count = lambda hu, *_: made.append(len(hu)) or resize(apply_windows(hu, WINDOWS), 12)  # noqa: E731
    monkeypatch.setattr(module, "to_pictures", count)
    monkeypatch.setattr("ich_mil.network.pictures.to_pictures", count)
    monkeypatch.setattr(module, "KEEP_BYTES", 3 * 12 * 12 * 4 * 5 - 1 + most)
    pictures = Pictures(WINDOWS, 12, slices=5)
    first = pictures(batch).clone()
    pictures(batch).zero_()  # the caller's, not the cache
    assert torch.equal(pictures(batch), first)
    assert made == ([5] if most else [5, 5, 5])


@pytest.mark.parametrize("kept", [0, 5], ids=["made", "kept"])
def test_each_scan_is_varied_as_its_batch_says(kept):
    still, flip = torch.eye(2, 3), torch.tensor([[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    batch, of = a_batch(2, 3), Pictures(WINDOWS, 12, slices=kept)
    plain = of(batch).clone()
    varied = of(replace(batch, variations=tuple(Variation(one, 0.0, 0.0, 0) for one in (still, flip))))
    torch.testing.assert_close(varied, torch.cat([plain[:2], plain[2:].flip(-1)]), rtol=0, atol=1e-5)


SIZES = torch.randint(20, 60, (41,), generator=torch.Generator().manual_seed(0))


def test_order_depends_on_seed_and_epoch():
    sampler = StepSampler(SIZES, bags=4, seed=3)
    first = list(sampler)
    assert sorted(place for step in first for _, place in step) == list(range(41))
    assert {epoch for step in first for epoch, _ in step} == {0}
    assert list(sampler) == first
    plans = [_plan(StepSampler(SIZES, bags=4, seed=seed), epoch) for seed in (3, 4) for epoch in (0, 1)]
    assert all(plans.count(plan) == 1 for plan in plans)


def test_steps_have_equal_loads():
    sampler = StepSampler(SIZES[:40], bags=4, seed=0)
    assert len(sampler) == len(list(sampler)) == 10
    mean = float(SIZES[:40].sum()) / 10
    for epoch in range(50):
        steps = _plan(sampler, epoch)
        assert {len(step) for step in steps} == {4}
        # the longest step decides how much memory is needed: by chance 26 % above the mean
        assert max(float(SIZES[torch.tensor(step)].sum()) for step in steps) < 1.15 * mean
    together = {frozenset(step) for epoch in range(5) for step in _plan(sampler, epoch)}
    assert len(together) == 50, "the same scans meet again and again"
    sizes = {len(step) for step in StepSampler(SIZES, bags=4, seed=0).plan()}
    assert sizes == {3, 4}


def _plan(sampler, epoch):
    sampler.set_epoch(epoch)
    return sampler.plan()


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_the_steps_of_one(size):
    plan = StepSampler(SIZES, bags=4, seed=1).plan()
    shares = [list(StepSampler(SIZES, bags=4, seed=1, ranks=Ranks(rank, size))) for rank in range(size)]
    assert {len(share) for share in shares} == {len(plan)}
    for step, *parts in zip(plan, *shares, strict=True):
        assert min(len(part) for part in parts) >= 1
        assert sorted(place for part in parts for _, place in part) == sorted(step)
        loads = [sum(int(SIZES[place]) for _, place in part) for part in parts]
        assert max(loads) - min(loads) <= SIZES[torch.tensor(step)].max()


@pytest.mark.parametrize(("scans", "bags", "least"), [(41, 2, 1), (10, 3, 2), (2, 9, 2)])
def test_steps_with_fewer_scans_than_ranks(scans, bags, least):
    with pytest.raises(ValueError, match=f"leave {least} for some of them, .* among 3 processes"):
        StepSampler(SIZES[:scans], bags=bags, seed=0, ranks=Ranks(0, 3))


def test_neighbours_are_channels():
    both = collate([a_batch(3, seed=1), a_batch(2, seed=2)])
    alone = Pictures(WINDOWS, 12)(both)
    w = len(WINDOWS)
    got = Pictures(WINDOWS, 12, neighbours=1)(both)
    assert got.shape == (5, 3 * w, 12, 12)
    below, above = [0, 0, 1, 3, 3], [1, 2, 2, 4, 4]
    for first, rows in ((0, below), (w, range(5)), (2 * w, above)):
        assert torch.equal(got[:, first : first + w], alone[list(rows)])
    own = Pictures(WINDOWS, 12, neighbours=1).scan(both.hu[0])
    assert torch.equal(own, got[:3])


def test_scan_used_slice_by_slice(prepared):
    whole, apart = prepared.scans.index[:2]
    labels = prepared.slices(apart).slice_label.tolist()
    dataset = ScanDataset(prepared, [whole, apart], in_slices=[apart, "another"])
    both = collate([dataset[0], dataset[1]])
    n = prepared.scans.slices[whole]
    assert both.offsets.tolist() == [0, *range(n, n + len(labels) + 1)]
    assert both.labels.tolist() == dataset.bag_labels == [prepared.scans.label[whole], *labels]
    assert len(set(labels)) > 1
    assert both.scans == (whole, apart)
    assert dataset.labels == prepared.scans.label[[whole, apart]].tolist()
    assert dataset.sizes.tolist() == [n, len(labels)]
    alone = collate([ScanDataset(prepared, [scan])[0] for scan in (whole, apart)])
    assert all(torch.equal(a, b) for a, b in zip(both.hu, alone.hu, strict=True))

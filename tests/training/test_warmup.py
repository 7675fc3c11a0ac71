"""The warm-up learns its own task, is reproducible, and says where it cannot be done."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from ich_mil.data.bags import Pictures, ScanDataset
from ich_mil.encoders.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.encoders.slice_encoders import EncoderSettings
from ich_mil.errors import DataError
from ich_mil.synthetic.bleeds import Insertion
from ich_mil.training import warmup
from ich_mil.training.augment import VariedScans
from ich_mil.training.warmup import drawn_slices, warm_up
from ich_mil.window_presets import PRESETS
from tests.training.heads import head

WINDOWS = PRESETS["papers"]
PICTURES = Pictures(WINDOWS, 32)
ENCODER = EncoderSettings(size=32)
CNN = CnnSettings(pool="mean", dropout=0.0)


class Heads:
    """A prepared set of drawn heads: three negative, one positive."""

    def __init__(self, hu):
        self._hu = hu
        labels = {f"s{i}": int(i == 3) for i in range(4)}
        self.scans = pd.DataFrame({"label": labels, "slices": len(hu)})

    def hu(self, scan):
        return self._hu

    def slices(self, scan):
        return pd.DataFrame({"position_mm": np.arange(len(self._hu)) * 5.0})


def scans(hu):
    dataset = ScanDataset(Heads(hu), [f"s{i}" for i in range(4)])
    return VariedScans(dataset, seed=0, augmented=False, bleeds=0.5, controls=0.3)


@pytest.fixture(scope="module")
def drawn():
    return scans(head())


@pytest.mark.slow
def test_its_own_loss_falls(drawn, monkeypatch):
    monkeypatch.setattr(warmup, "LEARNING_RATE", 5e-3)  # fewer steps will do
    monkeypatch.setattr(warmup, "SLICES", 24)
    monkeypatch.setattr(warmup, "vary", lambda pictures, *_: torch.cat(pictures))
    torch.manual_seed(0)
    losses = warm_up(AttentionCnn(ENCODER, CNN), drawn, PICTURES, steps=80, seed=0)
    assert len(losses) == 80
    assert np.mean(losses[:5]) > 0.6
    assert np.mean(losses[-10:]) < 0.4


def test_it_is_reproducible_and_trains_all_but_attention(drawn, monkeypatch):
    monkeypatch.setattr(warmup, "SLICES", 8)
    monkeypatch.setattr(warmup, "DRAWS", 1)
    states = []
    for others in range(2):
        torch.manual_seed(0)
        model = AttentionCnn(ENCODER, replace(CNN, dropout=0.3)).eval()
        torch.rand(others)  # what others draw does not matter, nor how the CNN was left
        before = {name: value.clone() for name, value in model.named_parameters()}
        warm_up(model, drawn, PICTURES, steps=3, seed=1)
        states.append(model.state_dict())
        moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
        assert not any("attention" in name for name in moved)
        assert {"classifier.weight", "project.weight"} <= moved
        assert all(bool(value.any()) for name, value in model.named_buffers() if "running_mean" in name)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_each_slice_of_each_step_varies_in_its_own_way(drawn, monkeypatch):
    vary, seen = warmup.vary, []

    def note(pictures, variations, windows):
        seen.extend(one.seed for one in variations)
        return vary(pictures, variations, windows)

    monkeypatch.setattr(warmup, "vary", note)
    monkeypatch.setattr(warmup, "SLICES", 8)
    monkeypatch.setattr(warmup, "DRAWS", 1)
    for seed in (0, 1):
        warm_up(AttentionCnn(ENCODER, CNN), drawn, PICTURES, steps=2, seed=seed)
    assert len(set(seen)) == len(seen) == 2 * 2 * 8


@pytest.mark.parametrize("most", [12, 24])
def test_each_chunk_has_the_mixture_of_the_step(drawn, monkeypatch, most):
    """A chunk of blood alone would have batch statistics that tell the label."""
    kinds = [[torch.full((1, 3, 32, 32), shade)] for shade in (1.0, 0.5, 0.0)]  # blood, grey, as it is
    monkeypatch.setattr(warmup, "drawn_slices", lambda *_: kinds)
    monkeypatch.setattr(warmup, "vary", lambda pictures, *_: torch.cat(pictures))
    model, chunks = AttentionCnn(ENCODER, replace(CNN, chunk_slices=most)), []
    model.encoder[0].register_forward_pre_hook(lambda _, given: chunks.append(given[0][:, 0, 0, 0].tolist()))
    warm_up(model, drawn, PICTURES, steps=1, seed=0)
    assert len(chunks) >= 48 / most
    for shades in chunks:
        assert len(shades) == most
        assert [shades.count(shade) / most for shade in (1.0, 0.5, 0.0)] == [0.5, 0.25, 0.25]


def test_slices_that_show_it_are_used_and_positive_scans_take_no_part(drawn, monkeypatch):
    asked = []

    def fake(self, index, rng, *, blood):
        asked.append((index, blood))
        hu = np.full((2, 32, 32), 1000, np.int16)
        hu[0] = 200 if blood else 30
        return Insertion(np.array([1, 2]), hu, np.array([True, False]))

    monkeypatch.setattr(VariedScans, "drawn", fake)
    blood, grey, plain = map(torch.cat, drawn_slices(drawn, PICTURES, np.random.default_rng(0)))
    assert sorted(set(asked)) == [(i, kind) for i in range(3) for kind in (False, True)]
    assert len(blood) == len(grey) == 3 * warmup.DRAWS
    assert (blood == 1.0).all()
    # 30 HU in the windows (40, 80), (80, 200), (30, 30)
    assert all((grey[:, channel] == level).all() for channel, level in enumerate((0.375, 0.25, 0.5)))
    assert torch.equal(plain.mean(), torch.cat([PICTURES(drawn.scans[0])] * 3).mean())
    # of many negative scans some take part, others with another seed
    monkeypatch.setattr(warmup, "SCANS", 2)
    chosen = set()
    for seed in range(6):
        asked.clear()
        drawn_slices(drawn, PICTURES, np.random.default_rng(seed))
        chosen.add(tuple(sorted({index for index, _ in asked})))
    assert chosen == {(0, 1), (0, 2), (1, 2)}


def test_scans_are_drawn_into_until_their_pictures_fill_the_memory_given(drawn, monkeypatch):
    def drawn_into():
        return sum(map(len, drawn_slices(drawn, PICTURES, np.random.default_rng(0))[2])) / len(head())

    fake = Insertion(np.array([1]), np.zeros((1, 32, 32), np.int16), np.array([True]))
    monkeypatch.setattr(VariedScans, "drawn", lambda *_, **__: fake)
    picture = 3 * 32 * 32 * 4  # bytes of float32
    scan = (2 * warmup.DRAWS + len(head())) * picture
    for bound, scans in ((1, 1), (scan, 1), (scan + 1, 2), (2 * scan + 1, 3), (9 * scan, 3)):
        monkeypatch.setattr(warmup, "KEPT", bound)
        assert drawn_into() == scans


def test_no_room_in_any_scan_is_told():
    air = np.full((4, 64, 64), -1000, np.int16)
    with pytest.raises(DataError, match=r"room .* training\.warmup_steps"):
        drawn_slices(scans(air), PICTURES, np.random.default_rng(0))

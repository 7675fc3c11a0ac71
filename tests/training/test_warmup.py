"""The warm-up learns its own task, is reproducible, and says where it cannot be done."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ich_mil.data.bags import ScanDataset
from ich_mil.models.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.training import warmup
from ich_mil.training.augment import Drawn, VariedScans
from ich_mil.training.warmup import drawn_slices, warm_up
from ich_mil.windows import PRESETS
from tests.training.heads import head

WINDOWS = PRESETS["papers"]
CNN = CnnSettings(image_size=32, pool="mean", dropout=0.0)


class Heads:
    """A prepared set of drawn heads: three negative, one positive."""

    def __init__(self, hu):
        self._hu = hu
        self.scans = _Rows({f"s{i}": int(i == 3) for i in range(4)}, len(hu))

    def hu(self, scan):
        return self._hu

    def slices(self, scan):
        return SimpleNamespace(position_mm=SimpleNamespace(to_numpy=lambda _: np.arange(len(self._hu)) * 5.0))


class _Rows:
    def __init__(self, labels, slices):
        self.labels, self.slices = labels, slices

    @property
    def loc(self):
        import pandas as pd

        return pd.DataFrame({"label": self.labels, "slices": self.slices}).loc


def scans(hu):
    dataset = ScanDataset(Heads(hu), [f"s{i}" for i in range(4)], windows=WINDOWS, image_size=32, keep=True)
    return VariedScans(dataset, seed=0, augmented=False, bleeds=0.5, controls=0.3)


@pytest.fixture(scope="module")
def drawn():
    return scans(head())


def test_its_own_loss_falls(drawn, monkeypatch):
    monkeypatch.setattr(warmup, "LEARNING_RATE", 5e-3)  # fewer steps will do
    monkeypatch.setattr(warmup, "SLICES", 24)
    monkeypatch.setattr(warmup, "augment", lambda pictures, *_: pictures)
    torch.manual_seed(0)
    losses = warm_up(AttentionCnn(CNN, windows=3), drawn, steps=80, seed=0)
    assert len(losses) == 80
    assert np.mean(losses[:5]) > 0.6
    assert np.mean(losses[-10:]) < 0.4


def test_it_is_reproducible_and_trains_all_but_attention(drawn):
    states = []
    for _ in range(2):
        torch.manual_seed(0)
        model = AttentionCnn(CNN, windows=3)
        before = {name: value.clone() for name, value in model.named_parameters()}
        warm_up(model, drawn, steps=3, seed=1)
        states.append(model.state_dict())
        moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
        assert not any("attention" in name for name in moved)
        assert {"classifier.weight", "project.weight"} <= moved
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_slices_that_show_it_are_used_and_positive_scans_take_no_part(drawn, monkeypatch):
    asked = []

    def fake(self, index, rng, *, blood):
        asked.append((index, blood))
        level = 1.0 if blood else 0.5
        pictures = torch.stack([torch.full((3, 32, 32), level), torch.zeros(3, 32, 32)])
        return Drawn(torch.tensor([1, 2]), pictures, torch.tensor([True, False]))

    monkeypatch.setattr(VariedScans, "drawn", fake)
    blood, grey, plain = drawn_slices(drawn, np.random.default_rng(0))
    assert sorted(set(asked)) == [(i, kind) for i in range(3) for kind in (False, True)]
    assert len(blood) == len(grey) == 3 * warmup.DRAWS
    assert (blood == 1.0).all()
    assert (grey == 0.5).all()
    assert torch.equal(plain.mean(), torch.cat([drawn.scans[0].pictures] * 3).mean())


def test_no_room_in_any_scan_is_told():
    air = np.full((4, 64, 64), -1000, np.int16)
    with pytest.raises(ValueError, match="no negative training scan has room"):
        drawn_slices(scans(air), np.random.default_rng(0))

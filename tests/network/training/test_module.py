"""Training steps: loss and AUC over scans, dropout masks, optimiser."""

import math
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ich_mil.errors import DataError
from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.bags import Batch, Pictures
from ich_mil.network.pictures import Variation
from ich_mil.network.slice_encoders import EncoderSettings
from ich_mil.network.training import module as training
from ich_mil.network.training.module import MilModule, class_weights
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.ranks import Ranks
from ich_mil.study.window_presets import PRESETS

WEIGHTS = torch.tensor([0.5, 2.0])


def a_module(model, *, seed=0, **settings):
    pictures = Pictures(PRESETS["papers"], 32)
    settings = TrainingSettings(**settings)
    return MilModule(model, settings, WEIGHTS, pictures=pictures, seed=seed)


def a_batch(labels, slices=1):
    generator = torch.Generator().manual_seed(0)
    hu = torch.randint(0, 80, (len(labels), slices, 32, 32), generator=generator, dtype=torch.int16)
    scans = tuple(f"s{b}" for b in range(len(labels)))
    return Batch(tuple(hu), torch.arange(len(labels) + 1) * slices, torch.tensor(labels), scans)


class Says(nn.Module):
    """In place of a CNN: its outputs one after another."""

    def __init__(self, *logits):
        super().__init__()
        self.frozen, self.logits = 0, list(logits)

    def frozen_maps(self, pictures):
        return pictures

    def scan_logits(self, *_):
        return torch.tensor(self.logits.pop(0))


def test_logged_metrics_are_over_all_scans():
    logits, labels = [-0.2, 0.3, 2.0, -1.0], [1.0, 0.0, 1.0, 0.0]  # a logit between 0 and 1 is no probability
    of_all = torch.tensor(logits), torch.tensor(labels)
    wanted = float(binary_cross_entropy_with_logits(*of_all, weight=WEIGHTS[of_all[1].long()]))
    module = a_module(Says())
    for _ in range(2):  # an epoch does not keep the losses of the one before
        logged = {}
        module.model.logits = [logits[:3], logits[3:], logits[:1], logits[1:]]
        with mock.patch.object(module, "log", lambda name, value, **_: logged.update({name: float(value)})):  # noqa: B023
            for own in (labels[:3], labels[3:]):
                module.training_step(a_batch(own), 0)
            for own in (labels[:1], labels[1:]):
                module.validation_step(a_batch(own), 0)
            module.on_validation_epoch_end()
        assert logged.pop("val_auc") == roc_auc_score(labels, logits) == 0.75
        assert logged == {name: pytest.approx(wanted, rel=1e-6) for name in ("train_loss", "val_loss")}


def losses(steps, *, seed=0, rank=0):
    """Losses of the same scans by the same weights, at steps of the optimiser."""
    torch.manual_seed(0)
    module = a_module(AttentionCnn(EncoderSettings(size=32), CnnSettings()), seed=seed)
    batch, found = a_batch([0.0, 1.0], slices=3), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "these_ranks", lambda: Ranks(rank))
        for step in steps:
            patch.setattr(MilModule, "global_step", step)
            found.append(float(module.training_step(batch, step).detach()))
    return found


def test_class_weights_by_hand():
    assert class_weights([0, 0, 0, 1]).tolist() == pytest.approx([4 / 6, 2.0])
    with pytest.raises(DataError, match="all 2 scans and slices are labelled 1"):
        class_weights([1, 1])


def test_a_labelled_slice_counts_as_a_scan():
    """One scan of two slices as a bag, one of two slices as two bags: three bags, by hand from the logits."""
    torch.manual_seed(0)
    module = a_module(AttentionCnn(EncoderSettings(size=32), CnnSettings()).eval())
    batch = replace(a_batch([0.0, 1.0], slices=2), offsets=torch.tensor([0, 2, 3, 4]))
    batch = replace(batch, labels=torch.tensor([0.0, 0.0, 1.0]))
    output = module.model(module.pictures(batch), batch.offsets)
    assert torch.equal(module(batch), output.scan_logit)
    torch.testing.assert_close(output.scan_logit[1:], output.slice_logit[2:])
    torch.testing.assert_close(output.attention[2:], torch.ones(2))
    a, b, c = (float(one) for one in output.scan_logit.detach().double().sigmoid())
    wanted = -(0.5 * math.log(1 - a) + 0.5 * math.log(1 - b) + 2.0 * math.log(c)) / 3
    found = float(module.training_step(batch, 0).detach())
    assert found == pytest.approx(wanted, rel=1e-6)


def test_dropout_masks_depend_on_seed_step_and_rank():
    found = losses(range(4))
    assert losses(range(3, -1, -1)) == found[::-1]
    assert len({*found, *losses(range(4), seed=1), *losses(range(4), rank=1)}) == 12


def test_maps_of_frozen_blocks_are_cached(monkeypatch):
    torch.manual_seed(0)
    model = AttentionCnn(EncoderSettings(size=32, freeze=1), CnnSettings()).eval()
    module, batch = a_module(model), a_batch([1.0, 0.0], slices=2)
    first = module(batch)
    monkeypatch.setattr(model, "frozen_maps", lambda _: pytest.fail("computed again"))
    assert torch.equal(module(batch), first)
    varied = replace(batch, variations=tuple(Variation(torch.eye(2, 3), 5.0, 0.0, 0) for _ in range(2)))
    with pytest.raises(pytest.fail.Exception):
        module(varied)


def test_one_cycle_and_weight_decay():
    model = AttentionCnn(EncoderSettings(size=32), CnnSettings())
    module = a_module(model, schedule="one_cycle", weight_decay=0.1, learning_rate=1e-2)
    module._trainer = SimpleNamespace(estimated_stepping_batches=20)
    made = module.configure_optimizers()
    optimiser, cycle = made["optimizer"], made["lr_scheduler"]["scheduler"]
    assert made["lr_scheduler"]["interval"] == "step"
    assert isinstance(optimiser, torch.optim.AdamW)
    assert optimiser.param_groups[0]["weight_decay"] == 0.1
    rates = []
    for _ in range(20):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        cycle.step() if len(rates) < 20 else None
    assert max(rates) == pytest.approx(1e-2)
    assert rates.index(max(rates)) <= 2  # a tenth of the steps
    assert rates[-1] < 1e-6


def test_constant_rate_is_adam():
    module = a_module(AttentionCnn(EncoderSettings(size=32), CnnSettings()))
    (group,) = module.configure_optimizers().param_groups
    assert (group["lr"], group["weight_decay"]) == (5e-5, 0.0)

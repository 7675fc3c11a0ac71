"""A training step on each device: loss and gradients of the CPU."""

import copy
from unittest import mock

import numpy as np
import pytest
import torch

from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.bags import Batch, Pictures
from ich_mil.network.slice_encoders import EncoderSettings
from ich_mil.network.training.augment import draw_variation
from ich_mil.network.training.module import MilModule
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.study.window_presets import PRESETS

WINDOWS = PRESETS["papers"]


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    sizes = (3, 4, 2)
    return Batch(
        hu=tuple(torch.from_numpy(rng.integers(-50, 150, (n, 40, 40), dtype=np.int16)) for n in sizes),
        offsets=torch.tensor([0, 3, 7, 9]),
        labels=torch.tensor([0.0, 1.0, 0.0]),
        scans=("a", "b", "c"),
        # a GPU draws other noise
        variations=tuple(draw_variation(rng)._replace(noise=0.0) for _ in sizes),
    )


@pytest.fixture
def module():
    torch.manual_seed(0)
    model = AttentionCnn(EncoderSettings(size=32), CnnSettings())
    model.dropout.p = 0.0
    weights = torch.tensor([1.0, 2.0])
    pictures = Pictures(WINDOWS, 32)
    return MilModule(model, TrainingSettings(), weights, pictures=pictures, seed=0)


def step(module, batch):
    """Loss and gradients of one step; there is no trainer to log to."""
    with mock.patch.object(module, "log"):
        loss = module.training_step(batch, 0)
    loss.backward()
    return loss.detach().cpu(), [value.grad.cpu() for value in module.parameters()]


def test_a_step_is_that_of_the_cpu(module, batch, device):
    # in float64: rounding of float32 would decide which of two pixels nearly alike is the largest of its pool
    made = module.pictures
    module.double().pictures = lambda batch: made(batch).double()
    wanted, gradients = step(copy.deepcopy(module), batch)
    loss, got = step(module.to(device), batch.to(device))
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)
    largest = max(float(other.abs().max()) for other in gradients)
    for one, other in zip(got, gradients, strict=True):
        # pictures are in float32; the bias within a softmax has a gradient of rounding errors only
        atol = max(1e-5 * float(other.abs().max()), 1e-7 * largest)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=atol)


def test_pictures_are_float32_under_autocast(module, batch, device, monkeypatch):
    module, batch, fed = module.to(device), batch.to(device), []
    monkeypatch.setattr(
        module.model, "encode_maps", lambda maps, **_: fed.append(maps) or maps[:, 0, :2, :4].flatten(1)
    )
    module(batch)
    with torch.autocast(device.type, torch.bfloat16):
        module(batch)
    assert torch.equal(*fed)

"""The attention CNN: packed bags against a loop over bags, permutations, chunks, gradients, backbones."""

import copy
import re
from pathlib import Path

import pytest
import timm
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn

from ich_mil.errors import ModelError
from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.frozen import load_cnn, low_blocks, save_cnn
from ich_mil.network.slice_encoders import EncoderSettings, build_encoder, map_shape, paper_encoder

SIZES = [3, 1, 5, 2]
OFFSETS = torch.tensor([0, 3, 4, 9, 11])


# of ImageNet, which the weights expect
MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


@pytest.fixture
def model():
    torch.manual_seed(0)
    cnn = AttentionCnn(EncoderSettings(size=32), CnnSettings()).double()
    cnn.dropout.p = 0.0
    pictures = torch.rand(24, 3, 32, 32, dtype=torch.float64)
    cnn(pictures, torch.tensor([0, 24]))  # moves the running statistics of batch norm off their start
    return cnn.eval()


@pytest.fixture
def pictures():
    return torch.rand(11, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def same(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-13)


def test_packed_bags_equal_a_loop_over_bags(model, pictures):
    packed = model(pictures, OFFSETS)
    for b, rows in enumerate(pictures.split(SIZES)):
        h = model.encode(rows)
        part = model.aggregator
        scores = part.w(torch.tanh(part.V(h)) * torch.sigmoid(part.U(h)))
        weights = torch.softmax(scores.squeeze(-1), 0)
        own = slice(int(OFFSETS[b]), int(OFFSETS[b + 1]))
        same(packed.attention[own], weights)
        same(packed.features[own], h)
        # the textbook order: pool the features, then classify
        same(packed.scan_logit[b], model.aggregator.classifier(weights @ h).squeeze())
        same(packed.slice_logit[own], model.aggregator.classifier(h).squeeze(-1))


def test_permuting_slices(model, pictures):
    order = torch.tensor([2, 0, 1, 3, 8, 6, 4, 5, 7, 10, 9])
    straight, permuted = model(pictures, OFFSETS), model(pictures[order], OFFSETS)
    same(permuted.scan_logit, straight.scan_logit)
    same(permuted.attention, straight.attention[order])
    same(permuted.features, straight.features[order])


def test_chunks_equal_one_pass_in_evaluation(model, pictures):
    whole = model(pictures, OFFSETS)
    model.chunk_slices = 4
    same(model(pictures, OFFSETS).scan_logit, whole.scan_logit)
    with torch.no_grad():
        same(model(pictures, OFFSETS).scan_logit, whole.scan_logit)


@pytest.mark.parametrize(("most", "chunks"), [(6, 2), (10, 2), (11, 1)])
def test_chunks_in_training_without_recomputation(model, pictures, most, chunks):
    """Checkpointing changes neither gradients nor the running statistics (moved once a step, not twice)."""
    other = copy.deepcopy(model)
    for one in (model, other):
        one.train().chunk_slices = most
    other._encode_again = other._encode_chunk
    for _ in range(2):
        for one in (model, other):
            one(pictures, OFFSETS).scan_logit.sum().backward()
    for (name, a), b in zip(model.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b[1].grad, rtol=1e-8, atol=1e-12, msg=name)
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        same(a, b)
    assert int(model.encoder[0][2].num_batches_tracked) == 1 + 2 * chunks


def test_offsets_of_other_pictures(model, pictures):
    with pytest.raises(ValueError, match="offsets of 12 slices do not fit 11 pictures"):
        model(pictures, torch.tensor([0, 3, 12]))
    with pytest.raises(ValueError, match="bag 1 has 0"):
        model(pictures, torch.tensor([0, 3, 3, 11]))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (EncoderSettings, {"size": 31}),
        (EncoderSettings, {"freeze": "some"}),
        (EncoderSettings, {"channels": [[40.0, 0.0]]}),
        (CnnSettings, {"pool": "max"}),
    ],
)
def test_settings_out_of_range(kind, change):
    with pytest.raises(ValidationError, match=re.escape(next(iter(change))) + "|window"):
        kind(**change)


def test_gradients_are_right(model, pictures):
    few = pictures[:3].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: model(x, torch.tensor([0, 2, 3])).scan_logit, (few,), fast_mode=True, atol=1e-6
    )


def test_dropout_is_on_what_the_encoder_gives():
    torch.manual_seed(0)
    model = AttentionCnn(EncoderSettings(size=32), CnnSettings())
    model.project = torch.nn.Linear(16, 1, bias=False)
    torch.nn.init.ones_(model.project.weight)
    kept = model.features_of_maps(torch.ones(50, 16, 1, 1)) * 0.7  # what is left is scaled
    assert len({round(value) for value in kept.flatten().tolist()} - {0, 16}) > 3
    assert (model.eval().features_of_maps(torch.ones(2, 16, 1, 1)) == 16).all()


def test_dry_run_changes_nothing():
    """EfficientNet drops layers by chance."""
    settings = EncoderSettings(name="efficientnet_b0", size=64)
    encoder = build_encoder(settings)
    state = {name: value.clone() for name, value in encoder.state_dict().items()}
    before = torch.get_rng_state()
    map_shape(encoder, settings)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in encoder.state_dict().items())


@pytest.mark.parametrize(("size", "blocks"), [(512, 6), (256, 5), (128, 4)])
def test_paper_map_at_usual_sizes(size, blocks):
    encoder = paper_encoder(3, size)
    kinds = [[type(part) for part in block] for block in encoder]
    assert kinds == [[nn.Conv2d, nn.ReLU, nn.BatchNorm2d, nn.MaxPool2d]] * blocks
    shapes = [(block[0].out_channels, block[0].kernel_size, block[0].padding) for block in encoder]
    assert shapes == [(16, (5, 5), "same")] + [(32, (3, 3), (0, 0))] * (blocks - 1)
    assert map_shape(encoder, EncoderSettings(size=size)) == (32, 6, 6)


def test_pooled_maps_are_what_timm_classifies(tmp_path):
    torch.manual_seed(0)
    donor = timm.create_model("resnet18").eval()
    save_file(donor.state_dict(), tmp_path / "w.safetensors")
    donor.reset_classifier(0)
    x = torch.rand(2, 3, 64, 64)
    encoder = EncoderSettings(name="resnet18", size=64, weights=str(tmp_path / "w.safetensors"))
    with torch.no_grad():
        model = AttentionCnn(encoder, CnnSettings()).eval()
        wanted = donor((x - MEAN) / STD)
        torch.testing.assert_close(model.pool(model.encoder(x)), wanted, rtol=1e-4, atol=1e-5)
        (tmp_path / "w.safetensors").unlink()  # a trained network needs the file no more
        save_cnn(model, tmp_path)
        assert torch.equal(load_cnn(tmp_path).encoder(x), model.encoder(x))


def test_weight_file_saved_on_a_gpu(tmp_path, monkeypatch):
    donor = timm.create_model("resnet18")
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save(donor.state_dict(), tmp_path / "w.pth")
    settings = EncoderSettings(name="resnet18", size=64, weights=str(tmp_path / "w.pth"))
    model = AttentionCnn(settings, CnnSettings())
    assert torch.equal(model.encoder[0][1].weight, donor.conv1.weight)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "resnet19"}, "neither 'paper' nor"),
        ({"weights": "w.pth"}, "the paper's CNN has no weight file"),
        ({"freeze": 9, "size": 32}, "has 2 blocks; lower encoder.freeze"),
        ({"blocks": 3, "size": 32}, "has 2 blocks; lower encoder.blocks"),
    ],
)
def test_encoders_that_cannot_be_built(settings, message):
    with pytest.raises(ModelError, match=message):
        AttentionCnn(EncoderSettings(**settings), CnnSettings())


def test_backbone_too_deep_for_its_pictures():
    with pytest.raises(ModelError, match=r"encoder 'resnet18' .* 32 pixels.*encoder\.size"):
        AttentionCnn(EncoderSettings(name="resnet18", size=32), CnnSettings())
    model = AttentionCnn(EncoderSettings(name="resnet18", size=33), CnnSettings())
    assert model(torch.rand(1, 3, 33, 33), torch.tensor([0, 1])).scan_logit.isfinite().all()


@pytest.mark.parametrize("content", [None, b"nonsense"])
def test_a_damaged_weight_file_is_named(tmp_path, content):
    path = tmp_path / "w.pth"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"w\.pth: (cannot be read as weights|no such weight file)"):
        AttentionCnn(EncoderSettings(name="resnet18", weights=str(path)), CnnSettings())


class Code:
    """Creates a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_weight_file_runs_no_code(tmp_path):
    path = tmp_path / "w.pth"
    torch.save({"fc.bias": Code(tmp_path / "ran")}, path)
    with pytest.raises(ModelError, match=r"w\.pth: cannot be read"):
        AttentionCnn(EncoderSettings(name="resnet18", weights=str(path)), CnnSettings())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("backbone", "size", "most", "blocks", "cells"),
    [
        ("paper", 64, None, 3, 6),
        ("paper", 512, None, 3, 62),
        ("resnet18", 130, None, 9, 9),
        ("paper", 64, 2, 2, 15),
    ],
)
def test_textures_are_of_the_first_small_map_or_the_last(backbone, size, most, blocks, cells):
    torch.manual_seed(0)
    model = AttentionCnn(EncoderSettings(name=backbone, size=size, blocks=most), CnnSettings()).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count, channels = low_blocks(model)
    with torch.no_grad():
        maps = model.encoder[:count](torch.rand(2, 3, size, size))
    assert (count, *maps.shape[1:]) == (blocks, channels, cells, cells)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_mean_pool_does_not_depend_on_places(tmp_path):
    settings = CnnSettings(pool="mean")
    torch.manual_seed(0)
    model = AttentionCnn(EncoderSettings(size=32), settings).eval()
    maps = torch.rand(3, model.project.in_features, 5, 7)
    wanted = maps.mean((2, 3)) @ model.project.weight.T + model.project.bias
    torch.testing.assert_close(model.features_of_maps(maps), wanted)
    torch.testing.assert_close(model.features_of_maps(maps.roll((1, 2), (2, 3))), wanted)
    save_cnn(model, tmp_path)
    loaded = load_cnn(tmp_path)
    assert loaded.settings == settings
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded.encode(x), model.encode(x))


def test_bfloat16_is_used_in_the_encoder_alone(model, pictures, device):
    model, pictures = model.float().to(device), pictures.float().to(device)
    exact = model(pictures, OFFSETS)
    with torch.autocast(device.type, torch.bfloat16):
        half = model(pictures, OFFSETS)
        loss = half.scan_logit.square().sum()
    assert {part.dtype for part in half} == {torch.float32}
    # bfloat16 has 8 bits: 0.4 % a product, averaged over thousands
    for one, wanted in zip(half, exact, strict=True):
        assert 0 < (one - wanted).abs().max().item() < 0.02 * wanted.abs().max().item()
    # given the features, what follows is that of float32
    h = half.features
    torch.testing.assert_close(half.slice_logit, model.aggregator.classifier(h).squeeze(-1))
    totals = torch.stack([part.sum() for part in half.attention.split(SIZES)])
    torch.testing.assert_close(totals, torch.ones(4, device=device), rtol=1e-6, atol=0)
    loss.backward()
    assert all(value.grad.isfinite().all() for value in model.parameters())

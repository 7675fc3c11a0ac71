"""The attention CNN: packed bags against a loop over bags, permutations, chunks, gradients, backbones."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torchvision.models import mobilenet_v3_small, resnet18

from ich_mil.encoders.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.encoders.encoder_parts import split_encoder
from ich_mil.encoders.frozen import load_cnn, save_cnn
from ich_mil.encoders.slice_encoders import EncoderSettings, build_encoder, map_shape, paper_encoder
from ich_mil.errors import ModelError

SIZES = [3, 1, 5, 2]
OFFSETS = torch.tensor([0, 3, 4, 9, 11])


# of ImageNet, which torchvision's weights expect
MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
STD = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


@pytest.fixture
def model():
    torch.manual_seed(0)
    cnn = AttentionCnn(EncoderSettings(size=32), CnnSettings(dropout=0.0)).double()
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
        scores = model.attention_w(torch.tanh(model.attention_v(h)) * torch.sigmoid(model.attention_u(h)))
        weights = torch.softmax(scores.squeeze(-1), 0)
        own = slice(int(OFFSETS[b]), int(OFFSETS[b + 1]))
        same(packed.attention[own], weights)
        same(packed.features[own], h)
        # the textbook order: pool the features, then classify
        same(packed.scan_logit[b], model.classifier(weights @ h).squeeze())
        same(packed.slice_logit[own], model.classifier(h).squeeze(-1))


def test_permuting_slices_permutes_slices_and_leaves_scans(model, pictures):
    order = torch.tensor([2, 0, 1, 3, 8, 6, 4, 5, 7, 10, 9])
    straight, permuted = model(pictures, OFFSETS), model(pictures[order], OFFSETS)
    same(permuted.scan_logit, straight.scan_logit)
    same(permuted.attention, straight.attention[order])
    same(permuted.features, straight.features[order])


def test_an_empty_bag_is_refused(model, pictures):
    with pytest.raises(ValueError, match="bag 1 has 0"):
        model(pictures, torch.tensor([0, 3, 3, 11]))


def test_chunks_equal_one_pass_in_evaluation(model, pictures):
    whole = model(pictures, OFFSETS)
    model.chunk_slices = 4
    same(model(pictures, OFFSETS).scan_logit, whole.scan_logit)
    with torch.no_grad():
        same(model(pictures, OFFSETS).scan_logit, whole.scan_logit)


def spread(parts):
    """Features of all slices, of which part k has every one from the k-th on."""
    whole = torch.empty(sum(map(len, parts)), parts[0].shape[1], dtype=parts[0].dtype)
    for first, part in enumerate(parts):
        whole[first :: len(parts)] = part
    return whole


@pytest.mark.parametrize(("most", "chunks"), [(6, 2), (10, 2), (11, 1)])
def test_chunks_in_training_equal_chunks_without_recomputation(model, pictures, most, chunks):
    """Checkpointing changes neither gradients nor the running statistics (moved once a step, not twice)."""
    other = AttentionCnn(EncoderSettings(size=32), CnnSettings(dropout=0.0)).double()
    other.load_state_dict(model.state_dict())
    model.train()
    other.train()
    model.chunk_slices = most
    other.encode = lambda whole: spread(
        [other.features_of_maps(other.encoder(whole[first::chunks])) for first in range(chunks)]
    )
    for _ in range(2):
        for one in (model, other):
            one(pictures, OFFSETS).scan_logit.sum().backward()
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-12, msg=name)
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        same(a, b)


@pytest.mark.slow
def test_it_compiles_also_where_activations_are_recomputed(model, pictures):
    model.train().chunk_slices = 4
    other = copy.deepcopy(model)
    model(pictures, OFFSETS).scan_logit.sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dynamo's, where offsets are read
        torch.compile(other, backend="eager")(pictures, OFFSETS).scan_logit.sum().backward()
    torch._dynamo.reset()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        same(a.grad, b.grad)
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        same(a, b)


def test_offsets_of_other_pictures_and_an_unknown_pool_are_told(model, pictures):
    for last in (10, 12):
        with pytest.raises(ValueError, match=f"offsets of {last} slices do not fit 11 pictures"):
            model(pictures, torch.tensor([0, 3, last]))
    with pytest.raises(ValueError, match=r"cnn\.pool must be one of flatten, mean, got 'max'"):
        CnnSettings(pool="max")


def test_gradients_are_right(model, pictures):
    few = pictures[:3].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: model(x, torch.tensor([0, 2, 3])).scan_logit, (few,), fast_mode=True, atol=1e-6
    )


def test_dropout_is_on_what_the_encoder_gives():
    torch.manual_seed(0)
    model = AttentionCnn(EncoderSettings(size=32), CnnSettings(dropout=0.5))
    model.project = torch.nn.Linear(16, 1, bias=False)
    torch.nn.init.ones_(model.project.weight)
    kept = model.features_of_maps(torch.ones(50, 16, 1, 1)) / 2  # what is left is doubled
    assert len(set(kept.flatten().tolist()) - {0.0, 16.0}) > 3
    assert (model.eval().features_of_maps(torch.ones(2, 16, 1, 1)) == 16).all()


@pytest.mark.parametrize("size", [32, 57, 58, 59, 100])
def test_the_papers_map_is_just_above_6_cells_a_side_where_the_picture_allows(size):
    _, *sides = map_shape(paper_encoder(3, size), EncoderSettings(size=size))
    assert all(6 <= side < 14 for side in sides)  # another block would leave less than 6


def test_the_dry_run_leaves_the_generator_and_the_encoder_as_they_were():
    """EfficientNet drops layers by chance."""
    settings = EncoderSettings(name="efficientnet_b0", size=64)
    encoder = build_encoder(settings)
    state = {name: value.clone() for name, value in encoder.state_dict().items()}
    before = torch.get_rng_state()
    map_shape(encoder, settings)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in encoder.state_dict().items())


@pytest.mark.parametrize(("size", "blocks"), [(512, 6), (256, 5), (128, 4)])
def test_the_papers_map_is_6_by_6_at_every_usual_size(size, blocks):
    encoder = paper_encoder(3, size)
    kinds = [[type(part) for part in block] for block in encoder]
    assert kinds == [[nn.Conv2d, nn.ReLU, nn.BatchNorm2d, nn.MaxPool2d]] * blocks
    shapes = [(block[0].out_channels, block[0].kernel_size, block[0].padding) for block in encoder]
    assert shapes == [(16, (5, 5), "same")] + [(32, (3, 3), (0, 0))] * (blocks - 1)
    assert map_shape(encoder, EncoderSettings(size=size)) == (32, 6, 6)


@pytest.mark.parametrize(
    ("build", "last", "file", "save"),
    [
        (resnet18, "fc", "w.safetensors", save_file),
        (mobilenet_v3_small, "classifier", "w.pth", torch.save),
    ],
)
def test_a_torchvision_network_is_a_drop_in_and_takes_a_local_weight_file(tmp_path, build, last, file, save):
    torch.manual_seed(3)
    donor = build(weights=None)
    save(donor.state_dict(), tmp_path / file)
    settings = EncoderSettings(name=build.__name__, size=64, weights=str(tmp_path / file))
    model = AttentionCnn(settings, CnnSettings(features=32)).eval()
    setattr(donor, last, torch.nn.Identity())
    x = torch.rand(2, 3, 64, 64)
    pooled = model.pool(model.encoder(x))
    standard = (x - MEAN) / STD
    torch.testing.assert_close(pooled, donor.eval()(standard), rtol=1e-4, atol=1e-5)
    features = model(x, torch.tensor([0, 2])).features
    assert features.shape == (2, 32)
    # once it is trained it needs that file no more
    (tmp_path / file).unlink()
    save_cnn(model, tmp_path)
    assert torch.equal(load_cnn(tmp_path)(x, torch.tensor([0, 2])).features, features)


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("resnet18", "fc"),
        ("efficientnet_b0", "classifier"),  # timm names its tensors otherwise, in the same order
        ("mobilenet_v2", "classifier"),  # torchvision's alone
    ],
)
def test_pooled_maps_are_what_torchvision_classifies(name, last, tmp_path):
    torch.manual_seed(0)
    donor = torchvision.models.get_model(name).eval()
    torch.save(donor.state_dict(), tmp_path / "w.pth")
    setattr(donor, last, nn.Identity())
    x = torch.rand(2, 3, 64, 64)
    encoder = EncoderSettings(name=name, size=64, weights=str(tmp_path / "w.pth"))
    with torch.no_grad():
        model = AttentionCnn(encoder, CnnSettings()).eval()
        wanted = donor((x - MEAN) / STD).flatten(1)
        torch.testing.assert_close(model.pool(model.encoder(x)), wanted, rtol=1e-4, atol=1e-5)


def test_a_weight_file_that_was_saved_on_a_gpu_is_read_without_one(tmp_path, monkeypatch):
    donor = mobilenet_v3_small(weights=None)
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save(donor.state_dict(), tmp_path / "w.pth")
    settings = EncoderSettings(name="mobilenet_v3_small", size=64, weights=str(tmp_path / "w.pth"))
    model = AttentionCnn(settings, CnnSettings())
    assert torch.equal(model.encoder[0][1][0].weight, donor.features[0][0].weight)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "resnet19"}, "neither 'paper' nor"),
        ({"name": "squeezenet1_1", "channels": [[40, 80], [80, 200]]}, "takes 3 channels"),
        ({"name": "swin_t", "size": 64}, "no convolutional trunk"),
        ({"name": "fcn_resnet50"}, "nor a model of timm or torchvision"),
        ({"weights": "w.pth"}, "the paper's CNN has no weight file"),
        ({"freeze": 9, "size": 32}, "has 2 blocks; lower encoder.freeze"),
        ({"blocks": 3, "size": 32}, "has 2 blocks; lower encoder.blocks"),
    ],
)
def test_encoders_that_cannot_be_built(settings, message):
    with pytest.raises(ModelError, match=message):
        AttentionCnn(EncoderSettings(**settings), CnnSettings())


@pytest.mark.parametrize(
    ("backbone", "small", "enough"),
    [("resnet18", 32, 33), ("mobilenet_v3_small", 32, 33)],
)
def test_a_backbone_too_deep_for_its_pictures_is_told_before_training(backbone, small, enough):
    torch.manual_seed(0)
    with pytest.raises(ModelError, match=rf"encoder '{backbone}' .* {small} pixels.*encoder\.size"):
        AttentionCnn(EncoderSettings(name=backbone, size=small), CnnSettings())
    model = AttentionCnn(EncoderSettings(name=backbone, size=enough), CnnSettings())
    fresh = {name: value.clone() for name, value in model.named_buffers()}
    means = [value for name, value in fresh.items() if name.endswith("running_mean")]
    assert not any(value.any() for value in means)  # nor did looking move them
    assert model(torch.rand(1, 3, enough, enough), torch.tensor([0, 1])).scan_logit.isfinite().all()


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
    ("backbone", "size", "side", "cells", "left", "pitch"),
    [
        ("paper", 64, 64, 32, 0, 2),
        ("paper", 256, 64, 63, 2, 4),  # 256 -> 128 -> (126) -> 63
        ("paper", 512, 64, 62, 6, 8),  # 63 -> (125) -> 62: of 125 cells the last is lost
        ("paper", 64, 4, 6, 6, 8),  # nowhere 4 cells or less: the whole encoder
        ("resnet18", 130, 33, 33, 0, 4),  # 65 -> 33: a cell more than half
    ],
)
def test_an_encoder_in_two_parts_is_the_encoder(backbone, size, side, cells, left, pitch):
    torch.manual_seed(0)
    encoder = AttentionCnn(EncoderSettings(name=backbone, size=size), CnnSettings()).eval().encoder
    parts = split_encoder(encoder, channels=3, size=size, side=side)
    pictures = torch.rand(2, 3, size, size)
    with torch.no_grad():
        maps = parts.first(pictures)
        assert maps.shape[-1] == cells
        assert torch.equal(parts.rest(maps), encoder(pictures))
    assert (parts.left, parts.pitch) == (left, pitch)


def test_the_cell_is_where_split_encoder_says():
    """The middle of the pixels that a cell answers to is the middle of the cell."""
    torch.manual_seed(0)
    encoder = AttentionCnn(EncoderSettings(size=512), CnnSettings()).encoder
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    parts = split_encoder(encoder, channels=3, size=512, side=64)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert all(module.training for module in encoder.modules())
    linear = torch.nn.Sequential(
        *(
            torch.nn.Sequential(torch.nn.Conv2d(1, 1, k, padding=p), torch.nn.AvgPool2d(2))
            for k, p in ((5, 2), (3, 0), (3, 0))
        )
    )  # the same geometry, and all weights equal
    for weight in linear.parameters():
        torch.nn.init.constant_(weight, 1.0)
    picture = torch.zeros(1, 1, 512, 512, requires_grad=True)
    linear(picture)[0, 0, 20, 40].backward()
    share = picture.grad[0, 0] / picture.grad.sum()
    middle = torch.arange(512) + 0.5
    assert float((share.sum(1) * middle).sum()) == pytest.approx(parts.left + parts.pitch * 20.5, abs=1e-3)
    assert float((share.sum(0) * middle).sum()) == pytest.approx(parts.left + parts.pitch * 40.5, abs=1e-3)


def test_the_mean_of_the_map_does_not_depend_on_places_and_is_saved(tmp_path):
    settings = CnnSettings(pool="mean", dropout=0.0)
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


def test_bfloat16_is_the_encoders_alone_and_pooling_stays_exact(model, pictures, device):
    model, pictures = model.float().to(device), pictures.float().to(device)
    exact = model(pictures, OFFSETS)
    with torch.autocast(device.type, torch.bfloat16):
        half = model(pictures, OFFSETS)
        loss = half.scan_logit.square().sum()
    assert {one.dtype for one in half} == {torch.float32}
    # bfloat16 has 8 bits: 0.4 % a product, averaged over thousands
    for one, wanted in zip(half, exact, strict=True):
        assert 0 < (one - wanted).abs().max().item() < 0.02 * wanted.abs().max().item()
    # given the features, what follows is that of float32
    h = half.features
    torch.testing.assert_close(half.slice_logit, model.classifier(h).squeeze(-1))
    totals = torch.stack([part.sum() for part in half.attention.split(SIZES)])
    torch.testing.assert_close(totals, torch.ones(4, device=device), rtol=1e-6, atol=0)
    loss.backward()
    assert all(value.grad.isfinite().all() for value in model.parameters())

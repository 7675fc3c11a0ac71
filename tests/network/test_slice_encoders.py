"""Encoders of timm: initial weights from files, packages and the hub, channels, frozen blocks."""

import sys
from dataclasses import replace

import pytest
import timm
import torch
from torch import nn

from ich_mil.errors import ModelError
from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.slice_encoders import EncoderSettings, build_encoder, map_shape

LITE = EncoderSettings(name="tf_efficientnet_lite0", size=64)
OFFSETS = torch.tensor([0, 2, 3])


@pytest.fixture(scope="module")
def donor():
    torch.manual_seed(0)
    return timm.create_model(LITE.name).eval()


@pytest.fixture(scope="module")
def package(donor, tmp_path_factory):
    """An installed package that holds the weights of another library, under its names and in its order."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "lite_weights" / "models").mkdir(parents=True)
    (folder / "lite_weights" / "__init__.py").touch()
    state = {f"t{i}": value for i, value in enumerate(donor.state_dict().values()) if value.ndim}
    torch.save(state, folder / "lite_weights" / "models" / "w.pth")
    sys.path.insert(0, str(folder))
    yield "lite-weights"
    sys.path.remove(str(folder))


def test_weights_of_a_package_by_their_order(donor, package):
    encoder = build_encoder(replace(LITE, weights=package)).eval()
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        # these weights expect pictures from -1 to 1
        torch.testing.assert_close(encoder(x), donor.forward_features(2 * x - 1), rtol=1e-4, atol=1e-5)


def test_weights_are_adapted_to_other_channels(donor, package):
    channels = 6
    windows = [[40.0, 80.0]] * channels
    encoder = build_encoder(replace(LITE, weights=package, channels=windows)).eval()
    x = torch.rand(2, 1, 64, 64)
    with torch.no_grad():
        wanted = donor.forward_features(2 * x.expand(-1, 3, -1, -1) - 1)
        torch.testing.assert_close(encoder(x.expand(-1, channels, -1, -1)), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "size", "shape"), [("vit_tiny_patch16_224", 64, (192, 4, 4)), ("regnety_002", 64, (368, 2, 2))]
)
def test_models_of_other_kinds_give_maps(name, size, shape):
    settings = EncoderSettings(name=name, size=size, channels=[[40.0, 80.0]] * 9)
    encoder = build_encoder(settings)
    assert map_shape(encoder, settings) == shape


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("timm/no_such_model", r"timm/no_such_model: .*hub"),
        ("no-such-package", r"no-such-package: no such weight file"),
        ("pytest", r"pytest: the package holds 0 weight files"),
    ],
)
def test_weights_that_are_not_there(weights, message, monkeypatch):
    def offline(*_, **__):
        raise OSError("the hub cannot be reached\nfrom here")

    monkeypatch.setattr(timm.models, "load_state_dict_from_hf", offline)
    with pytest.raises(ModelError, match=message) as caught:
        build_encoder(replace(LITE, weights=weights))
    assert "\n" not in str(caught.value)


def test_weights_of_another_architecture_are_refused(tmp_path):
    torch.save(timm.create_model("tf_efficientnet_lite1").state_dict(), tmp_path / "w.pth")
    with pytest.raises(ModelError, match=r"w\.pth: is no state dict of the encoder"):
        build_encoder(replace(LITE, weights=str(tmp_path / "w.pth")))


def test_weights_of_a_deeper_network(tmp_path):
    torch.save(timm.create_model("resnet34").state_dict(), tmp_path / "w.pth")
    with pytest.raises(ModelError, match="tensors too many"):
        build_encoder(EncoderSettings(name="resnet18", size=64, weights=str(tmp_path / "w.pth")))


@pytest.mark.parametrize(("freeze", "frozen"), [("none", 0), (3, 3), ("all", 11)])
def test_frozen_blocks_do_not_change(freeze, frozen):
    torch.manual_seed(0)
    model = AttentionCnn(replace(LITE, freeze=freeze), CnnSettings())  # as Lightning gets it
    assert len(model.encoder) == 11
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained = [value for value in model.parameters() if value.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=0.1)
    output = model(torch.rand(3, 3, 64, 64), OFFSETS)
    output.scan_logit.square().sum().backward()
    optimiser.step()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    changed = {int(name.split(".")[1]) for name in moved if name.startswith("encoder")}
    assert changed == set(range(frozen, 11))
    assert any(name.startswith("aggregator") for name in moved)


def test_frozen_maps_and_the_rest_are_the_model():
    torch.manual_seed(0)
    model = AttentionCnn(replace(LITE, freeze=4), CnnSettings()).eval()
    x = torch.rand(3, 3, 64, 64)
    maps = model.frozen_maps(x)
    assert maps.shape[-1] < 64
    assert torch.equal(model.classify(maps, OFFSETS).scan_logit, model(x, OFFSETS).scan_logit)
    torch.testing.assert_close(model(x, OFFSETS).features, model.features_of_maps(model.encoder(x)))


def test_batch_norms_of_timm_keep_their_activations():
    torch.manual_seed(0)
    plain = build_encoder(LITE).train()
    torch.manual_seed(0)
    model = AttentionCnn(LITE, CnnSettings()).train()
    names = {type(one).__name__ for one in model.encoder.modules() if isinstance(one, nn.BatchNorm2d)}
    assert names == {"SharedBatchNorm2d"}
    x = torch.rand(4, 3, 64, 64)
    # each of 40 batch norms of few values enlarges what rounding differs by
    torch.testing.assert_close(model.encoder(x), plain(x), rtol=0, atol=1e-2)


def test_fewer_blocks_are_the_lower_blocks(package):
    whole = build_encoder(replace(LITE, weights=package)).eval()
    part = AttentionCnn(replace(LITE, weights=package, blocks=6, freeze="all"), CnnSettings()).eval()
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        maps = whole[:6](x)
        torch.testing.assert_close(part.encoder(x), maps, rtol=1e-4, atol=1e-5)
    assert part.project.in_features == maps.shape[1] < 320
    assert not any(value.requires_grad for value in part.encoder.parameters())

"""The mean of the encoder's map: the same features wherever something is, and exact heat maps."""

from dataclasses import asdict

import pytest
import torch

from ich_mil.encoders.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.encoders.frozen import load_cnn, save_cnn
from ich_mil.encoders.slice_encoders import EncoderSettings

ENCODER = EncoderSettings(size=32)
MEAN = CnnSettings(pool="mean", dropout=0.0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return AttentionCnn(ENCODER, MEAN).double().eval()


def test_features_are_linear_in_the_mean_of_the_map(model):
    maps = torch.rand(3, 16, 5, 7, dtype=torch.float64)
    model.project = torch.nn.Linear(16, 8).double()
    wanted = maps.mean((2, 3)) @ model.project.weight.T + model.project.bias
    torch.testing.assert_close(model.features_of_maps(maps), wanted, rtol=1e-12, atol=1e-14)


def test_what_moves_within_the_map_gives_the_same_features(model):
    maps = model.encoder(torch.rand(2, 3, 32, 32, dtype=torch.float64))
    torch.testing.assert_close(
        model.features_of_maps(maps.roll((1, 2), (2, 3))),
        model.features_of_maps(maps),
        rtol=1e-12,
        atol=1e-14,
    )
    flat = AttentionCnn(EncoderSettings(size=32), CnnSettings(dropout=0.0)).double().eval()
    assert not torch.allclose(flat.features_of_maps(maps.roll(1, 2)), flat.features_of_maps(maps), rtol=1e-6)


def test_it_is_saved_and_an_older_file_means_flatten(tmp_path):
    torch.manual_seed(0)
    model = AttentionCnn(ENCODER, MEAN).eval()
    save_cnn(model, tmp_path)
    loaded = load_cnn(tmp_path)
    assert loaded.settings == MEAN
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded.encode(x), model.encode(x))
    older = {name: value for name, value in asdict(MEAN).items() if name != "pool"}
    assert CnnSettings(**older).pool == "flatten"

"""Covering a place: nothing happens where the slice is the mean slice, and the blood is where it matters."""

import pytest
import torch

from benchmarks.heatmaps.occlusion import occlusion_map
from ich_mil.encoders.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.encoders.slice_encoders import EncoderSettings
from ich_mil.gp.predict import draw_weights, latent_samples
from ich_mil.report.heatmap import slice_maps
from tests.report.test_heatmap import fitted_to_a_patch


@pytest.fixture(scope="module")
def averaging():
    """A CNN that averages, so that a seam says nothing, and a head that knows bright patches as positive."""
    torch.manual_seed(0)
    cnn = AttentionCnn(EncoderSettings(size=64), CnnSettings(pool="mean")).eval()
    for layer in cnn.encoder.modules():
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.constant_(layer.weight, 1 / layer.weight[0].numel())
            torch.nn.init.zeros_(layer.bias)
    return cnn, *fitted_to_a_patch(cnn, size=64, rows=slice(24, 40), columns=slice(12, 28))


def test_it_agrees_with_the_gradient_map_in_sign_and_place(averaging):
    cnn, head, pictures = averaging
    scan = pictures[20:28]  # four slices without the patch, four with it: the mean slice has half of it
    mean = slice_maps(cnn, head, scan, [1, 6], draw_weights(head, 32, seed=0))[0]
    covered = occlusion_map(cnn, head, scan, [1, 6])
    gradient = torch.nn.functional.avg_pool2d(mean, 2)  # (2, 16, 16)
    # the patch lies in cells (6 to 10, 3 to 7); squares that touch it reach one further
    for map_ in (covered, gradient):
        for number, sign in enumerate((-1, 1)):
            evidence = sign * map_[number]
            y, x = divmod(int(evidence.argmax()), 16)
            assert 6 <= y < 10
            assert 3 <= x < 7
            assert evidence[6:10, 3:7].min() > 0
            assert evidence[5:11, 2:8].sum() > 0.7 * evidence.abs().sum()
    for a, b in zip(covered, gradient, strict=True):
        assert torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1] > 0.9


def test_a_slice_that_is_the_mean_slice_loses_nothing(averaging):
    cnn, head, pictures = averaging
    same = pictures[30:31].repeat(3, 1, 1, 1)
    assert float(occlusion_map(cnn, head, same, [1]).abs().max()) < 1e-4


def test_corners_by_hand(averaging):
    """A corner cell lies in one square, its neighbour in two: the fall by that square, and their mean."""
    cnn, head, pictures = averaging
    scan = pictures[20:28].roll((-24, -8), (2, 3))  # the patch lies at the upper border
    covered = scan[6].repeat(3, 1, 1, 1)
    covered[1, :, :8, :8] = scan.mean(0)[:, :8, :8]
    covered[2, :, :8, 4:12] = scan.mean(0)[:, :8, 4:12]
    with torch.no_grad():
        f = latent_samples(head, cnn.encode(covered).double(), head.q_mean)
    corner = occlusion_map(cnn, head, scan, [6])[0, 0, :2]
    wanted = torch.stack([f[0] - f[1], f[0] - (f[1] + f[2]) / 2])
    assert float(wanted.abs().min()) > 1e-4
    torch.testing.assert_close(corner, wanted, rtol=1e-2, atol=1e-6)  # rtol: float32 in the CNN

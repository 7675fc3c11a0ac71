"""Maps of evidence: they add up to what the model says, point at the difference, and spread as f does."""

import pytest
import torch

from ich_mil.gp.fit import fit
from ich_mil.gp.predict import draw_weights, latent_samples
from ich_mil.gp.settings import HeadSettings
from ich_mil.models.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.report.heatmap import slice_maps


@pytest.fixture(scope="module")
def trained():
    """An untrained CNN, and a head fitted to its features of slices with and without a bright patch."""
    torch.manual_seed(0)
    cnn = AttentionCnn(CnnSettings(image_size=64), windows=3).eval()
    pictures = 0.4 + 0.05 * torch.randn(48, 3, 64, 64)
    pictures[24:, :, 8:24, 8:24] += 0.4
    offsets = torch.arange(0, 49, 6)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    with torch.no_grad():
        x = cnn.encode(pictures).double()
    head, _ = fit(x, offsets, labels, settings=HeadSettings(n_inducing=12, sweeps=15))
    return cnn, head, pictures


def test_a_map_sums_to_the_latent_difference_from_the_mean_slice(trained):
    cnn, head, pictures = trained
    scan = pictures[20:28]
    weights = draw_weights(head, 2, seed=0)
    mean = slice_maps(cnn, head, scan, [1, 6], weights)[0]
    with torch.no_grad():
        h = cnn.encode(scan).double()
        f = latent_samples(head, torch.cat([h[[1, 6]], h.mean(0, keepdim=True)]), weights)
    difference = (f[:, :2] - f[:, 2:]).mean(0)
    # rtol: the midpoint rule on 16 points
    torch.testing.assert_close(mean.sum((1, 2)), difference, rtol=2e-2, atol=1e-3)


def test_the_map_points_at_the_patch(trained):
    cnn, head, pictures = trained
    mean = slice_maps(cnn, head, pictures[20:28], [6], draw_weights(head, 32, seed=0))[0][0]
    side = mean.shape[0] // 2
    corner = mean[:side, :side]  # the patch lies in pixels 8 to 24 of 64
    assert mean.flatten().argmax() == (mean == corner.max()).flatten().nonzero()[0, 0]
    assert corner.sum() > 0.5 * mean.clamp(min=0).sum()


def test_the_spread_is_that_of_the_samples(trained):
    cnn, head, pictures = trained
    weights = draw_weights(head, 16, seed=1)
    mean, std = slice_maps(cnn, head, pictures[20:28], [6], weights)
    single = torch.stack(
        [slice_maps(cnn, head, pictures[20:28], [6], w[None].repeat(2, 1))[0] for w in weights]
    )
    torch.testing.assert_close(mean, single.mean(0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(std, single.std(0), rtol=1e-9, atol=1e-12)

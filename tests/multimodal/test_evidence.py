"""Heatmaps of a multimodal head: maps of what a slice adds to the score of its scan."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.special import ndtr

from ich_mil.families import RunHeadSettings
from ich_mil.model import heatmap
from ich_mil.model.heatmap import slice_maps
from ich_mil.multimodal.head import MultimodalHead
from ich_mil.multimodal.settings import MultimodalSettings
from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.slice_encoders import EncoderSettings
from ich_mil.sets.features import bare_features

pytestmark = pytest.mark.filterwarnings("ignore:the model separates", "ignore:8 bags are fewer")


@pytest.fixture(scope="module")
def fitted():
    """An untrained CNN, a head fitted to slices with a bright patch in half of the scans, and the slices."""
    torch.manual_seed(0)
    cnn = AttentionCnn(EncoderSettings(size=64), CnnSettings()).eval()
    pictures = 0.4 + 0.02 * torch.randn(48, 3, 64, 64)
    pictures[24:, :, 8:24, 32:48] += 0.4
    with torch.no_grad():
        x = cnn.encode(pictures)
    names = [f"s{b}" for b in range(8)]
    scans = bare_features(x.numpy(), np.full(8, 6), names, np.repeat([0, 1], 4), list(map(str, range(48))))
    head = MultimodalHead.fit(
        scans,
        RunHeadSettings(family="multimodal", calibration="none"),
        replace(MultimodalSettings(), restarts=1, tolerance=1e-3),
    )
    return cnn, head, pictures, x


def test_evidence_is_the_expected_addition_to_the_score(fitted):
    _, head, _, x = fitted
    draws = head.evidence_draws(5, seed=0)
    model = head.model.posterior_.thinned(5)
    z = (x.double() - head.model.scalings_[0].mean) / head.model.scalings_[0].deviation
    wanted = [
        ndtr(b[0] + z @ b[1:]) * (z @ theta[1:]) for b, theta in zip(model.inner[0], model.outer, strict=True)
    ]
    torch.testing.assert_close(head.evidence(x.double(), draws), torch.stack(wanted))


def test_map_sums_to_difference_from_mean_slice(fitted, monkeypatch):
    cnn, head, pictures, _ = fitted
    monkeypatch.setattr(heatmap, "PATH_POINTS", 128)
    scan = pictures[20:28]
    mean, std = slice_maps(cnn, head, scan, [6], head.evidence_draws(4, seed=0))
    with torch.no_grad():
        h = cnn.encode(torch.cat([scan[[6]], scan.mean(0, keepdim=True)])).double()
    at = head.evidence(h, head.evidence_mean[None])[0]
    assert float(mean.sum()) == pytest.approx(float(at[0] - at[1]), rel=2e-2)
    assert bool((std >= 0).all())

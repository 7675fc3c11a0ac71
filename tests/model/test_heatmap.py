"""Maps of evidence: they add up to what the model says, lie where the difference is, and spread as f does."""

import copy

import pytest
import torch

from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.predict import latent_samples
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.model import heatmap
from ich_mil.model.heatmap import slice_maps
from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.slice_encoders import EncoderSettings


def fitted_to_a_patch(cnn, *, size, rows, columns):
    """A head fitted to the CNN's features of slices with and without a bright patch, and the slices."""
    pictures = 0.4 + 0.02 * torch.randn(48, 3, size, size)
    pictures[24:, :, rows, columns] += 0.4
    offsets = torch.arange(0, 49, 6)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    with torch.no_grad():
        x = cnn.encode(pictures).double()
    head, _ = fit(Bags(x, offsets, labels), HeadSettings(n_inducing=12, sweeps=15))
    return GaussianProcessHead(head), pictures


@pytest.fixture(scope="module")
def planted():
    """An untrained CNN, its head, and the slices."""
    torch.manual_seed(0)
    cnn = AttentionCnn(EncoderSettings(size=64), CnnSettings()).eval()
    return cnn, *fitted_to_a_patch(cnn, size=64, rows=slice(8, 24), columns=slice(32, 48))


@pytest.fixture
def fine(monkeypatch):
    """As many points as it takes for the sums to be exact."""
    monkeypatch.setattr(heatmap, "PATH_POINTS", 256)


def latent_difference(cnn, head, scan, chosen, weights):
    """(L, k) of f at the chosen slices less f at the mean slice."""
    with torch.no_grad():
        h = cnn.encode(torch.cat([scan[chosen], scan.mean(0, keepdim=True)])).double()
        f = latent_samples(head.model, h, weights)
    return f[:, :-1] - f[:, -1:]


def map_of(cnn, head, scan, n, w, monkeypatch):
    """The mean map of a head whose posterior mean is `w`."""
    with monkeypatch.context() as patched:
        patched.setattr(head, "evidence_mean", w)
        return slice_maps(cnn, head, scan, [n], torch.stack([w, w]))[0]


def test_the_sum_of_each_sample_is_exact(planted, fine, monkeypatch):
    cnn, head, pictures = planted
    scan = pictures[20:28]
    weights = head.evidence_draws(3, seed=0)
    wanted = latent_difference(cnn, head, scan, [6], weights)[:, 0]
    for w, value in zip(weights, wanted, strict=True):
        assert float(map_of(cnn, head, scan, 6, w, monkeypatch).sum()) == pytest.approx(
            float(value), rel=1e-2
        )


def test_batch_norms_are_part_of_the_maps(fine):
    """Maps fold them into convolutions; `latent_difference` runs the encoder as it is."""
    torch.manual_seed(0)
    cnn = AttentionCnn(EncoderSettings(name="tf_efficientnet_lite0", size=64), CnnSettings()).eval()
    for norm in [module for module in cnn.modules() if isinstance(module, torch.nn.BatchNorm2d)]:
        norm.running_mean.uniform_(-0.1, 0.1)
        norm.running_var.uniform_(0.5, 2)
    head, pictures = fitted_to_a_patch(cnn, size=64, rows=slice(8, 24), columns=slice(32, 48))
    scan = pictures[20:28]
    mean, _ = slice_maps(cnn, head, scan, [6], head.evidence_draws(2, seed=0))
    wanted = latent_difference(cnn, head, scan, [6], head.evidence_mean[None])
    assert float(mean.sum()) == pytest.approx(float(wanted), rel=1e-2)


SETTINGS = [
    (EncoderSettings(size=64), CnnSettings()),  # cut after the first block
    # after the second, 34 cells of 4 pixels, 2 pixels in
    (EncoderSettings(size=140), CnnSettings(pool="mean")),
    pytest.param(
        *(EncoderSettings(name="tf_efficientnet_lite0", size=64), CnnSettings()), marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize(("encoder", "head_of"), SETTINGS, ids=["paper-64", "paper-140", "lite0-64"])
def test_the_map_lies_on_the_patch(encoder, head_of):
    size = encoder.size
    rows, columns = slice(size // 8, 3 * size // 8), slice(size // 2, 3 * size // 4)
    torch.manual_seed(0)
    cnn = AttentionCnn(encoder, head_of).eval()
    head, pictures = fitted_to_a_patch(cnn, size=size, rows=rows, columns=columns)
    mean = slice_maps(cnn, head, pictures[20:28], [6], head.evidence_draws(8, seed=0))[0][0]
    g = size // 2
    assert mean.shape == (g, g)
    y, x = divmod(int(mean.argmax()), g)
    assert rows.start - 4 <= 2 * y < rows.stop + 4
    assert columns.start - 4 <= 2 * x < columns.stop + 4
    positive = mean.clamp(min=0)
    inside = positive[g // 8 : 3 * g // 8, g // 2 : 3 * g // 4]
    assert inside.sum() > 4 / 16 * positive.sum()  # four times its share of the area


def test_the_spread_is_that_of_the_samples(planted, monkeypatch):
    monkeypatch.setattr(heatmap, "PATH_POINTS", heatmap.SPREAD_POINTS)
    cnn, head, pictures = planted
    weights = head.evidence_draws(12, seed=1)
    std = slice_maps(cnn, head, pictures[20:28], [6], weights)[1]
    single = torch.stack([map_of(cnn, head, pictures[20:28], 6, w, monkeypatch) for w in weights])
    torch.testing.assert_close(std, single.std(0), rtol=1e-4, atol=1e-6)


def test_maps_do_not_depend_on_other_slices(planted):
    cnn, head, pictures = planted
    weights = head.evidence_draws(4, seed=0)
    both = slice_maps(cnn, head, pictures[20:28], [6, 1], weights)
    for i, n in enumerate([6, 1]):
        alone = slice_maps(cnn, head, pictures[20:28], [n], weights)
        for together, one in zip(both, alone, strict=True):
            assert torch.equal(together[i], one[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_maps_without_gradient_mode(planted, mode):
    cnn, head, pictures = planted
    weights = head.evidence_draws(4, seed=0)
    wanted = slice_maps(cnn, head, pictures[20:28], [6], weights)
    with mode():
        found = slice_maps(cnn, head, pictures[20:28].clone(), [6], weights.clone())
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_missing_slices_and_training_mode_are_refused(planted):
    cnn, head, pictures = planted
    weights = head.evidence_draws(2, seed=0)
    with pytest.raises(IndexError, match="index 8 is out of bounds"):
        slice_maps(cnn, head, pictures[20:28], [8], weights)
    training = copy.deepcopy(cnn).train()  # its maps would move the running means
    with pytest.raises(ValueError, match=r"call its eval\(\)"):
        slice_maps(training, head, pictures[20:28], [6], weights)

"""The kernel that a head chooses on held-out folds; what the settings fix stays."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from ich_mil.gp.bags import Bags
from ich_mil.gp.head import Head
from ich_mil.gp.inference.kernel_choice import choose_kernel
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.sets.features import bare_features

SETTINGS = HeadSettings(n_inducing=40, sweeps=15)


def islands(n_bags, *, width=20, seed=0):
    """Bags of four instances; positive ones hold an instance of a small cluster that no plane cuts off."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n_bags) % 2
    x = rng.normal(size=(n_bags, 4, width))
    x[labels == 1, 0] = 0.3 * rng.normal(size=(n_bags // 2, width))
    x = x.reshape(-1, width)
    offsets = torch.arange(0, len(x) + 1, 4)
    return Bags(torch.from_numpy(x), offsets, torch.from_numpy(labels), None)


def test_a_short_length_scale_is_found_and_classifies():
    train, new = islands(80), islands(80, seed=1)
    chosen = choose_kernel(train, SETTINGS)
    assert chosen.lengthscale_squared in (0.25 * 20, 20.0)
    assert (chosen.variance, chosen.bias) == (10.0, 10.0)
    head = Head(**vars(SETTINGS)).fit(*train[:3])
    assert head.model_.settings == chosen
    assert roc_auc_score(new.labels, head.predict_bag_proba(*new[:2])) > 0.95


def test_runs_on_scans_keep_the_preset_kernel():
    train = islands(80)
    names = [f"scan {b}" for b in range(80)]
    slices = [f"slice {n}" for n in range(len(train.x))]
    learn = bare_features(train.x.numpy(), train.offsets.diff().numpy(), names, train.labels.numpy(), slices)
    chosen = GaussianProcessHead.fit(learn, replace(SETTINGS, calibration="none")).settings
    assert (chosen.variance, chosen.bias, chosen.lengthscale_squared) == (0.5, 0.0, 320.0)


@pytest.mark.parametrize("fixed", [{"lengthscale_squared": 7.0}, {"variance": 2.0, "bias": 0.0}])
def test_what_the_settings_fix_stays(fixed):
    chosen = choose_kernel(islands(80), replace(SETTINGS, **fixed))
    assert {name: getattr(chosen, name) for name in fixed} == fixed


def test_noise_keeps_the_kernel_of_the_preset():
    train = islands(40)
    order = torch.randperm(len(train.x), generator=torch.Generator().manual_seed(0))
    mixed = train._replace(x=train.x[order])
    chosen = choose_kernel(mixed, SETTINGS)
    assert (chosen.variance, chosen.bias, chosen.lengthscale_squared) == (0.5, 0.0, 320.0)


@pytest.mark.parametrize("settings", [replace(SETTINGS, preset="paper"), replace(SETTINGS, learn="kernel")])
def test_the_preset_kernel_stays_without_choice(settings):
    chosen = choose_kernel(islands(80), settings)
    assert (chosen.variance, chosen.bias) == (0.5, 0.0)
    assert chosen.lengthscale_squared == settings.variant.length_per_feature * 20

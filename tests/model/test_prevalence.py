"""Probabilities at another share of positive scans: the shift of each sample by hand, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ich_mil.errors import ConfigError, ModelError
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.model.model import Member, TrainedModel
from ich_mil.model.predictions import Provenance
from ich_mil.model.storage import load_model
from ich_mil.prediction import Model
from ich_mil.sets.features import bare_features
from ich_mil.sets.splits import draw_splits, write_splits
from ich_mil.sets.views import Views
from tests.model.test_hostile_models import both, run, whole  # noqa: F401  fixtures

SETTINGS = HeadSettings(n_inducing=8, sweeps=5, variance=0.5, bias=0.0, lengthscale_squared=16.0)
OWN = Calibration("max", 1.5, -0.5, 0.7, 0.2, prevalence=0.4)


@pytest.fixture(scope="module")
def features():
    rng = np.random.default_rng(0)
    labels = np.arange(20) % 2
    x = rng.normal(size=(80, 4)) + np.repeat(labels, 4)[:, None]
    names = [f"s{b}" for b in range(20)]
    return bare_features(
        x, np.full(20, 4), names, labels, [f"{name}-{i}" for name in names for i in range(4)]
    )


@pytest.fixture(scope="module")
def model(features, tmp_path_factory):
    head = GaussianProcessHead.fit(features, SETTINGS)
    about = Provenance("VGPMIL", "1", "w", "c", "Platt scaling", "20 scans", prevalence=0.4)
    folder = tmp_path_factory.mktemp("model")
    write_splits(draw_splits(features.table, validation=0.2, test=0, seed=0), folder / "splits.csv")
    member = Member(folder, None, head, None, 0, None)
    return TrainedModel(folder, (member,), OWN, about, samples=300, bootstrap=10, seed=0)


def test_scan_samples_shift_by_the_log_odds(model, features):
    views = Views.of([features])
    raw = model.logits(views)[0].double()  # (L, B)
    shift = math.log(0.05 / 0.95) - math.log(0.4 / 0.6)
    samples = torch.sigmoid(1.5 * raw - 0.5 + shift)
    moved = model.at_prevalence(0.05).predict(views)
    torch.testing.assert_close(moved.scan_mean.double(), samples.mean(0), rtol=1e-5, atol=0)
    torch.testing.assert_close(moved.scan_std.double(), samples.std(0, correction=0), rtol=1e-2, atol=0)
    torch.testing.assert_close(moved.scan_high.double(), samples.quantile(0.975, 0), rtol=1e-2, atol=0)


def test_slices_shift_with_their_scan(model, features):
    moved, own = (one.predict(Views.of([features])) for one in (model.at_prevalence(0.05), model))
    assert bool((moved.slice_mean < own.slice_mean).all())
    assert bool((moved.slice_mean <= moved.scan_mean.repeat_interleave(4) + 1e-6).all())
    raw, one = torch.tensor([[0.3]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    shift = math.log(0.05 / 0.95) - math.log(0.4 / 0.6)
    wanted = 1 / (1 + math.exp(-(0.7 * 0.3 + 0.2 + shift)))
    assert float(OWN.at_prevalence(0.05).slices(raw, one)) == pytest.approx(wanted, rel=1e-12)


def test_own_prevalence_and_return_change_nothing(model, features):
    back = OWN.at_prevalence(0.01).at_prevalence(0.4)
    assert (back.intercept, back.slice_intercept) == pytest.approx((-0.5, 0.2), rel=1e-12)
    again = model.at_prevalence(0.4).predict(Views.of([features]))
    torch.testing.assert_close(again.scan_mean, model.predict(Views.of([features])).scan_mean)


def test_outputs_tell_the_shift(model):
    about = model.at_prevalence(0.05).provenance
    assert about.prevalence == 0.05
    odds = 0.05 / 0.95 / (0.4 / 0.6)  # of what was 50 %
    assert about.cut == pytest.approx(odds / (1 + odds))
    assert model.at_prevalence(0.05).at_prevalence(0.4).provenance.cut == pytest.approx(0.5)
    assert about.calibration == "Platt scaling; moved to a share of 0.05 positive scans"
    assert about.weights not in (model.provenance.weights, model.at_prevalence(0.1).provenance.weights)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0, math.nan, "x", [0.1]])
def test_a_share_outside_0_and_1_is_refused(model, share):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        model.at_prevalence(share)


@pytest.mark.parametrize("calibration", [None, replace(OWN, prevalence=None)])
def test_unknown_prevalence_is_refused(model, calibration):
    with pytest.raises(ModelError, match=str(model.folder)):
        replace(model, calibration=calibration).at_prevalence(0.1)


def test_models_of_earlier_versions_load_without(run, both):  # noqa: F811
    for folder in (run, both):
        trained = load_model(folder)
        assert trained.provenance.prevalence is None
        with pytest.raises(ModelError, match=str(folder)):
            Model(trained).at_prevalence(0.1)


def test_thresholds_and_prevalence_exclude_each_other(model):
    with pytest.raises(ConfigError, match="thresholds"):
        Model(model, triage=object()).at_prevalence(0.1)

"""Folds by patient, and held-out posteriors: what a replicate may not know, against separate fits."""

import math
from dataclasses import replace

import pytest
import torch

from ich_mil.errors import DataError
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit import fit
from ich_mil.gp.fit_calibration import (
    calibrate,
    calibrating,
    fit_calibrated,
    fit_with_folds,
    held_out_logits,
    moments_of,
    part_of,
    scan_values,
)
from ich_mil.gp.inference import held_out
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.inference.inducing import place_points
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.inference.replicates import fit_group
from ich_mil.gp.predict import draw
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.counterfactual import scan_logits
from tests.gp.synthetic import close, scans

BASE = HeadSettings(n_inducing=12, sweeps=12, variance=0.5, lengthscale_squared=48.0)


@pytest.fixture(scope="module")
def data():
    x, offsets, labels = scans(30)
    return Bags(x, offsets, labels)


@pytest.fixture(scope="module")
def folds(data):
    return folds_of(data.labels, None, folds=3, seed=0)


def slices_of(data, bags):
    bag_of = torch.repeat_interleave(torch.arange(len(data.labels)), data.offsets.diff())
    return torch.isin(bag_of, torch.tensor(bags))


@pytest.mark.parametrize("change", [{}, {"density": "gamma"}, {"family": "probit"}])
@pytest.mark.parametrize("exact", [True, False])
def test_a_replicate_fits_the_other_folds(data, folds, change, exact, monkeypatch):
    """To rounding with its own Θ, as Θ = 1 of a probit always is; near it with the Θ of the fit."""
    monkeypatch.setattr(held_out, "EXACT", 10_000 if exact else 0)
    settings = replace(BASE, tolerance=1e-300, **change)
    points = place_points(data, settings)
    mu, variance = moments_of(fit_with_folds(data, settings, points, folds).parts, len(data.x))
    rtol = 1e-7 if exact or settings.family == "probit" else 0.1
    for seen, out in folds:
        ((model, _),) = fit_group(data.take(seen), None, [settings], points).results
        held = data.take(out)
        projection = Projection(model, held.x)
        (m,), (v,) = projection.moments(model.q_mean[None], model.q_root.mT[None])
        close(mu[slices_of(data, out)], m, rtol=rtol)
        close(variance[slices_of(data, out)], v, rtol=rtol)


@pytest.mark.parametrize("change", [{}, {"family": "probit"}, {"density": "gamma"}])
@pytest.mark.parametrize("exact", [10_000, 0])
def test_the_fit_beside_folds_is_the_fit_alone(data, folds, change, exact, monkeypatch, preset):
    preset(logistic_tail=False)
    monkeypatch.setattr(held_out, "EXACT", exact)
    settings = replace(BASE, **change)
    alone, report = fit(data, settings)
    (model, other) = fit_with_folds(data, settings, place_points(data, settings), folds).fitted
    close(model.q_mean, alone.q_mean, rtol=1e-10)
    close(model.q_root, alone.q_root, rtol=1e-10)
    assert (other.stopped, other.best_sweep) == (report.stopped, report.best_sweep)


@pytest.mark.parametrize("family", ["psi", "probit"])
def test_held_out_logits_are_blind_to_their_label(data, folds, family):
    turned = data._replace(labels=data.labels.clone().index_fill_(0, torch.tensor([4]), 1 - data.labels[4]))
    settings = replace(BASE, family=family, tolerance=1e-300)
    points = place_points(data, settings)
    one, two = (fit_with_folds(bags, settings, points, folds) for bags in (data, turned))
    mine = slices_of(data, next(held for _, held in folds if 4 in held))
    held = [moments_of(found.parts, len(data.x))[0] for found in (one, two)]
    assert torch.equal(held[0][mine], held[1][mine])
    assert not torch.allclose(held[0][~mine], held[1][~mine])
    assert not torch.allclose(*(found.fitted[0].q_mean for found in (one, two)))


@pytest.mark.parametrize("rule", ["max", "noisy_or", "top_3"])
def test_scan_values_have_the_distribution_of_samples(data, rule):
    settings = replace(BASE, rule=rule)
    model, _ = fit(data, settings)
    sampled = scan_logits(draw(model, data, samples=4000))
    values = scan_values([part_of(model, data, torch.arange(len(data.x)))], data.offsets, settings, 400)
    spread = sampled.std(1)
    assert float(((values.mean(1) - sampled.mean(1)) / spread).abs().median()) < 0.05
    assert float((values.std(1) / spread).log().abs().median()) < 0.05
    p, q = torch.sigmoid(values).mean(1), torch.sigmoid(sampled).mean(1)
    torch.testing.assert_close(p[:, ::3], q[:, ::3], rtol=0, atol=0.03)


def test_calibrations_are_fitted_to_held_out_logits(data):
    settings = BASE
    logits = held_out_logits(data, settings)
    expected = Calibration.fit(*logits, data.labels, rule="max")
    assert fit_calibrated(data, settings)[0].calibration == expected
    several = calibrating(data.offsets, data.labels)
    assert 2 < len(several) < 30
    part = Calibration.fit(*logits[:, :, several], data.labels[several], rule="max")
    assert fit_calibrated(data, settings, calibrates=several)[0].calibration == part != expected
    none = replace(settings, calibration="none")
    assert fit_calibrated(data, none)[0].calibration is None
    watched = fit_calibrated(data, settings, validation=data)[0]
    assert watched.calibration == calibrate(watched, data)
    # it says more than no calibration: the loss of scans held out from it as well
    assert 0 < expected.slice_slope < 50


@pytest.mark.parametrize("change", [{"family": "large_margin"}, {"learn": "kernel", "sweeps": 4}])
def test_other_heads_are_calibrated_on_separate_fits(data, folds, change, monkeypatch):
    monkeypatch.setattr("ich_mil.gp.fit_calibration.FOLDS", 3)
    settings = replace(BASE, **change)
    logits = held_out_logits(data, settings)
    for seen, out in folds:
        model, _ = fit(data.take(seen), settings)
        held = data.take(out)
        own = scan_values([part_of(model, held, torch.arange(len(held.x)))], held.offsets, settings, 100)
        close(logits[0][:, list(out)], own[0], rtol=1e-6)


def test_folds_keep_patients_together():
    labels = torch.arange(40) % 2
    patients = [f"p{b // 2}" for b in range(40)]  # each patient has a scan of either label
    folds = folds_of(labels, patients, folds=4, seed=1)
    assert sorted(b for _, held in folds for b in held) == list(range(40))
    for train, held in folds:
        assert not {patients[b] for b in train} & {patients[b] for b in held}
        assert set(train) | set(held) == set(range(40))
    # another seed deals them otherwise, also where nobody has two scans
    for keys in (patients, None):
        drawn = [folds_of(labels, keys, folds=4, seed=seed) for seed in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("labels", "patients", "message"),
    [
        ([0] * 9 + [1] * 2, None, "3 folds .* 2 of one; take fewer folds$"),
        ([0, 0, 0, 1, 0, 1], "aaabac", "3 folds .* 1 of one; add scans of other patients"),
        ([0, 0, 0, 1, 1, 1], [1, 2, 3, 4, math.nan, 5], "scan 4 has no patient"),
        ([0, 0, 0, 1, 1, 1], "abcde", r"6 scans, .* shape \(5,\)"),
    ],
)
def test_folds_that_cannot_be_filled_are_refused(labels, patients, message):
    with pytest.raises(DataError, match=message):
        folds_of(torch.tensor(labels), patients and list(patients), folds=3, seed=0)

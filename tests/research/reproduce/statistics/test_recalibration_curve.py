"""Metrics after recalibration to n scans: draws by patient, each measured on the other scans."""

import numpy as np
import pandas as pd
import pytest
import torch

from ich_mil.evaluate.deployment.recalibration import METRICS
from ich_mil.evaluate.metrics import scan_metrics
from ich_mil.gp.calibration import Calibration, platt
from research.reproduce.statistics.recalibration_curve import _draw, pays_from, recalibration_curve
from tests.evaluate.deployment.test_recalibration import OWN, names, sampled, site


def number(frame, n, way, metric, column):
    rows = frame[(frame.n == n) & (frame.way == way) & (frame.metric == metric)]
    return rows[column].item()


def test_draws_divide_no_patient():
    owner = np.arange(60) // 4
    seen = set()
    for seed in range(20):
        drawn, rest = _draw(owner, 10, np.random.default_rng(seed))
        assert len(drawn) == len(set(drawn)) == 10
        assert not set(owner[drawn]) & set(owner[rest])
        assert len(rest) == 48  # three patients, and two scans of the third are in neither
        seen.add(tuple(sorted(drawn)))
    assert len(seen) > 15


def test_draws_are_measured_on_the_other_scans():
    z, y = site(100)
    samples = sampled(z)
    frame = recalibration_curve(samples, y, names(100), OWN, sizes=(30,), repeats=1, seed=5)
    owner = np.unique(names(100), return_inverse=True)[1]
    drawn, rest = _draw(owner, 30, np.random.default_rng([5, 30]))
    slope, intercept, _ = platt(samples[:, drawn], torch.as_tensor(y[drawn]))
    new = Calibration(slope=slope, intercept=intercept).scan(samples[:, rest]).mean(0).numpy()
    own, new = (scan_metrics(y[rest], p) for p in (torch.sigmoid(samples[:, rest]).mean(0).numpy(), new))
    for metric in METRICS:
        assert number(frame, 30, "platt", metric, "own") == pytest.approx(own[metric])
        for column in ("value", "low", "high"):
            assert number(frame, 30, "platt", metric, column) == pytest.approx(new[metric])
        assert number(frame, 30, "platt", metric, "better") == (new[metric] < own[metric])
    assert set(frame.left) == {70}


def test_draws_that_cannot_be_used_are_counted():
    z, y = site(200, intercept=-5)
    frame = recalibration_curve(z, y, names(200), OWN, sizes=(10,), repeats=40, seed=0)
    assert frame.one_label.iloc[0] / 40 == pytest.approx((1 - y.mean()) ** 10, abs=0.25)
    assert (frame.used + frame.one_label + frame.wrong_slope == 40).all()
    z, y = site(100, intercept=0)
    turned = recalibration_curve(-z, y, names(100), OWN, sizes=(40,), repeats=5, seed=0)
    assert set(turned[turned.way == "platt"].wrong_slope) == {5}
    assert set(turned[turned.way == "intercept"].used) == {5}


def test_pays_from_by_hand():
    draws = [(10, 1.0, 10), (20, 0.5, 10), (50, 0.9, 10), (100, 1.0, 9), (200, np.nan, 0)]
    frame = pd.DataFrame(draws, columns=["n", "better", "used"])
    frame = frame.assign(way="platt", metric="log_loss", one_label=10 - frame.used, wrong_slope=0)
    frame.loc[frame.n == 200, "one_label"] = 0
    assert pays_from(frame, way="platt") == 50  # not 10: at 20 it does not pay
    frame.loc[frame.n == 100, ["used", "one_label"]] = [8, 2]
    assert pays_from(frame, way="platt") is None


@pytest.mark.realdata
def test_the_cnn_is_recalibrated_to_cq500(cq500_features):
    z = torch.logit(cq500_features.cnn_scan.double().clamp(1e-6, 1 - 1e-6))
    scans = z, cq500_features.labels.numpy(), cq500_features.patients
    frame = recalibration_curve(*scans, Calibration(), sizes=(50, 200), repeats=8, seed=0)
    assert pays_from(frame, way="platt") == 50
    assert number(frame, 200, "platt", "ece", "value") < 0.5 * number(frame, 200, "platt", "ece", "own")

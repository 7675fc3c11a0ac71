"""A scan without a slice: against the samples by hand, on runs, and where no slice is left."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit import fit
from ich_mil.gp.predict import draw, predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.counterfactual import (
    Counterfactuals,
    SliceRun,
    counterfactuals,
    mean_counterfactuals,
    slice_runs,
)
from tests.gp.synthetic import scans


def drawn(head, bags, **how):
    return list(draw(head, bags, samples=50, seed=3, **how))


@pytest.mark.parametrize(
    ("reached", "runs"),
    [([0, 0, 0], []), ([1, 1, 0, 1], [(0, 1), (3, 3)]), ([0, 1, 1, 1], [(1, 3)]), ([1], [(0, 0)])],
)
def test_runs_by_hand(reached, runs):
    assert slice_runs(np.array(reached, dtype=bool)) == runs


@pytest.mark.parametrize("calibration", [None, Calibration(slope=0.7, intercept=-0.4)])
def test_max_rule_without_each_slice(head, new, calibration):
    said = predict(head, new, samples=50, seed=3, calibration=calibration)
    found, expected = [], []
    for one in drawn(head, new):
        n_slices = one.f.shape[1]
        found.append(counterfactuals(one, torch.zeros(n_slices), threshold=0.5, calibration=calibration))
        for n in range(n_slices):
            others = np.delete(one.f.numpy(), n, axis=1)
            if others.shape[1] == 0:
                expected.append(np.nan)
                continue
            z = others[:, (1 / (1 + np.exp(-others))).mean(0).argmax()]
            if calibration is not None:
                z = 0.7 * z - 0.4
            expected.append((1 / (1 + np.exp(-z))).mean())
    found = Counterfactuals.join(found)
    torch.testing.assert_close(found.scan_without, torch.tensor(expected), equal_nan=True)
    assert found.runs == ((),) * 9
    whole = said.scan_mean.repeat_interleave(new.offsets.diff())
    there = ~found.scan_without.isnan()
    assert (found.scan_without[there] <= whole[there] + 1e-12).all()


@pytest.mark.parametrize(("n", "runs"), [(2, ((0, 0),)), (3, ((0, 1),))])
def test_one_slice_left_is_the_scan(n, runs):
    """Of two or three slices all but the last reach the threshold; a probit."""
    x, offsets, labels = scans()
    model = fit(Bags(x, offsets, labels), HeadSettings(family="probit", n_inducing=12, sweeps=6))[0]
    mean = torch.ones(n, dtype=torch.float64)
    mean[-1] = 0
    (one,) = drawn(model, Bags(x[:n], torch.tensor([0, n])))
    found = counterfactuals(one, mean, threshold=0.5)
    (run,) = found.runs[0]
    assert ((run.first, run.last),) == runs
    assert run.scan_without == pytest.approx(norm.cdf(one.f[:, -1].numpy()).mean(), rel=1e-9)
    others = norm.cdf(one.f[:, 1:].numpy()).mean(0)
    assert float(found.scan_without[0]) == pytest.approx(others.max(), rel=1e-9)


def test_runs_of_one_and_of_all(head, new):
    one = max(drawn(head, new), key=lambda one: one.f.shape[1])
    mean = torch.zeros(one.f.shape[1])
    mean[2] = 0.9
    found = counterfactuals(one, mean, threshold=0.5)
    assert found.runs == ((SliceRun(2, 2, float(found.scan_without[2])),),)
    ((run,),) = counterfactuals(one, torch.full_like(mean, 0.5), threshold=0.5).runs
    assert (run.first, run.last) == (0, len(mean) - 1)
    assert np.isnan(run.scan_without)


def test_places_are_the_slices_to_remove(head, new):
    one = max(drawn(head, new), key=lambda one: one.f.shape[1])
    every = counterfactuals(one, torch.zeros(one.f.shape[1]), threshold=0.5).scan_without
    places = list(range(0, one.f.shape[1] - 1, 2))
    some = counterfactuals(one, torch.ones(len(places)), threshold=0.5, indices=places)
    assert torch.equal(some.scan_without, every[places])
    ((run,),) = some.runs
    assert (run.first, run.last) == (0, places[-1])
    left = one.f[:, places[-1] + 1 :]  # a run takes the slices between its own with it
    assert run.scan_without == pytest.approx(float(torch.sigmoid(left).mean(0).max()))


@pytest.mark.parametrize("rule", ["noisy_or", "top_3"])
def test_other_rules_without_each_slice(head, new, rule):
    one = max(drawn(head, new), key=lambda one: one.f.shape[1])
    one = replace(one, settings=replace(one.settings, rule=rule))
    found = counterfactuals(one, torch.zeros(one.f.shape[1]), threshold=0.5).scan_without
    p = torch.sigmoid(one.f[:, 1:])
    order = p.mean(0).argsort(descending=True)[:3]
    expected = 1 - (1 - p).prod(1) if rule == "noisy_or" else p[:, order].mean(1)
    assert float(found[0]) == pytest.approx(float(expected.mean()), rel=1e-9)


def test_mixtures_average_over_members():
    one, two = (
        Counterfactuals(torch.tensor([p, torch.nan]), ((SliceRun(1, 2, p),), ()), ((), ()))
        for p in (0.2, 0.6)
    )
    found = mean_counterfactuals([one, two])
    torch.testing.assert_close(found.scan_without, torch.tensor([0.4, torch.nan]), equal_nan=True)
    assert found.runs[1] == ()
    assert (found.runs[0][0].first, found.runs[0][0].last) == (1, 2)
    assert found.runs[0][0].scan_without == pytest.approx(0.4)

"""A scan without a slice: against the samples by hand, on runs, and where no slice is left."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from ich_mil.gp import counterfactual
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.counterfactual import (
    Counterfactuals,
    SliceRun,
    counterfactuals,
    mean_counterfactuals,
    slice_runs,
)
from ich_mil.gp.fit import fit
from ich_mil.gp.predict import predict, sample_latents, sample_scans
from ich_mil.gp.settings import HeadSettings
from tests.gp.synthetic import scans


@pytest.fixture(scope="module")
def head():
    return fit(*scans(), settings=HeadSettings(n_inducing=12, sweeps=6))[0]


@pytest.fixture(scope="module")
def new():
    x, offsets, _ = scans(9, seed=5)
    assert 1 in offsets.diff()
    return x, offsets, [f"scan {b}" for b in range(9)]


@pytest.mark.parametrize(
    ("reached", "runs"),
    [
        ([0, 0, 0], []),
        ([1, 1, 0, 1], [(0, 1), (3, 3)]),
        ([0, 1, 1, 1], [(1, 3)]),
        ([1], [(0, 0)]),
    ],
)
def test_runs_by_hand(reached, runs):
    assert slice_runs(np.array(reached, dtype=bool)) == runs


@pytest.mark.parametrize("calibration", [None, Calibration(slope=0.7, intercept=-0.4)])
def test_without_a_slice_it_is_that_of_the_others_with_the_largest_mean(head, new, calibration):
    x, offsets, ids = new
    said = predict(head, x, offsets, ids, samples=50, seed=3, calibration=calibration)
    found = counterfactuals(
        head, x, offsets, ids, said.slice_mean, threshold=0.5, samples=50, seed=3, calibration=calibration
    )
    expected = []
    for f in sample_scans(head, x, offsets, ids, samples=50, seed=3):
        for n in range(f.shape[1]):
            others = np.delete(f.numpy(), n, axis=1)
            if others.shape[1] == 0:
                expected.append(np.nan)
                continue
            z = others[:, (1 / (1 + np.exp(-others))).mean(0).argmax()]
            if calibration is not None:
                z = 0.7 * z - 0.4
            expected.append((1 / (1 + np.exp(-z))).mean())
    torch.testing.assert_close(found.scan_without, torch.tensor(expected), equal_nan=True)
    whole = said.scan_mean.repeat_interleave(offsets.diff())
    there = ~found.scan_without.isnan()
    assert (found.scan_without[there] <= whole[there] + 1e-12).all()
    assert there.sum() == len(x) - int((offsets.diff() == 1).sum())


@pytest.mark.parametrize(("n", "runs"), [(2, ((0, 0),)), (3, ((0, 1),))])
def test_one_slice_left_is_the_scan(n, runs):
    """Of two or three slices all but the last reach the threshold; a probit, smoothed where it says."""
    x, offsets, labels = scans()
    settings = HeadSettings(family="probit", n_inducing=12, sweeps=6, smooth_mm=4.0)
    model = fit(x, offsets, labels, settings=settings, positions=torch.arange(len(x)) * 5.0)[0]
    part, cut, z = x[:n], torch.tensor([0, n]), torch.tensor([0.0, 3.0, 20.0]).double()[:n]
    mean = torch.ones(n, dtype=torch.float64)
    mean[-1] = 0
    found = counterfactuals(model, part, cut, ["a"], mean, threshold=0.5, positions=z, samples=40, seed=3)
    (f,) = sample_latents(model, part, cut, ["a"], samples=40, seed=3)
    (run,) = found.runs[0]
    assert ((run.first, run.last),) == runs
    assert run.scan_without == pytest.approx(norm.cdf(f[:, -1].numpy()).mean(), rel=1e-9)
    # without the first the others smooth over each other, at their own distance
    w = np.exp(-(np.subtract.outer(z[1:].numpy(), z[1:].numpy()) ** 2) / (2 * 4.0**2))
    smooth = f[:, 1:].numpy() @ (w / w.sum(1, keepdims=True)).T
    assert float(found.scan_without[0]) == pytest.approx(norm.cdf(smooth).mean(0).max(), rel=1e-9)


def test_a_run_of_one_is_that_slice_and_a_run_of_all_leaves_nothing(head, new):
    x, offsets, ids = new
    mean = torch.zeros(len(x), dtype=torch.float64)
    b = int(offsets.diff().argmax())
    start, stop = int(offsets[b]), int(offsets[b + 1])
    mean[start + 2] = 0.9
    found = counterfactuals(head, x, offsets, ids, mean, threshold=0.5, samples=20)
    assert [len(runs) for runs in found.runs] == [int(k == b) for k in range(9)]
    (run,) = found.runs[b]
    assert (run.first, run.last) == (2, 2)
    assert run.scan_without == float(found.scan_without[start + 2])

    mean[start:stop] = 0.5
    (run,) = counterfactuals(head, x, offsets, ids, mean, threshold=0.5, samples=20).runs[b]
    assert (run.first, run.last) == (0, stop - start - 1)
    assert np.isnan(run.scan_without)


def test_what_does_not_belong_to_the_scans_or_the_head_is_refused(head, new):
    mean = predict(head, *new).slice_mean
    for other in (mean[:-1], mean[None], torch.cat([mean, mean])):
        with pytest.raises(ValueError, match=rf"there are {len(mean)} slices, but slice_mean is of shape \("):
            counterfactuals(head, *new, other, threshold=0.5)
    with pytest.raises(ValueError, match="the calibration was fitted to the rule 'noisy_or', not to 'max'"):
        counterfactuals(head, *new, mean, threshold=0.5, calibration=Calibration(rule="noisy_or"))


@pytest.mark.parametrize("link", ["logistic", "probit"])
def test_highest_of_the_others_is_that_of_any_rule_to_the_bit(link):
    f = torch.randn(64, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    settings = HeadSettings(family="probit" if link == "probit" else "psi", rule="max")
    quick, slow = counterfactual._rest_of_maxima(f, link), counterfactual._rest(f, settings, None)
    for first in range(9):
        for last in range(first, 9 if first else 8):
            assert torch.equal(quick(first, last), slow(first, last))


def test_a_long_scan_is_not_gone_through_again_for_each_slice(head, monkeypatch):
    """With 10,000 slices, 10^11 latent values would be looked at."""
    monkeypatch.setattr(counterfactual, "sampled_scan_logit", None)
    x, cut = scans()[0][:60], torch.tensor([0, 60])
    said = predict(head, x, cut, ["a"], samples=50)
    found = counterfactuals(head, x, cut, ["a"], said.slice_mean, threshold=0.5, samples=50)
    assert float(found.scan_without.max()) == pytest.approx(float(said.scan_mean), abs=1e-15)


def test_places_ask_about_some_slices_of_whole_scans(head, new):
    x, offsets, ids = new
    said = predict(head, x, offsets, ids, samples=50, seed=3)
    every = counterfactuals(head, x, offsets, ids, said.slice_mean, threshold=0.5, samples=50, seed=3)
    sizes = offsets.diff().tolist()
    places = [list(range(0, size, 2)) for size in sizes]
    rows = [int(start) + place for start, own in zip(offsets, places, strict=False) for place in own]
    some = counterfactuals(
        head, x, offsets, ids, said.slice_mean[rows], threshold=2.0, samples=50, seed=3, places=places
    )
    assert torch.equal(some.scan_without.nan_to_num(9), every.scan_without[rows].nan_to_num(9))
    b = sizes.index(max(sizes))
    one = counterfactuals(
        head, x, offsets, ids, torch.ones(len(rows)), threshold=0.5, samples=50, seed=3, places=places
    ).runs[b]
    f = [*sample_scans(head, x, offsets, ids, samples=50, seed=3)][b]
    left = f[:, places[b][-1] + 1 :]  # a run takes the slices between its own with it
    assert [(run.first, run.last) for run in one] == [(0, len(places[b]) - 1)]
    wanted = torch.sigmoid(left).mean(0).max() if left.shape[1] else torch.nan
    assert one[0].scan_without == pytest.approx(float(wanted), nan_ok=True)


def test_of_a_mixture_it_is_the_mean_over_members():
    one, two = (Counterfactuals(torch.tensor([p, torch.nan]), ((SliceRun(1, 2, p),), ())) for p in (0.2, 0.6))
    found = mean_counterfactuals([one, two])
    torch.testing.assert_close(found.scan_without, torch.tensor([0.4, torch.nan]), equal_nan=True)
    assert found.runs[1] == ()
    assert (found.runs[0][0].first, found.runs[0][0].last) == (1, 2)
    assert found.runs[0][0].scan_without == pytest.approx(0.4)

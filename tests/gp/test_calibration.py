"""Platt's calibration: hand values, the known answer, and few, separable or useless validation scans."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from ich_mil.gp.calibration import SLOPE_SPREAD, Calibration, platt, platt_loss, smoothed_targets
from ich_mil.gp.fit_calibration import calibrating


def test_scan_and_slice_maps_by_hand():
    calibration = Calibration("max", slope=2.0, intercept=-1.0, slice_slope=1.0, slice_intercept=0.5)
    logit = torch.tensor([0.0, math.log(4)], dtype=torch.float64)
    expected = torch.tensor([1 / (1 + math.e), 1 / (1 + math.e / 16)], dtype=torch.float64)
    torch.testing.assert_close(calibration.scan(logit), expected, rtol=1e-14, atol=0)
    # 1 - 4e-18 cannot be written, its logit 40 can
    assert float(Calibration("max", intercept=-40.0).scan(torch.tensor(40.0))) == 0.5
    # a slice is never likelier than its scan
    got = calibration.slices(torch.tensor([[-0.5, 3.0]]), torch.tensor([[0.75]]))
    assert got.tolist() == [[0.5, 0.75]]


@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_samples_are_calibrated_through_their_mean(spread):
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(200, generator=generator) < 0.4).long()
    centre = 2.0 * labels - 1 + torch.randn(200, generator=generator)
    logits = centre + spread * torch.randn(300, 200, generator=generator)
    slope, intercept, loss = platt(logits, labels)

    def at(a, b):
        p = torch.sigmoid(a * logits.double() + b).mean(0)
        n = int(labels.sum())
        target = 1 / (202 - n) + ((n + 1) / (n + 2) - 1 / (202 - n)) * labels.double()
        prior = (a * float(logits.double().std(correction=0)) / SLOPE_SPREAD) ** 2 / (2 * len(labels))
        return float(-(target * p.log() + (1 - target) * (1 - p).log()).mean()) + prior

    assert loss == pytest.approx(at(slope, intercept), rel=1e-10)
    # samples that spread wider than the labels warrant would be steepened without end
    assert 0 < slope < 20
    for a, b in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01)):
        assert at(slope + a, intercept + b) > loss


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_eight_separable_scans_keep_a_finite_slope(scale):
    logits = scale * torch.tensor([-4.0, -3.0, -3.5, -2.0, 2.0, 1.0, 4.0, 3.0], dtype=torch.float64)
    labels = torch.tensor([0] * 4 + [1] * 4)
    calibration = Calibration.fit(logits, logits, labels, rule="max")
    p = calibration.scan(logits)
    assert 0.2 < calibration.slope * scale < 3
    assert bool((p > 0.01).all())
    assert bool((p < 0.99).all())


def test_a_useless_head_predicts_the_prevalence():
    logits = torch.tensor([1.0, 2.0, -1.0, -2.0, 0.0], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 1])
    share = float(smoothed_targets(labels).mean())
    with pytest.warns(UserWarning, match="does not tell the 5 held-out scans apart"):
        found = Calibration.fit(logits, -logits, labels, rule="max")
    p = found.scan(logits[None])
    torch.testing.assert_close(p, torch.full_like(p, share), rtol=2e-3, atol=0)
    assert torch.equal(p.argsort(), logits.argsort()[None])
    assert found.slice_slope > 0.1
    with pytest.warns(UserWarning, match="does not tell"):
        found = Calibration.fit(-logits, logits, labels, rule="max")
    assert found.slope > 0.1
    q = found.slices(logits, torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(q, torch.full_like(q, 0.2 * share), rtol=2e-3, atol=0)


def test_one_label_leaves_no_calibration():
    logits = torch.tensor([1.0, 2.0, -1.0, -2.0], dtype=torch.float64)
    with pytest.warns(UserWarning, match="0 of the 4 held-out scans are positive"):
        assert Calibration.fit(logits, logits, torch.zeros(4), rule="max") is None
    with pytest.warns(UserWarning, match="4 of the 4 held-out scans are positive"):
        assert Calibration.fit(logits, logits, torch.ones(4), rule="max") is None


def overlapping(n=120):
    generator = torch.Generator().manual_seed(3)
    labels = (torch.rand(n, generator=generator) < 0.4).long()
    return 2.5 * (2.0 * labels - 1) + 3 * torch.randn(n, generator=generator).double(), labels


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
def test_the_newton_loss_equals_platt(scale):
    logits, labels = overlapping()
    rows = scale * torch.stack([logits, -logits, logits + 5, logits.exp().clamp(max=1e6)])
    expected = [platt(row, labels)[2] for row in rows]
    torch.testing.assert_close(
        platt_loss(rows, labels), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0
    )
    separable = torch.where(labels == 1, 1.0, -1.0).double()[None]
    assert float(platt_loss(separable, labels)) == pytest.approx(platt(separable, labels)[2], rel=1e-6)


def apart(kind, n, positive, generator):
    """Logits (n,) of scans of which the first are positive, few and far from the others."""
    labels = (torch.arange(n) < positive).long()
    noise = torch.randn(n, generator=generator).double()
    if kind == "cauchy":
        return torch.tan(torch.pi * (torch.rand(n, generator=generator).double() - 0.5)) + labels, labels
    if kind == "one far out":
        return torch.where(torch.arange(n) == 0, 1e4, noise + labels), labels
    return 30.0 * labels + 0.01 * noise, labels


@pytest.mark.parametrize("kind", ["cauchy", "one far out", "separable"])
@pytest.mark.parametrize(("n", "positive", "turned"), [(30, 1, False), (150, 5, True)])
def test_the_newton_loss_with_few_distant_scans(kind, n, positive, turned):
    """Newton's steps from slope 1 stop at 0.34 where 0.044 is the least."""
    z, labels = apart(kind, n, positive, torch.Generator().manual_seed(n))
    labels = 1 - labels if turned else labels
    got = float(platt_loss(z[None], labels))
    assert got == pytest.approx(platt(z, labels)[2], rel=1e-5)
    ones = int(labels.sum())
    target = np.where(labels == 1, (ones + 1) / (ones + 2), 1 / (n - ones + 2))
    unit = ((z - z.mean()) / z.std(correction=0)).numpy()

    def loss(ab):
        f = ab[0] * unit + ab[1]
        return (np.logaddexp(0, f) - target * f).mean() + ab[0] ** 2 / (2 * 100 * n)

    starts = [(a, b) for a in (-5, 5) for b in (-5, 5)]
    precise = {"xatol": 1e-9, "fatol": 1e-14, "maxiter": 4000}
    least = min(minimize(loss, start, method="Nelder-Mead", options=precise).fun for start in starts)
    assert got == pytest.approx(least, rel=1e-8)


@pytest.mark.parametrize(
    ("name", "value"), [("slope", 0.0), ("slice_intercept", math.nan), ("rule", "x"), ("prevalence", 1.0)]
)
def test_values_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"Calibration\n{name}\n"):
        Calibration(**{name: value})


def test_prevalence_is_that_of_the_fitted_scans():
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 0, 0, 1]).repeat(25)
    logits = labels + torch.randn(100, generator=generator)
    found = Calibration.fit(logits, logits, labels, rule="max")
    assert found.prevalence == 0.25
    assert Calibration(prevalence=0.9).then(found).prevalence == 0.25


def test_composed_calibrations_by_hand():
    own = Calibration(slope=2.0, intercept=-1.0, slice_slope=0.5, slice_intercept=0.25)
    joint = Calibration(slope=1.5, intercept=0.5, slice_slope=4.0, slice_intercept=-2.0)
    both = own.then(joint)
    assert (both.slope, both.intercept) == (3.0, -1.0)
    assert (both.slice_slope, both.slice_intercept) == (2.0, -1.0)
    raw = torch.linspace(-2, 2, 5, dtype=torch.float64)[None]
    scans, slices = own.logits(torch.stack([raw, raw]))
    torch.testing.assert_close(both.scan(raw), joint.scan(scans))
    whole = both.scan(raw.amax(1, keepdim=True))
    torch.testing.assert_close(both.slices(raw, whole), joint.slices(slices, whole))
    assert Calibration("noisy_or").then(joint).rule == "noisy_or"  # that of the raw logits


def test_bags_of_one_calibrate_where_needed():
    offsets, labels = torch.tensor([0, 3, 4, 6, 7]), torch.tensor([1, 0, 0, 1])
    assert calibrating(offsets, labels).tolist() == [0, 2]
    assert calibrating(offsets, torch.tensor([1, 0, 1, 1])).tolist() == [0, 1, 2, 3]

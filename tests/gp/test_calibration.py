"""Platt's calibration: hand values, the known answer, and few, separable or useless validation scans."""

import math

import pytest
import torch

from ich_mil.gp.calibration import SLOPE_SPREAD, ScanCalibration, platt


def test_apply_hand_values():
    calibration = ScanCalibration(slope=2.0, intercept=-1.0, rule="max")
    p = torch.tensor([0.0, 0.5, 0.8, 1.0], dtype=torch.float64)
    expected = torch.tensor([0.0, 1 / (1 + math.e), 1 / (1 + math.e / 16), 1.0], dtype=torch.float64)
    torch.testing.assert_close(calibration.apply(p), expected, rtol=1e-14, atol=0)
    # 1 - 4e-18 cannot be written, its logit 40 can
    assert float(ScanCalibration(1.0, -40.0).apply_logit(torch.tensor(40.0))) == 0.5


def test_two_values_are_calibrated_to_the_smoothed_frequencies():
    # 6 scans at logit -1, one positive; 8 at logit 3, seven positive: the sigmoid can meet both mean targets.
    logits = torch.tensor([-1.0] * 6 + [3.0] * 8, dtype=torch.float64)
    labels = torch.tensor([1] + [0] * 5 + [1] * 7 + [0])
    slope, intercept, _ = platt(logits, labels)
    high, low = 9 / 10, 1 / 8
    for z, mean in ((-1.0, (high + 5 * low) / 6), (3.0, (7 * high + low) / 8)):
        assert 1 / (1 + math.exp(-slope * z - intercept)) == pytest.approx(
            mean, rel=0.01
        )  # the prior on the slope pulls a little


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
    calibration = ScanCalibration.fit(logits, labels, rule="max")
    p = calibration.apply_logit(logits)
    assert 0.2 < calibration.slope * scale < 3
    assert bool((p > 0.01).all())
    assert bool((p < 0.99).all())


def test_a_useless_head_or_one_label_leaves_the_identity_and_says_so():
    logits = torch.tensor([1.0, 2.0, -1.0, -2.0], dtype=torch.float64)
    identity = ScanCalibration(1.0, 0.0, "noisy_or")
    with pytest.warns(UserWarning, match="would turn their order round"):
        assert ScanCalibration.fit(logits, torch.tensor([0, 0, 1, 1]), rule="noisy_or") == identity
    with pytest.warns(UserWarning, match="0 of the 4 validation scans are positive"):
        assert ScanCalibration.fit(logits, torch.zeros(4), rule="noisy_or") == identity


@pytest.mark.parametrize(
    ("name", "value"), [("slope", 0.0), ("slope", math.nan), ("intercept", math.inf), ("rule", "x")]
)
def test_values_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        ScanCalibration(**{name: value})

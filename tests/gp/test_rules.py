"""Scan rules: hand values, equality with the probabilities they stand for, and no saturation."""

import math

import pytest
import torch

from ich_mil.gp.rules import scan_logit


def test_rules_equal_their_probabilities():
    f = torch.tensor([[-1.0, 0.5, 2.0, -3.0], [0.0, -2.0, -2.5, 1.0]], dtype=torch.float64)
    p = torch.sigmoid(f)
    expected = {
        "max": p.amax(-1),
        "noisy_or": 1 - (1 - p).prod(-1),
        "top_3": p.sort(-1).values[:, 1:].mean(-1),
    }
    for rule, value in expected.items():
        torch.testing.assert_close(torch.sigmoid(scan_logit(f, rule)), value, rtol=1e-14, atol=0)


def test_35_slices_at_5_percent_make_a_scan_83_percent():
    f = torch.full((35,), math.log(0.05 / 0.95), dtype=torch.float64)
    assert float(torch.sigmoid(scan_logit(f, "noisy_or"))) == pytest.approx(1 - 0.95**35, rel=1e-13)


@pytest.mark.parametrize("rule", ["max", "noisy_or", "top_3"])
def test_a_scan_of_one_slice_is_its_slice_and_extremes_are_finite(rule):
    f = torch.tensor([[-600.0], [-2.0], [3.0], [900.0]], dtype=torch.float64)
    torch.testing.assert_close(scan_logit(f, rule), f[:, 0], rtol=1e-12, atol=0)
    assert math.isfinite(float(scan_logit(torch.tensor([-1e4, -1e4]).double(), rule)))


def test_order_of_slices_does_not_matter():
    f = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for rule in ("max", "noisy_or", "top_3"):
        torch.testing.assert_close(scan_logit(f.flip(-1), rule), scan_logit(f, rule), rtol=1e-13, atol=0)


def test_an_unknown_rule_raises():
    with pytest.raises(ValueError, match="rule must be one of max, noisy_or, top_3, got 'mean'"):
        scan_logit(torch.zeros(3), "mean")

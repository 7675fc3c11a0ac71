"""Scan rules: hand values, equality with the probabilities they stand for, and no saturation."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import expit
from scipy.stats import norm

from ich_mil.gp.aggregation import latent_logit, mean_logit, sampled_scan_logit, scan_logit


def one_scan(f, rule):
    return scan_logit(f, torch.tensor([0, f.shape[-1]]), rule)[..., 0]


def test_rules_equal_their_probabilities():
    f = torch.tensor([[-1.0, 0.5, 2.0, -3.0], [0.0, -2.0, -2.5, 1.0]], dtype=torch.float64)
    p = torch.sigmoid(f)
    expected = {
        "max": p.amax(-1),
        "noisy_or": 1 - (1 - p).prod(-1),
        "top_3": p.sort(-1).values[:, 1:].mean(-1),
        "top_50%": p.sort(-1).values[:, 2:].mean(-1),
        "top_51%": p.sort(-1).values[:, 1:].mean(-1),
    }
    for rule, value in expected.items():
        torch.testing.assert_close(torch.sigmoid(one_scan(f, rule)), value, rtol=1e-14, atol=0)


@pytest.mark.parametrize("rule", ["max", "noisy_or", "top_3"])
def test_one_slice_is_its_scan_and_extremes_finite(rule):
    f = torch.tensor([[-600.0], [-2.0], [3.0], [20.5], [30.0], [900.0]], dtype=torch.float64)
    torch.testing.assert_close(one_scan(f, rule), f[:, 0], rtol=1e-14, atol=0)
    assert math.isfinite(float(one_scan(torch.tensor([-1e4, -1e4]).double(), rule)))


def test_an_unknown_rule_raises():
    with pytest.raises(ValueError, match=r"rule must be one of max, noisy_or, top_3 .*, got 'mean'"):
        one_scan(torch.zeros(3), "mean")


@pytest.mark.parametrize("rule", ["max", "noisy_or", "top_3", "top_7", "top_20%"])
def test_packed_scans_are_the_scans_one_by_one(rule):
    f = torch.randn(4, 61, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    offsets = torch.tensor([0, 1, 3, 9, 40, 61])
    got = scan_logit(f, offsets, rule)
    alone = [one_scan(f[:, a:b], rule) for a, b in pairwise(offsets.tolist())]
    torch.testing.assert_close(got, torch.stack(alone, 1), rtol=1e-13, atol=0)


def test_the_logit_of_a_mean_probability():
    """A probit's is that of quadrature; MacKay's, by hand, is within 2 % of its probability."""
    mu, variance = torch.tensor([-3.0, 0.5, 2.0]).double(), torch.tensor([0.25, 4.0, 1.0]).double()
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    f = mu.numpy()[:, None] + variance.sqrt().numpy()[:, None] * points
    weights = weights / weights.sum()
    got = torch.sigmoid(mean_logit(mu, variance, "probit")).numpy()
    np.testing.assert_allclose(got, norm.cdf(f) @ weights, rtol=1e-6)  # of 80 nodes
    got = mean_logit(mu, variance, "logistic")
    np.testing.assert_allclose(got, mu.numpy() / np.sqrt(1 + np.pi / 8 * variance.numpy()), rtol=1e-12)
    np.testing.assert_allclose(torch.sigmoid(got), expit(f) @ weights, rtol=0, atol=0.02)


def test_probit_logits_are_exact_in_both_tails():
    f = torch.tensor([-30.0, -1.0, 0.0, 2.0, 30.0], dtype=torch.float64)
    expected = [norm.logcdf(v) - norm.logsf(v) for v in f.tolist()]
    torch.testing.assert_close(
        latent_logit(f, "probit"), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0
    )
    assert torch.equal(latent_logit(f, "logistic"), f)


def test_uncertain_slices_do_not_outweigh_a_suspicious():
    noise = torch.randn(2000, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    uncertain, suspicious = 3 * noise - 1, 0.5 * noise[:, :1] + 1
    said = [torch.sigmoid(sampled_scan_logit(f, "max")).mean() for f in (uncertain, suspicious)]
    assert said[0] < 0.5 < said[1]
    assert torch.sigmoid(scan_logit(uncertain, torch.tensor([0, 50]), "max")).mean() > said[1]
    both = torch.cat([uncertain, suspicious], 1)
    assert torch.equal(sampled_scan_logit(both, "max"), suspicious)
    assert torch.equal(sampled_scan_logit(suspicious, "top_3"), suspicious)

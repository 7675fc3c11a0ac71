"""Moments and draws of one-sided normals."""

import numpy as np
import torch
from scipy.special import log_ndtr
from scipy.stats import kstest, norm, truncnorm

from ich_mil.multimodal.inference.truncated import draw_signed, sides, signed_mean


def test_both_sides_against_scipy():
    x = torch.cat([torch.linspace(-30, 30, 241), torch.tensor([-1e4, 1e4, 0.0])]).double()
    got, a = sides(x), x.numpy()
    np.testing.assert_allclose(got.log_above, log_ndtr(a), rtol=1e-12, atol=0)
    np.testing.assert_allclose(got.log_below, log_ndtr(-a), rtol=1e-12, atol=0)
    mills = np.exp(norm.logpdf(a) - log_ndtr(a))
    # exp of a difference of large logarithms loses digits in scipy's version beyond |x| = 30
    inside = np.abs(a) <= 30
    np.testing.assert_allclose(got.mills_above[inside], mills[inside], rtol=1e-11, atol=0)
    np.testing.assert_array_equal(got.mills_below, sides(-x).mills_above)


def test_far_tail_by_its_series():
    x = torch.tensor([-1e4], dtype=torch.float64)  # λ(-t) = t + 1/t - 2/t³ ...
    np.testing.assert_allclose(sides(x).mills_above, [1e4 + 1e-4], rtol=1e-14)


def test_signed_mean_against_scipy():
    for mu in (-3.0, 0.2, 2.5):
        for sign in (-1.0, 1.0):
            low, high = (-mu, np.inf) if sign > 0 else (-np.inf, -mu)
            mean, log_p = signed_mean(
                torch.tensor(mu, dtype=torch.float64), torch.tensor(sign, dtype=torch.float64)
            )
            np.testing.assert_allclose(mean, truncnorm.mean(low, high, loc=mu), rtol=1e-9)
            np.testing.assert_allclose(log_p, log_ndtr(sign * mu), rtol=1e-12)


def test_draws_follow_the_distribution_in_the_tail():
    generator = torch.Generator().manual_seed(0)
    for mu, sign in ((-6.0, 1.0), (1.0, -1.0), (0.5, 1.0)):
        u = draw_signed(
            torch.full((4000,), mu, dtype=torch.float64), torch.full((4000,), sign).double(), generator
        )
        low, high = (-mu, np.inf) if sign > 0 else (-np.inf, -mu)
        assert kstest(u.numpy(), truncnorm(low, high, loc=mu).cdf).pvalue > 0.01

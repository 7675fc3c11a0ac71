"""θ and log ψ: hand values, limits, the defining identity, and what the logistic tail promises."""

import math

import pytest
import torch

from ich_mil.gp.observations.densities import Gamma, GammaLogisticTail, Logistic

C = torch.cat([torch.logspace(-6, 3, 200), torch.tensor([0.999e-4, 1.001e-4])]).double()
DENSITIES = [
    Logistic(),
    Gamma(1.0, 2.5),
    Gamma(0.5, 4.0),
    GammaLogisticTail(1.0, 2.5),
    GammaLogisticTail(0.5, 1.0),
    GammaLogisticTail(0.5, 4.0),
    GammaLogisticTail(20.0, 100.0),
]


def test_hand_values():
    c = torch.tensor([0.0, 2.0], dtype=torch.float64)
    expected = torch.tensor([0.25, math.tanh(1.0) / 4], dtype=torch.float64)
    torch.testing.assert_close(Logistic().theta(c), expected, rtol=1e-15, atol=0)
    expected = torch.tensor([1 / 2.5, 1 / 4.5], dtype=torch.float64)
    torch.testing.assert_close(Gamma(1.0, 2.5).theta(c), expected, rtol=1e-15, atol=0)
    # sigmoid(f) = exp(f/2) ψ(f): at f = 2
    log_psi = float(Logistic().log_psi(c[1]))
    assert log_psi == pytest.approx(-math.log(1 + math.exp(-2)) - 1, rel=1e-15)


@pytest.mark.parametrize("density", DENSITIES, ids=str)
def test_theta_is_minus_psi_prime_over_c_psi(density):
    c = C.clone().requires_grad_()
    (slope,) = torch.autograd.grad(density.log_psi(c).sum(), c)
    # logsigmoid'(c) - ½ cancels for small c: ½ tanh(c/2) is then known to an ulp of ½ only
    c = c.detach()
    error = (-slope - c * density.theta(c)).abs()
    assert float((error / (1e-12 * c * density.theta(c) + 2e-16)).max()) < 1


@pytest.mark.parametrize("density", DENSITIES, ids=str)
def test_theta_never_rises_and_log_psi_is_continuous(density):
    c = torch.linspace(0, 60, 200_001, dtype=torch.float64)
    theta = density.theta(c)
    assert float(theta.diff().max()) <= 1e-16
    steps = density.log_psi(c).diff()
    # |log ψ'| = cθ(c) is bounded, so no step may jump
    assert float(steps.abs().max()) <= float((c * theta).max()) * 3.01e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("density", [one for one in DENSITIES if isinstance(one, GammaLogisticTail)], ids=str)
def test_log_psi_with_logistic_tail_starts_at_0(density, dtype):
    at = density.log_psi(torch.zeros(3, dtype=dtype))
    # each piece is the difference of two values of up to 100
    torch.testing.assert_close(at, torch.zeros_like(at), rtol=0, atol=200 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("alpha", "beta", "count"), [(1.0, 2.5, 1), (0.5, 1.0, 1), (0.5, 4.0, 0), (20.0, 100.0, 2)]
)
def test_tail_takes_over_at_the_crossings_and_holds(alpha, beta, count):
    density = GammaLogisticTail(alpha, beta)
    assert len(density.crossings) == count
    for c in density.crossings:
        at = torch.tensor(c, dtype=torch.float64)
        assert float(Gamma(alpha, beta).theta(at)) == pytest.approx(float(Logistic().theta(at)), rel=1e-10)
    far = torch.tensor([1e3, 1e6], dtype=torch.float64)
    torch.testing.assert_close(far * density.theta(far), torch.full_like(far, 0.5), rtol=1e-12, atol=0)
    # A Gamma below the logistic everywhere leaves VGPMIL.
    if count == 0:
        assert torch.equal(density.theta(C), Logistic().theta(C))

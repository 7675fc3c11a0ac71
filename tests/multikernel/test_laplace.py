"""The Laplace approximation, its draw and its density, against dense (nC)² algebra."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from ich_mil.multikernel.laplace import (
    covariance,
    draw,
    hessian,
    laplace,
    log_likelihood,
    log_weights,
    newton_step,
    noise_rows,
)
from ich_mil.multikernel.marginal import square_roots
from tests.multikernel.problems import (
    approximation,
    dense,
    long_run_evidence,
    random_problem,
    two_class_evidence,
)

SIZES = [(2, 1, 6), (3, 2, 7), (4, 3, 5)]


def noise_of(q, d, S, seed=0):
    R, C, n = q.mode.shape
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(noise_rows(C, d, n), R, S, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("C", "d", "n"), SIZES)
def test_the_mode_has_no_gradient_by_autograd(C, d, n):
    q = approximation(*(problem := random_problem(3, C, d, n)))
    f = q.mode.clone().requires_grad_()
    K_inverse = torch.linalg.inv(covariance(problem[0], problem[1]))
    prior = -torch.einsum("rci,rcij,rcj->r", f, K_inverse, f) / 2
    (gradient,) = torch.autograd.grad((log_likelihood(f, problem[2]) + prior).sum(), f)
    assert float(gradient.abs().max()) < 1e-6


@pytest.mark.parametrize(("C", "d", "n"), SIZES)
def test_factors_equal_dense_ones(C, d, n):
    q = approximation(*random_problem(1, C, d, n))
    K, W, _ = dense(q)
    log_det = torch.linalg.slogdet(torch.eye(C * n, dtype=torch.float64) + K @ W).logabsdet
    torch.testing.assert_close(q.hessian.log_det[0], log_det, rtol=1e-10, atol=1e-10)
    g = torch.linspace(-1, 1, C * n, dtype=torch.float64)
    step = newton_step(q.K, hessian(q.K, q.mode), g.reshape(1, C, n))
    wanted = torch.linalg.solve(torch.eye(C * n, dtype=torch.float64) + W @ K, g)
    torch.testing.assert_close(step.flatten(), wanted, rtol=1e-9, atol=1e-11)
    evidence = (
        log_likelihood(q.mode, q.labels)[0]
        - q.mode.flatten() @ torch.linalg.solve(K, q.mode.flatten()) / 2
        - log_det / 2
    )
    torch.testing.assert_close(q.log_evidence[0], evidence, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("C", "d", "n"), SIZES)
def test_the_draw_has_exactly_the_dense_covariance(C, d, n):
    """δ = T ε is linear: the columns of T come from unit noise, and T Tᵀ = Λ⁻¹."""
    theta, S, labels = random_problem(1, C, d, n)
    q = approximation(theta, S, labels)
    unit = torch.eye(noise_rows(C, d, n), dtype=torch.float64)[:, None]
    T = draw(q, theta, square_roots(S), unit)[0].flatten(0, 1)  # (nC, rows)
    torch.testing.assert_close(T @ T.mT, torch.linalg.inv(dense(q)[2]), rtol=1e-9, atol=1e-11)
    zero = draw(q, theta, square_roots(S), torch.zeros_like(unit))
    assert float(zero.abs().max()) == 0


@pytest.mark.parametrize("at_mode", [True, False])
def test_weights_equal_the_ratio_of_dense_densities(at_mode):
    """Whatever the curvature: K⁻¹ cancels exactly."""
    theta, S, labels = random_problem(2, 3, 2, 6)
    K = covariance(theta, S)
    start = approximation(theta, S, labels).mode + 0.05
    q = laplace(K, labels, start, curvature_at_mode=at_mode)
    delta = draw(q, theta, square_roots(S), noise_of(q, 2, 5))
    f = q.mode[..., None] + delta  # (R, C, n, S)
    f = f[0].permute(2, 0, 1)  # (S, C, n)
    prior = MultivariateNormal(torch.zeros(6, dtype=torch.float64), K[0])
    joint = log_likelihood(f, labels[0]) + prior.log_prob(f).sum(1)
    precision = dense(q, q.hessian.root[0].square())[2]
    normal = MultivariateNormal(q.mode[0].flatten(), precision_matrix=precision)
    wanted = joint - normal.log_prob(f.flatten(1))
    torch.testing.assert_close(log_weights(q, delta)[0], wanted, rtol=0, atol=1e-8)


def estimates(K, theta, S, labels, *, size, seed):
    """exp of log estimates, relative to the Laplace evidence."""
    q = laplace(K, labels)
    weights = log_weights(q, draw(q, theta, square_roots(S), noise_of(q, len(S), size, seed)))
    return weights.sub(q.log_evidence[:, None]).exp().mean(-1), float(q.log_evidence[0])


@pytest.mark.parametrize(("C", "d", "seed", "scale"), [(2, 1, 3, 3), (3, 2, 4, 2)])
def test_the_estimate_is_unbiased(C, d, seed, scale):
    """Against quadrature for two classes, and a long run for three."""
    R = 40_000
    theta, S, labels = random_problem(1, C, d, 6, seed=seed)
    theta = scale * theta
    K = covariance(theta, S)
    if C == 2:
        truth, truth_error = two_class_evidence(K[0].sum(0), labels[0, 0], nodes=10), 0.0
    else:
        truth, truth_error = long_run_evidence(K[0], labels[0], draws=500_000)
    many = (K.expand(R, -1, -1, -1), theta.expand(R, -1, -1), S, labels.expand(R, -1, -1))
    ratio, level = estimates(*many, size=2, seed=1)
    wanted = float(torch.tensor(truth - level).exp())
    error = (float(ratio.var()) / R + (truth_error * wanted) ** 2) ** 0.5
    assert abs(wanted - 1) > 10 * error, "Laplace's evidence itself would pass"
    assert abs(float(ratio.mean()) - wanted) < 4 * error


def test_a_start_far_away_finds_the_same_mode():
    theta, S, labels = random_problem(4, 3, 2, 30)
    K = covariance(theta * torch.tensor([1e-3, 1.0, 30.0, 1e3], dtype=torch.float64)[:, None, None], S)
    first = laplace(K, labels)
    far = laplace(K, labels, 50 * torch.ones_like(first.mode) * labels.roll(1, 1))
    assert bool(first.log_evidence.isfinite().all())
    torch.testing.assert_close(far.mode, first.mode, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(far.log_evidence, first.log_evidence, rtol=1e-6, atol=1e-6)


def test_chains_do_not_touch_each_other():
    theta, S, labels = random_problem(3, 3, 2, 8)
    together = approximation(theta, S, labels)
    alone = approximation(theta[1:2], S, labels[1:2])
    torch.testing.assert_close(together.mode[1], alone.mode[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(together.log_evidence[1], alone.log_evidence[0], rtol=1e-9, atol=1e-9)


def test_the_density_of_a_chain_ignores_other_chains():
    """Detailed balance: q is a function of θ alone, also where W is that of the last step."""
    theta, S, labels = random_problem(12, 3, 2, 20)
    theta = theta * torch.logspace(-1, 2, 12, dtype=torch.float64)[:, None, None]
    K, start = covariance(theta, S), 0.1 * labels
    together = laplace(K, labels, start, curvature_at_mode=False)
    for r in range(len(K)):
        alone = laplace(K[r, None], labels[r, None], start[r, None], curvature_at_mode=False)
        torch.testing.assert_close(together.mode[r], alone.mode[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(together.hessian.root[r], alone.hessian.root[0], rtol=1e-10, atol=1e-10)

"""The chains, against the posterior of θ on a grid; what is carried, adapted and continued."""

from dataclasses import replace

import pytest
import torch

from ich_mil.convergence import bulk_ess
from ich_mil.multikernel.chains import Chains, SamplerSettings
from ich_mil.multikernel.marginal import Marginal
from ich_mil.multikernel.surrogate import Surrogate
from tests.multikernel.problems import hermite_grid, random_sources, two_class_evidence

FAST = SamplerSettings(chains=4, burn_in=100, draws=20, importance=4)


@pytest.fixture(scope="module")
def problem():
    """n = 4, two classes, one source: the evidence depends on θ_1 + θ_2, and pulls it up."""
    S = random_sources(1, 4, torch.Generator().manual_seed(1))
    hot = torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.float64)
    return S, hot


@pytest.fixture(scope="module")
def truth(problem):
    """Mean of θ_1 and of log θ_1, and P(θ_1 < ½), under Gamma(2, 0.5), by quadrature on a grid."""
    S, hot = problem
    x = torch.linspace(-6, 4.5, 400, dtype=torch.float64)
    sums = torch.linspace(-6, 5.5, 60, dtype=torch.float64)
    level = torch.tensor(
        [two_class_evidence(s.exp() * S[0], hot[0], nodes=20) for s in sums], dtype=torch.float64
    )
    total = torch.logaddexp(x[:, None], x[None])
    place = ((total - sums[0]) / (sums[1] - sums[0])).clamp(0, len(sums) - 1.001)
    low = place.long()
    evidence = torch.lerp(level[low], level[low + 1], place - low)
    log_p = evidence + (2 * x - 0.5 * x.exp())[:, None] + (2 * x - 0.5 * x.exp())[None]
    p = (log_p - log_p.max()).exp()
    p = p.sum(1) / p.sum()
    return float(p @ x.exp()), float(p @ x), float(p @ (x < torch.tensor(0.5).log()).double())


@pytest.mark.parametrize(
    ("method", "proposal"),
    [("pseudo_marginal", "random_walk"), ("pseudo_marginal", "surrogate"), ("ancillary", "random_walk")],
)
def test_chains_find_the_posterior_on_the_grid(problem, truth, method, proposal):
    settings = SamplerSettings(
        method, proposal, chains=16, burn_in=150, draws=200, importance=1, prior_shape=2, prior_rate=0.5
    )
    chains = Chains(*problem, settings)
    chains.run()
    x = chains.log_theta[..., 0]  # (R, T, 2)
    for value, wanted in zip((x.exp(), x, (x < torch.tensor(0.5).log()).double()), truth, strict=True):
        error = value.std() / bulk_ess(x).sum().sqrt()
        assert abs(float(value.mean()) - wanted) < 4 * float(error)
    rates = chains.acceptance
    assert 0.15 < rates["random_walk"] < 0.35
    assert rates.get("surrogate", 1) > 0.5


def test_estimate_is_carried_until_a_move(problem):
    chains = Chains(*problem, replace(FAST, importance=1))
    chains.run()
    draws, levels = chains.state["draws"], chains.state["levels"]
    stayed = (draws[:, 1:] == draws[:, :-1]).all(-1)
    same = levels[:, 1:] == levels[:, :-1]
    assert bool(stayed.any())
    assert not bool(stayed.all())
    assert bool((same == stayed).all())


def test_proposals_are_frozen_after_the_burn_in(problem):
    chains = Chains(*problem, replace(FAST, proposal="random_walk", draws=60))
    chains.run(steps=FAST.burn_in)
    scale, shape = chains.state["log_scale"].clone(), chains.state["covariance"].clone()
    chains.run()
    assert torch.equal(chains.state["log_scale"], scale)
    assert torch.equal(chains.state["covariance"], shape)


def test_the_picked_draw_follows_the_posterior_of_f(problem):
    """Mean of f¹ - f² against quadrature."""
    S, hot = problem
    R = 4000
    theta = torch.full((R, 2, 1), 2.0, dtype=torch.float64)
    marginal = Marginal(S, hot.expand(R, 2, 4).contiguous(), method="pseudo_marginal", importance=64)
    point = marginal.evaluate(theta, torch.Generator().manual_seed(0), torch.zeros(R, 2, 4).double())
    g = point.f[:, 0] - point.f[:, 1]
    z, weights = hermite_grid(4, 20)
    values = z @ torch.linalg.cholesky(4 * S[0]).mT
    p = (weights + torch.nn.functional.logsigmoid(values).sum(1)).softmax(0)
    error = g.std(0) / R**0.5
    assert float(((g.mean(0) - p @ values).abs() / error).max()) < 4
    assert float(((g.mean(0) - (point.mode[:, 0] - point.mode[:, 1]).mean(0)).abs() / error).max()) > 6


@pytest.mark.parametrize("method", ["pseudo_marginal", "laplace", "ancillary"])
def test_stopped_run_goes_on_to_the_bit(problem, method):
    whole = Chains(*problem, replace(FAST, method=method))
    whole.run()
    for stop in (FAST.burn_in, FAST.burn_in + 7):
        first = Chains(*problem, replace(FAST, method=method))
        first.run(steps=stop)
        saved = {name: value.clone() for name, value in first.checkpoint().items()}
        second = Chains(*problem, replace(FAST, method=method))
        second.restore(saved)
        second.run()
        assert torch.equal(second.state["draws"], whole.state["draws"])
        assert torch.equal(second.state["f"], whole.state["f"])


def test_a_seed_decides_everything(problem):
    runs = [Chains(*problem, replace(FAST, draws=10, random_state=seed)) for seed in (0, 0, 1)]
    for run in runs:
        run.run()
    assert torch.equal(runs[0].log_theta, runs[1].log_theta)
    assert not torch.equal(runs[0].log_theta, runs[2].log_theta)


def test_emulator_of_a_smooth_function():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 2.0, 0.3]) + 1

    def level(x):
        return -((x - 0.5) ** 2).sum(-1) + torch.tanh(x[..., 0])

    modes = torch.stack([x.sum(1), x[:, 0] * x[:, 1]], 1)[:, None]  # (Q, 1, 2)
    values = level(x)
    values[7] = -torch.inf
    emulator = Surrogate.fit(x, values, modes)
    new = torch.randn(200, 3, generator=generator, dtype=torch.float64) * torch.tensor([0.7, 1.4, 0.2]) + 1
    assert float((emulator.level(new) - level(new)).abs().max()) < 0.05
    torch.testing.assert_close(emulator.start(new)[:, 0, 0], new.sum(1), rtol=1e-2, atol=1e-2)
    corner = x.amax(0, keepdim=True)
    assert torch.equal(emulator.level(corner + 5), emulator.level(corner))


def test_settings_out_of_range_are_refused():
    for wrong in ({"chains": 1}, {"burn_in": 5}, {"importance": 0}, {"prior_rate": 0.0}, {"method": "gibbs"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SamplerSettings(**wrong)

"""Learning through the Gaussian process: bound, closed form, odd bags, divergence."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from ich_mil.errors import DataError
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.settings import CnnSettings, EncoderSettings
from research.benchmarks.through_gp.encoders import Perceptron, UpperBlock
from research.benchmarks.through_gp.learn import AttentionMil, KeepBest, fit
from research.benchmarks.through_gp.model import RATE, ThroughGp, distance_loss, effective_rank, pack

GENERATOR = torch.Generator().manual_seed(0)


def toy(n, *, sizes=(5,)):
    """Bags of 4 inputs; a positive bag has one instance at distance 3 from the origin."""
    labels = torch.arange(n) % 2
    parts = []
    for b, label in enumerate(labels):
        x = 0.5 * torch.randn(sizes[b % len(sizes)], 4, generator=GENERATOR)
        if label:
            x[0, :2] = 3 * torch.nn.functional.normalize(torch.randn(2, generator=GENERATOR), dim=0)
        parts.append(x)
    ends = torch.tensor([0, *map(len, parts)]).cumsum(0)
    return pack(torch.cat(parts), ends, labels, range(n))


def made(bags, **given):
    torch.manual_seed(0)
    return ThroughGp(Perceptron(bags.x.shape[1], hold=True), bags, seed=0, **given)


def test_a_block_of_a_network_is_trained_through_it():
    torch.manual_seed(0)
    settings = EncoderSettings(name="tf_efficientnet_lite0", size=64, blocks=4)
    network = AttentionCnn(settings, CnnSettings(features=8)).eval()
    pictures = torch.rand(12, 3, 64, 64)
    *lower, top = network.encoder
    with torch.no_grad():
        maps = torch.nn.Sequential(*lower, *top[:-1])(pictures)
        encoder = UpperBlock(network, tuple(maps.shape[1:]), hold=True)
        torch.testing.assert_close(encoder(maps.flatten(1)), network.encode(pictures))
    bags = pack(maps.flatten(1), torch.arange(0, 13, 3), torch.arange(4) % 2, range(4))
    with pytest.warns(UserWarning, match="distinct slices"):
        model = ThroughGp(encoder, bags, seed=0)
    model.train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    optimizer = model.configure_optimizers()
    model.training_step(bags, 0).backward()
    optimizer.step()
    changed = {name for name, value in encoder.state_dict().items() if not value.equal(before[name])}
    assert changed == {name for name, _ in encoder.named_parameters()}
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert {rates[id(p)] for p in encoder.parameters()} == {UpperBlock.rate}
    assert rates[id(model.gp.covar_module.raw_outputscale)] == RATE


def test_the_bound_never_falls():
    bags = toy(20)
    model = made(bags)
    model.pi = [torch.tensor([])] * 20
    features = model.encoder(bags.x).double().detach()
    with torch.no_grad():
        bounds = []
        for _ in range(8):
            seen, turns = model._local(features, bags, share=1.0, scale=1.0)
            mu, variance = (part[turns.order][None] for part in model.gp.marginals(features))
            bounds.append(float(seen.bound(mu, variance)[0] - model.gp.variational_strategy.kl_divergence()))
    assert (torch.tensor(bounds).diff() > -1e-6).all()
    assert bounds[-1] > bounds[0]
    negative = bags.labels[torch.arange(20).repeat_interleave(5)] == 0
    assert float(mu[0][turns.order.argsort()][negative].mean()) < -1


def test_a_full_step_is_the_closed_form():
    bags = toy(10)
    gp = made(bags).gp
    phi, theta, target = (torch.rand(shape, dtype=torch.float64) for shape in ((50, 30), (30,), (30,)))
    phi = phi[: len(gp.natural.natural_vec)]
    gp.step(phi, theta, target, scale=2.0, share=1.0)
    S = torch.linalg.inv(torch.eye(len(phi), dtype=torch.float64) + 2 * phi @ theta.diag() @ phi.T)
    q = gp.variational_strategy.variational_distribution  # what predictions use, also in evaluation mode
    torch.testing.assert_close(q.covariance_matrix, S)
    torch.testing.assert_close(q.mean, S @ (2 * phi @ target))


def test_learning_through_it_finds_what_the_start_does_not():
    bags, watched, new = toy(60), toy(20), toy(100)
    model = made(bags)
    before = roc_auc_score(new.labels, model.scan_probability(new))
    model, keep = fit(model, bags, watched, seed=0)
    assert roc_auc_score(new.labels, model.scan_probability(new)) > max(before, 0.95)
    assert keep.diverged is None
    assert keep.best < 0.5
    assert min(model.ranks) > 1.5


@pytest.mark.filterwarnings("ignore:.*distinct slices")
@pytest.mark.parametrize("sizes", [(1,), (1000, 3)])
def test_odd_bags(sizes):
    bags = toy(4, sizes=sizes)
    slices, scans = made(bags).samples(bags, draws=10)
    assert slices.shape == (10, len(bags.x))
    assert ((scans > 0) & (scans < 1)).all()
    assert torch.isfinite(made(bags).training_step(bags, 0))


def test_bad_bags_are_refused():
    bags = toy(4)
    with pytest.raises(DataError, match="positive"):
        made(bags._replace(labels=torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(ValueError, match="without instances"):
        pack(bags.x, torch.tensor([0, 0, 5]), bags.labels, [0, 1])


def test_divergence_keeps_the_best_state(monkeypatch):
    bags = toy(20)
    module = AttentionMil(Perceptron(4, hold=False))
    learned = module.training_step
    steps = []

    def breaks(batch, batch_idx):
        steps.append(batch_idx)
        loss = learned(batch, batch_idx)
        return loss * float("nan") if len(steps) > 4 else loss

    monkeypatch.setattr(module, "training_step", breaks)
    with pytest.warns(UserWarning, match="diverged in epoch 2"):
        module, keep = fit(module, bags, toy(10), seed=0)
    assert keep.diverged == 2
    assert all(torch.isfinite(value).all() for value in module.state_dict().values())


def test_watching_the_collapse():
    x = torch.randn(40, 6, generator=GENERATOR)
    assert effective_rank(x) > 4
    assert effective_rank(x[:, :1] * torch.ones(6)) == pytest.approx(1, abs=1e-3)
    assert float(distance_loss(x, 2 * x)) == pytest.approx(0, abs=1e-5)
    assert float(distance_loss(x, torch.randn(40, 6, generator=GENERATOR))) > 0.5
    assert KeepBest(toy(2), 3).diverged is None

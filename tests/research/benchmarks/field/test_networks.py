"""Replicates are independent fits, padding changes nothing, and bags of any size are taken."""

import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn

from ich_mil.errors import DataError
from tests.research.benchmarks.field.bags import toy

pytest.importorskip("torchmil.models", reason="torchmil (extra 'bench') is not installed")
from research.benchmarks.field import modules, networks, stacked
from research.benchmarks.field.stacked import Replicate, batches, padded, train

MODULES = {
    "ABMIL": modules.Attention,
    "DSMIL": modules.DualStream,
    "CLAM": modules.Clustered,
    "SmABMIL": modules.Smooth,
    "PatchGCN": modules.Graph,
}
METHODS = networks.NETWORKS | networks.ORDERED


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(stacked, "STEPS", 4)
    monkeypatch.setattr(stacked, "CHECKS", 2)


def pad(features):
    return padded(features, StandardScaler().fit(features.x.double().numpy()))


def test_a_replicate_is_a_fit_of_its_own(short):
    bags = pad(toy([4, 5, 6, 7] * 6))
    each = [Replicate(0, 1e-2, 0.1, tuple(range(20))), Replicate(3, 1e-3, 0.0, tuple(range(24)))]
    _, together = train(lambda: modules.Attention(3), bags, each, seed=0)
    for r, one in enumerate(each):
        _, alone = train(lambda: modules.Attention(3), bags, [one], seed=0)
        torch.testing.assert_close(together[-1][r], alone[-1][0], rtol=1e-4, atol=1e-6)


def test_training_is_that_of_torch(short):
    bags = pad(toy([4, 5, 6, 7] * 6))
    one = Replicate(5, 1e-2, 0.1, tuple(range(24)))
    stack, found = train(lambda: modules.Attention(3), bags, [one], seed=2)
    with stacked.seeded(5):
        model = modules.Attention(3)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    generator = torch.Generator().manual_seed(2)
    for _ in range(2):
        for chosen in batches(bags.sizes, generator):
            optimiser.zero_grad()
            model(*bags.take(chosen))[2].mean().backward()
            optimiser.step()
    wanted = nn.utils.parameters_to_vector(model.parameters())
    assert (found[-1][0] - stack.start[0]).abs().max() > 0.01
    torch.testing.assert_close(found[-1][0], wanted.detach(), rtol=1e-4, atol=1e-5)


def test_held_out_bags_do_not_move_weights(short):
    bags = pad(toy([4] * 24))
    one = [Replicate(0, 1e-2, 0.0, tuple(range(20)))]
    _, before = train(lambda: modules.Attention(3), bags, one, seed=0)
    bags.x[20:] += 5.0
    _, after = train(lambda: modules.Attention(3), bags, one, seed=0)
    assert torch.equal(before[-1], after[-1])
    bags.x[0] += 5.0
    _, moved = train(lambda: modules.Attention(3), bags, one, seed=0)
    assert not torch.equal(before[-1], moved[-1])


@pytest.mark.parametrize("name", sorted(MODULES))
def test_padding_changes_nothing(name):
    bags = pad(toy([5, 12, 20, 9]))
    torch.manual_seed(0)
    model = MODULES[name](3).eval()
    together = model(*bags)
    for b, n in enumerate([5, 12, 20, 9]):
        alone = model(*bags.take(torch.tensor([b])))
        torch.testing.assert_close(together[0][b], alone[0][0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(together[1][b, :n], alone[1][0], rtol=1e-4, atol=1e-5)


def test_instance_loss_is_the_smooth_svm():
    """log Σ_c exp(s_c + 1[c ≠ t] - s_t), for the ends of the attention, by loops."""
    bags = pad(toy([20] * 6))
    torch.manual_seed(0)
    model = modules.Clustered(3)
    _, attention, h = model.model(bags.x, return_att=True, return_emb=True)

    def smooth(classifier, x, target):
        s = classifier(x)
        others = torch.tensor([float(c != target) for c in range(2)])
        return torch.logsumexp(s + others - s[:, target, None], 1)

    for b in range(6):
        order, y = attention[b].argsort(descending=True), int(bags.y[b])
        top, low = h[b, order[: modules.NEAREST]], h[b, order[-modules.NEAREST :]]
        own, other = model.model.inst_classifiers[y], model.model.inst_classifiers[1 - y]
        wanted = torch.cat([smooth(own, top, 1), smooth(own, low, 0)]).mean() + smooth(other, top, 0).mean()
        torch.testing.assert_close(model.clusters(attention, h, bags.y)[b], wanted, rtol=1e-5, atol=0)


def test_neighbours_by_hand():
    A = modules.neighbours(torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    half = 0.5**0.5
    wanted = torch.tensor([[0, half, 0, 0], [half, 0, half, 0], [0, half, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(A[0], wanted, rtol=1e-6, atol=0)
    assert (A[1] == 0).all()


def test_batches_hold_each_bag_once():
    sizes = torch.tensor([1000, 1, 2, 3] * 10)
    parts = batches(sizes, torch.Generator().manual_seed(0))
    assert sorted(torch.cat(parts).tolist()) == list(range(40))
    for part in parts:
        assert len(part) == 1 or int(sizes[part].max()) * len(part) <= stacked.ROWS


@pytest.mark.parametrize("name", sorted(METHODS))
def test_bags_of_one_and_of_a_thousand(name, short, monkeypatch):
    monkeypatch.setattr(networks, "GRID", networks.GRID[:1])
    learn = toy([1, 1, 6, 7, 8, 9] * 4)
    test = toy([1, 1000, 4], seed=1)
    (found,) = METHODS[name](learn, test, [0])
    assert found.bags.shape == (3,)
    assert found.instances.shape == (1005,)
    assert found.bags.isfinite().all()
    assert found.instances.isfinite().all()


@pytest.mark.parametrize("name", sorted(networks.ORDERED))
def test_missing_positions_are_refused(name):
    learn, bare = toy([4] * 12), toy([4] * 12, seed=1, positions=False)
    for pair in ((bare, learn), (learn, bare)):
        with pytest.raises(DataError, match="positions in mm are missing"):
            METHODS[name](*pair, [0])


def test_attention_mil_learns(monkeypatch):
    learn, test = toy([6, 8] * 20), toy([7] * 20, seed=1)
    found = networks.NETWORKS["ABMIL"](learn, test, [0, 1])
    for one in found:
        assert ((one.bags > 0.5) == (test.labels == 1)).double().mean() > 0.9
        assert one.instances[test.slice_labels == 1].mean() > one.instances[test.slice_labels == 0].mean()
    assert not torch.equal(found[0].bags, found[1].bags)

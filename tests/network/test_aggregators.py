"""Aggregators: attention bitwise as before, hand values, permutations, packing, foreign modules."""

import math
import sys

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from ich_mil.errors import ModelError
from ich_mil.kernels.segments import bag_index, bag_softmax, bag_sum
from ich_mil.network.aggregators import build_aggregator, single_slices
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.frozen import load_cnn, save_cnn
from ich_mil.network.settings import CnnSettings, EncoderSettings

FOREIGN = "tests.network.foreign:Smooth"
NAMES = ["attention", "mean", "max", "transformer", FOREIGN]
OFFSETS = torch.tensor([0, 3, 4, 9, 11])
ENCODER = EncoderSettings(size=32)


def build(name, features=8):
    torch.manual_seed(0)
    return build_aggregator(name, features).double().eval()


def draw(slices=11, features=8):
    return torch.randn(
        slices, features, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()


def same(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-13)


def test_attention_is_bitwise_that_of_earlier_versions():
    """The layers were members of the network, drawn in this order, and computed in this order."""
    torch.manual_seed(7)
    V, U, w, classifier = nn.Linear(8, 64), nn.Linear(8, 64), nn.Linear(64, 1), nn.Linear(8, 1)
    torch.manual_seed(7)
    x, bags = draw().float().detach().requires_grad_(), bag_index(OFFSETS)
    aggregator = build_aggregator(CnnSettings().aggregator, 8)
    gate = torch.tanh(V(x)) * torch.sigmoid(U(x))
    attention = bag_softmax(w(gate).squeeze(-1), bags, 4)
    slice_logit = classifier(x).squeeze(-1)
    scan_logit = bag_sum(attention * slice_logit, bags, 4)
    (wanted,) = torch.autograd.grad(scan_logit.square().sum(), x)
    logits = aggregator(x, OFFSETS)
    assert torch.equal(logits, scan_logit)
    assert torch.equal(aggregator.weights(x, OFFSETS), attention)
    assert torch.equal(aggregator(x, single_slices(x)), slice_logit)
    assert torch.equal(*torch.autograd.grad(logits.square().sum(), x), wanted)


@pytest.mark.parametrize(("name", "wanted"), [("mean", [(1 - 2 + 4) / 3, -5.0]), ("max", [4.0, -5.0])])
def test_mean_and_max_by_hand(name, wanted):
    aggregator = build(name, 2)
    with torch.no_grad():
        aggregator.classifier.weight.copy_(torch.tensor([[1.0, 0.0]]))
        aggregator.classifier.bias.fill_(0.5)
    x = torch.tensor([[0.5, 9.0], [-2.5, 9.0], [3.5, 9.0], [-5.5, 9.0]], dtype=torch.float64)
    assert aggregator(x, torch.tensor([0, 3, 4])).tolist() == pytest.approx(wanted)
    assert aggregator(x, single_slices(x)).tolist() == [1.0, -2.0, 4.0, -5.0]


@pytest.mark.parametrize("name", ["attention", "mean", "max", FOREIGN])
def test_order_of_slices_does_not_count(name):
    x, aggregator = draw(), build(name)
    order = torch.tensor([2, 0, 1, 3, 8, 6, 4, 5, 7, 10, 9])
    same(aggregator(x[order], OFFSETS), aggregator(x, OFFSETS))


def test_transformer_knows_the_order_of_slices():
    x, aggregator = draw(), build("transformer")
    change = (aggregator(x.flip(0), torch.tensor([0, 11])) - aggregator(x, torch.tensor([0, 11]))).abs()
    assert change.item() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_scan_among_others_is_as_alone(name):
    x, aggregator = draw(), build(name)
    logits = aggregator(x, OFFSETS)
    for b, scan in enumerate(x.split(OFFSETS.diff().tolist())):
        same(logits[b], aggregator(scan, torch.tensor([0, len(scan)]))[0])
    (gradient,) = torch.autograd.grad(logits[2], x)
    assert gradient[4:9].abs().max() > 0
    assert not gradient[:4].any()
    assert not gradient[9:].any()


def test_transformer_of_a_scan_step_by_step():
    """Vaswani et al. 2017 with pre-norm, written out for one scan without padding."""
    x, aggregator = draw(5, 16), build("transformer", 16)
    p = torch.tensor(
        [[f(n / 10_000 ** (2 * i / 16)) for i in range(8) for f in (math.sin, math.cos)] for n in range(5)],
        dtype=torch.float64,
    )
    layer, h = aggregator.encoder.layers[0], x + p
    q, k, v = (
        part.unflatten(1, (2, 8)).transpose(0, 1)  # (heads, n, 8)
        for part in nn.functional.linear(
            layer.norm1(h), layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias
        ).chunk(3, 1)
    )
    seen = torch.softmax(q @ k.mT / math.sqrt(8), -1) @ v
    h = h + layer.self_attn.out_proj(seen.transpose(0, 1).flatten(1))
    h = aggregator.encoder.norm(h + layer.linear2(torch.relu(layer.linear1(layer.norm2(h)))))
    same(aggregator(x, torch.tensor([0, 5])), aggregator.pool(h, torch.tensor([0, 5])))
    same(aggregator.weights(x, torch.tensor([0, 5])), aggregator.pool.weights(h, torch.tensor([0, 5])))


@pytest.mark.parametrize("name", NAMES)
def test_outputs_of_the_network(name):
    torch.manual_seed(0)
    model = AttentionCnn(ENCODER, CnnSettings(aggregator=name)).eval()
    pictures = torch.rand(11, 3, 32, 32)
    output = model(pictures, OFFSETS)
    assert torch.equal(model.scan_logits(pictures, OFFSETS), output.scan_logit)
    alone = torch.cat([model(picture[None], torch.tensor([0, 1])).scan_logit for picture in pictures])
    torch.testing.assert_close(output.slice_logit, alone, rtol=1e-4, atol=1e-6)  # of convolutions
    if name in ("attention", "transformer"):
        totals = torch.stack([part.sum() for part in output.attention.split([3, 1, 5, 2])])
        torch.testing.assert_close(totals, torch.ones(4), rtol=1e-6, atol=0)
    else:
        assert output.attention.isnan().all()


@pytest.mark.parametrize("name", NAMES)
def test_stored_networks_come_back(name, tmp_path):
    torch.manual_seed(0)
    model = AttentionCnn(ENCODER, CnnSettings(aggregator=name)).eval()
    save_cnn(model, tmp_path)
    loaded, pictures = load_cnn(tmp_path), torch.rand(4, 3, 32, 32)
    assert loaded.settings.aggregator == name
    for got, wanted in zip(loaded(pictures, OFFSETS[:3]), model(pictures, OFFSETS[:3]), strict=True):
        assert torch.equal(got.nan_to_num(-1), wanted.nan_to_num(-1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("PerSlice", r"shape \(4,\) for 2 scans, not torch\.float32 \(2,\)"),
        ("Column", r"shape \(2, 1\) for 2 scans"),
        ("Pair", r"returns tuple, not a tensor"),
        ("Classes", r"returns torch\.bool"),
        ("Broken", r"fails on two scans .*mat1 and mat2"),
        ("NoArguments", r"fails on two scans .*positional argument.*built as Class\(features\)"),
        ("Remembers", r"_extra_state.* no tensor"),
        ("function", r"no class of torch\.nn\.Module"),
        ("Absent", r"cannot be imported .*Absent.*PYTHONPATH"),
    ],
)
def test_wrong_modules_fail_at_construction(name, message):
    with pytest.raises(ModelError, match=rf"^cnn\.aggregator tests\.network\.foreign:{name}: .*{message}"):
        AttentionCnn(ENCODER, CnnSettings(aggregator=f"tests.network.foreign:{name}"))


def test_a_stored_module_that_is_gone_is_named(tmp_path, monkeypatch):
    (tmp_path / "site_pooling.py").write_text("from tests.network.foreign import Smooth as Pool")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        save_cnn(AttentionCnn(ENCODER, CnnSettings(aggregator="site_pooling:Pool")), tmp_path / "run")
    monkeypatch.delitem(sys.modules, "site_pooling")
    with pytest.raises(ModelError, match=r"site_pooling:Pool: cannot be imported .*PYTHONPATH"):
        load_cnn(tmp_path / "run")


def test_probing_a_module_draws_no_random_numbers():
    torch.manual_seed(0)
    nn.Linear(8, 1)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    build_aggregator(FOREIGN, 8)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("name", ["maks", "os.path", "a b:C", ":C", "a:", "a:b.C", "a:C\n"])
def test_names_that_are_no_aggregator(name):
    with pytest.raises(ValidationError, match="aggregator"):
        CnnSettings(aggregator=name)


class TorchmilAttention(nn.Module):
    """The wrapper of docs/training.md."""

    def __init__(self, features):
        super().__init__()
        from torchmil.models import ABMIL

        self.model = ABMIL((features,), att_dim=64, gated=True)

    def forward(self, features, offsets):
        scans = features.split(offsets.diff().tolist())
        mask = [scan.new_ones(len(scan)) for scan in scans]
        return self.model(pad_sequence(scans, True), pad_sequence(mask, True))


def test_attention_of_torchmil_is_ours():
    """Another implementation of Ilse et al. 2018, padded and masked, with the weights of ours."""
    pytest.importorskip("torchmil")
    theirs, ours, x = build(f"{__name__}:TorchmilAttention"), build("attention"), draw()
    layers = {"V": "pool.fc1", "U": "pool.fc_gated", "w": "pool.fc2", "classifier": "classifier"}
    state = {
        f"model.{layers[layer]}{'.module' * (layer != 'w')}.{kind}": value
        for name, value in ours.state_dict().items()
        for layer, kind in [name.split(".")]
        if name != "w.bias"  # cancels in the softmax
    }
    theirs.load_state_dict(state)
    same(theirs(x, OFFSETS), ours(x, OFFSETS))

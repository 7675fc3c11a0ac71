"""Batch norm over ranks: the numbers of one process on all slices, and of float64, in both directions."""

import pytest
import torch
from torch import nn

from ich_mil.network import shared_norm
from ich_mil.network.shared_norm import SharedBatchNorm2d, share_statistics
from ich_mil.ranks import these_ranks
from tests.together import together

CUT = 3
"""Rank 0 has this many of the 8 slices."""


def a_model():
    torch.manual_seed(0)
    other = nn.BatchNorm2d(4, eps=1e-2, momentum=0.3)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Sequential(other)).double()


def slices():
    x = torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x * torch.linspace(1, 5, 8)[:, None, None, None] + 10  # the halves differ in mean and spread


def pass_through(model, x):
    """Output, gradients of the sum of squares of the *joined* output (of this part's share), statistics."""
    y = model(x)
    y.pow(3).sum().backward()
    gradients = [value.grad for value in model.parameters()]
    return y.detach(), gradients, {name: value.clone() for name, value in model.named_buffers()}


def a_value(x):
    """(1, 2, 1, 1): one value per channel."""
    return x[:1, :, :1, :1]


def shared():
    model = share_statistics(a_model(), torch.device("cpu"))
    part = slices()[:CUT] if these_ranks().first else slices()[CUT:]
    y, gradients, buffers = pass_through(model, part)
    model.eval()
    single = share_statistics(nn.BatchNorm2d(2).double(), torch.device("cpu"))(a_value(part))
    return y, gradients, buffers, model(part).detach(), single.detach()


def test_two_ranks_are_one(tmp_path):
    model = a_model()
    y, gradients, buffers = pass_through(model, slices())
    found = together(shared, folder=tmp_path)
    torch.testing.assert_close(torch.cat([one[0] for one in found]), y, rtol=1e-12, atol=1e-12)
    for whole, one, other in zip(gradients, found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one + other, whole, rtol=1e-10, atol=1e-9)
    for name, value in buffers.items():
        assert all(torch.allclose(one[2][name].double(), value.double(), rtol=1e-12) for one in found), name
    model.eval()
    torch.testing.assert_close(torch.cat([one[3] for one in found]), model(slices()).detach())
    values = torch.cat([a_value(slices()), a_value(slices()[CUT:])])
    wanted = nn.BatchNorm2d(2).double()(values).detach()  # one value on each of two ranks are two
    torch.testing.assert_close(torch.cat([one[4] for one in found]), wanted, rtol=1e-12, atol=1e-12)


def test_names_weights_and_mode_stay():
    model = a_model()
    model[3].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    shared_one = share_statistics(model, torch.device("cpu"))
    norms = [one for one in shared_one.modules() if isinstance(one, nn.BatchNorm2d)]
    assert [type(one) for one in norms] == [SharedBatchNorm2d] * 2
    assert [one.training for one in norms] == [True, False]
    assert shared_one.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in shared_one.state_dict().items())


@pytest.mark.parametrize("few", [0, shared_norm.FEW])
@pytest.mark.parametrize("training", [True, False])
def test_alone_it_is_batch_norm(training, few, monkeypatch):
    monkeypatch.setattr(shared_norm, "FEW", few)
    model, other = a_model().train(training), share_statistics(a_model(), torch.device("cpu")).train(training)
    torch.testing.assert_close(other(slices()), model(slices()), rtol=1e-12, atol=1e-12)
    for value, wanted in zip(other.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)


def test_sums_over_many_values_are_those_of_float64():
    x = torch.full((9, 2, 512, 512), 0.37).contiguous(memory_format=torch.channels_last)
    noise = torch.rand(9, 512, 512, generator=torch.Generator().manual_seed(0))
    x[:, 1] = noise.square()
    x[:, 0, :100, :100] += noise[:, :100, :100]  # the rest of it is air, say
    found = {}
    for dtype, norm in ((torch.float32, SharedBatchNorm2d(2)), (torch.float64, nn.BatchNorm2d(2))):
        norm.momentum, given = 1.0, x.to(dtype, copy=True).requires_grad_()
        y = norm.to(dtype)(given)
        y.backward(given.detach().mul(9).sin())
        found[dtype] = [y.detach(), given.grad, norm.weight.grad, norm.bias.grad]
        found[dtype] += [norm.running_mean, norm.running_var]
    for one, wanted in zip(found[torch.float32], found[torch.float64], strict=True):
        assert (one - wanted).abs().max() < 1e-5 * wanted.abs().max()


def test_its_gradient_is_that_of_differences(monkeypatch):
    monkeypatch.setattr(shared_norm, "FEW", 0)
    norm = share_statistics(nn.BatchNorm2d(2).double(), torch.device("cpu"))
    x = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: norm(x), (x,))


def test_a_single_value_per_channel_has_no_variance(monkeypatch):
    monkeypatch.setattr(shared_norm, "FEW", 0)
    norm = share_statistics(nn.BatchNorm2d(2), torch.device("cpu"))
    with pytest.raises(ValueError, match="more than one value per channel"):
        norm(torch.ones(1, 2, 1, 1))
    assert norm.eval()(torch.ones(1, 2, 1, 1)).shape == (1, 2, 1, 1)

"""Filter of slice probabilities along z."""

import math

import numpy as np
import torch

from ich_mil.model.model import filtered


def test_weights_of_the_filter_by_hand():
    p = torch.tensor([[0.2, 0.8, 0.5], [0.0, 1.0, 0.0]], dtype=torch.float64)
    near, far, farther = math.exp(-0.5), math.exp(-2.0), math.exp(-4.5)  # 5, 10 and 15 mm
    W = np.array([[1, near, farther], [near, 1, far], [farther, far, 1]])
    expected = p.numpy() @ (W / W.sum(1, keepdims=True)).T
    z = torch.tensor([-7.0, -2.0, 8.0])
    np.testing.assert_allclose(filtered(p, z), expected, rtol=1e-6)
    np.testing.assert_allclose(filtered(p, z + 300), expected, rtol=1e-5)  # from any origin
    np.testing.assert_allclose(filtered(p[:, [2, 0, 1]], z[[2, 0, 1]]), expected[:, [2, 0, 1]], rtol=1e-6)
    assert torch.equal(filtered(p[:, :1], z[:1]), p[:, :1])


def test_unknown_positions_leave_probabilities_as_they_are():
    p = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(filtered(p, torch.tensor([0.0, 5.0, math.nan])), p)

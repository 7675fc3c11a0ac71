"""Context of our head: hand values of the kernel and of the smooth operator."""

import math
from dataclasses import replace

import pytest
import torch

from ich_mil.errors import DataError
from ich_mil.gp.settings import HeadSettings
from research.benchmarks.field.context import ON_HEADS, heights, product_kernel, smoothed, with_heights
from tests.research.benchmarks.field.bags import toy


def test_kernel_is_the_product():
    settings = HeadSettings(variance=2.0, bias=3.0, lengthscale_squared=4.0)
    x = torch.tensor([[0.0, 1.0, 0.5], [1.0, -1.0, 2.0]], dtype=torch.float64)
    value = product_kernel(3, settings)(x).to_dense().detach()[0, 1]
    wanted = 2.0 * math.exp(-5.0 / 8.0) * math.exp(-(1.5**2) / 2.0) + 3.0
    assert float(value) == pytest.approx(wanted, rel=1e-6)


def test_heights_start_from_the_middle():
    assert heights(toy([3, 2])).tolist() == [-5.0, 0.0, 5.0, -2.5, 2.5]
    assert with_heights(toy([3, 2])).x[:, 3].tolist() == [-5.0, 0.0, 5.0, -2.5, 2.5]


def test_smoothing_by_hand():
    features = toy([2, 1])
    a, b, alone = features.x.double()
    wanted = torch.stack([(2 * a + b) / 3, (a + 2 * b) / 3, alone])
    torch.testing.assert_close(smoothed(features).x.double(), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", sorted(ON_HEADS))
def test_bags_of_one_and_of_a_thousand(name):
    learn, test = (
        replace(part, positions=torch.linspace(0, 1, len(part.x)))
        for part in (toy([1, 1, 6, 7, 8, 9] * 4), toy([1, 1000, 4], seed=1))
    )
    (found,) = ON_HEADS[name](learn, test, [0])
    assert found.bags.shape == (3,)
    assert found.instances.shape == (1005,)
    assert found.instances.isfinite().all()


@pytest.mark.parametrize("change", [with_heights, smoothed])
def test_missing_positions_are_refused(change):
    with pytest.raises(DataError, match="positions in mm are missing"):
        change(toy([4], positions=False))

"""The kernels on the features of real scans, with a head fitted to them, against the definitions."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ich_mil.data.features import FeatureSet
from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.leave_one_out import Turns, gauss_seidel, jacobi
from ich_mil.kernels.rbf_gram import rbf_gram

pytestmark = [pytest.mark.realdata, pytest.mark.slow]


class Fitted(NamedTuple):
    """A head, and μ and σ² (1, N) of the slices it was fitted to."""

    scans: FeatureSet
    model: SparseGP
    mu: Tensor
    variance: Tensor


@pytest.fixture(scope="module")
def rsna(rsna_features):
    scans = rsna_features
    model, _ = fit(Bags(scans.x, scans.offsets, scans.labels), HeadSettings())
    with torch.no_grad():
        moments = Projection(model, scans.x).moments(model.q_mean[None], model.q_root.mT[None])
    return Fitted(scans, model, *moments)


def near(found, expected, most):
    """No further apart than this share of the largest value."""
    assert float((found.cpu() - expected).abs().max()) <= most * float(expected.abs().max())


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-13), (torch.float32, 3e-7)])
@torch.no_grad()
def test_sums_over_slices(kernel_device, rsna, dtype, most):
    some = slice(0, None, 7)  # of every scan
    x, model = rsna.scans.x[some], rsna.model
    rbf = Projection(model, x).rbf()
    theta = torch.cat([rsna.variance, rsna.mu.sigmoid()])[:, some]
    expected = rbf_gram(x, rbf, theta, theta - 0.5, impl="torch")
    map_there = type(rbf)(*(part.to(kernel_device) for part in vars(rbf).values()))
    sums = (value.to(kernel_device) for value in (theta, theta - 0.5))
    got = rbf_gram(x.to(kernel_device), map_there, *sums, dtype=dtype, impl="triton")
    for own, right in zip(got, expected, strict=True):
        near(own, right, most)


@pytest.mark.parametrize("step", [gauss_seidel, jacobi])
def test_a_sweep_over_all_scans(kernel_device, rsna, step):
    offsets, labels = rsna.scans.offsets, rsna.scans.labels
    turns, there = Turns(offsets), Turns(offsets.to(kernel_device))
    mu = rsna.mu[:, turns.order]
    pull = 4.6 * (2.0 * labels.double() - 1)[turns.bag_order]
    values = logsigmoid(-mu), mu, pull
    expected = step(*values, turns, impl="torch")
    found = step(*(value.to(kernel_device) for value in values), there, impl="triton")
    for got, right in zip(found, expected, strict=True):
        near(got, right, 1e-14)

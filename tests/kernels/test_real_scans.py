"""The kernels on the features of real scans, with a head fitted to them, against the definitions."""

import pytest
import torch
from torch.nn.functional import logsigmoid

from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.settings import HeadSettings
from ich_mil.kernels.leave_one_out import Turns, gauss_seidel, jacobi
from ich_mil.kernels.rbf_gram import rbf_gram

pytestmark = [pytest.mark.realdata, pytest.mark.slow]


@pytest.fixture(scope="module")
def rsna(rsna_features):
    scans = rsna_features
    model, _ = fit(Bags(scans.x, scans.offsets, scans.labels), HeadSettings())
    with torch.no_grad():
        moments = Projection(model, scans.x).moments(model.q_mean[None], model.q_root.mT[None])
    return scans, model, *moments


def near(found, expected, most):
    """No further apart than this share of the largest value."""
    assert float((found.cpu() - expected).abs().max()) <= most * float(expected.abs().max())


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-13), (torch.float32, 3e-7)])
@torch.no_grad()
def test_sums_over_slices(kernel_device, rsna, dtype, most):
    some = slice(0, None, 7)  # of every scan
    scans, model, mu, variance = rsna
    x = scans.x[some]
    rbf = Projection(model, x).rbf()
    theta = torch.cat([variance, mu.sigmoid()])[:, some]
    expected = rbf_gram(x, rbf, theta, theta - 0.5, impl="torch")
    map_there = type(rbf)(*(part.to(kernel_device) for part in vars(rbf).values()))
    sums = (value.to(kernel_device) for value in (theta, theta - 0.5))
    got = rbf_gram(x.to(kernel_device), map_there, *sums, dtype=dtype, impl="triton")
    for own, right in zip(got, expected, strict=True):
        near(own, right, most)


@pytest.mark.parametrize("step", [gauss_seidel, jacobi])
def test_a_sweep_over_all_scans(kernel_device, rsna, step):
    scans, _, mu, _ = rsna
    turns, there = Turns(scans.offsets), Turns(scans.offsets.to(kernel_device))
    mu = mu[:, turns.order]
    pull = 4.6 * (2.0 * scans.labels.double() - 1)[turns.bag_order]
    values = logsigmoid(-mu), mu, pull
    expected = step(*values, turns, impl="torch")
    found = step(*(value.to(kernel_device) for value in values), there, impl="triton")
    for got, right in zip(found, expected, strict=True):
        near(got, right, 1e-14)

"""Φ of many slices: stored or computed again, block by block, and by the RBF op of a GPU."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from ich_mil.gp.inference import projection as module
from ich_mil.gp.inference.inducing import choose_inducing, standardisation
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.rbf_gram import rbf_gram


def head(kernel=None, *, n=400, d=5, m=40, device="cpu", **settings):
    """A head that was not fitted, and slices."""
    generator = torch.Generator().manual_seed(0)
    x = 3 + torch.randn(n, d, generator=generator) @ torch.randn(d, d, generator=generator)
    z = torch.randn(m, d, generator=generator, dtype=torch.float64)
    # so smooth that Φ compresses; L of a condition of 1e3
    made = HeadSettings(n_inducing=m, lengthscale_squared=1000.0, **settings)
    model = SparseGP(z, *standardisation(x), made, kernel=kernel).to(device).eval()
    model.variational_strategy.jitter_val = 1e-5
    return model, x.to(device)


def statistics(n, directions, replicates=3, device="cpu"):
    """θ, r, m, W."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((n,), (n,), (directions,), (directions, directions))
    parts = [torch.randn(replicates, *shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return parts[0].abs().to(device), *(part.to(device) for part in parts[1:])


def products(projection, theta, target, mean, root):
    return *projection.gram(theta, target), *projection.moments(mean, root)


@pytest.fixture
def recomputed(monkeypatch):
    """Φ is not stored; blocks are of 64 rows."""
    monkeypatch.setattr(module, "STORE_BYTES", 0)
    monkeypatch.setattr(module, "BLOCK_BYTES", {"cpu": 1, "cuda": 1})
    monkeypatch.setattr(module, "LEAST_ROWS", 64)


def ard():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=5)).double()
    kernel.outputscale = torch.tensor(0.7, dtype=torch.float64)
    kernel.base_kernel.lengthscale = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5], dtype=torch.float64)
    return kernel


class Dropping(RBFKernel):
    """An RBF kernel without the first feature."""

    def forward(self, x1, x2, **options):
        return super().forward(x1[..., 1:], x2[..., 1:], **options)


KERNELS = [
    (None, {}, True),
    (None, {"preset": "public"}, True),  # unit prior: in the residual alone
    (ard, {}, True),
    (None, {"bias": 1.0}, False),
    (lambda: ScaleKernel(RBFKernel(), active_dims=(0, 2)).double(), {}, False),
    (lambda: RBFKernel().double(), {}, False),
    (lambda: ScaleKernel(Dropping()).double(), {}, False),
]


@pytest.mark.parametrize(("kernel", "settings", "is_rbf"), KERNELS)
@pytest.mark.parametrize("compress", [False, True])
def test_products_are_the_same_without_storage(
    kernel, settings, is_rbf, compress, recomputed, monkeypatch, device
):
    model, x = head(kernel and kernel(), device=device, **settings)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(2)).to(device)
    with monkeypatch.context() as patch:
        patch.setattr(module, "STORE_BYTES", 10**9)
        stored = Projection(model, x, rows=rows, compress=compress)
    anew = Projection(model, x, rows=rows, compress=compress)
    assert anew.shape == stored.shape
    given = statistics(*stored.shape, device=device)
    expected = products(stored, *given)
    for a, b in zip(products(anew, *given), expected, strict=True):
        # on a GPU L⁻¹ is multiplied with instead of solved for: its condition, some 1e3, times 1e-16
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11 * float(b.abs().max()))
    assert (stored.rbf() is not None) == is_rbf
    if is_rbf:
        for a, b in zip(rbf_gram(x, stored.rbf(), *given[:2], rows=rows), expected[:2], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11 * float(b.abs().max()))


def test_mixed_precision_rounds_phi_alone(recomputed, device):
    model, x = head(device=device)
    exact, mixed = Projection(model, x), Projection(model, x, dtype=torch.float32)
    given = statistics(*exact.shape, device=device)
    assert {phi.dtype for _, phi in mixed.blocks(1)} == {torch.float32}
    assert [len(phi) for _, phi in mixed.blocks(1)] == [64] * 6 + [16]
    for a, b in zip(products(mixed, *given), products(exact, *given), strict=True):
        assert a.dtype == torch.float64
        # 6e-8 for each φ, and some of them cancel
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6 * float(b.abs().max()))
        assert not torch.equal(a, b)


@pytest.mark.parametrize("compress", [False, True])
def test_the_prior_variance_is_the_kernels(compress, recomputed):
    model, x = head()
    projection = Projection(model, x, compress=compress)
    m = projection.shape[1]
    zero, one = torch.zeros(1, m, dtype=torch.float64), torch.eye(m, dtype=torch.float64)[None]
    mu, variance = projection.moments(zero, one)
    assert not mu.any()
    # v + ε, but for what the directions left out have, 1e-9 of it
    torch.testing.assert_close(variance, torch.full_like(variance, 0.5 + 1e-5), rtol=1e-7, atol=0)


def test_blocks_of_more_replicates_are_shorter(monkeypatch):
    model, x = head()
    projection = Projection(model, x)
    monkeypatch.setattr(module, "LEAST_ROWS", 30)
    monkeypatch.setattr(module, "BLOCK_BYTES", {"cpu": 100 * 40 * 3 * 8})  # 100 slices for 3 replicates
    for replicates, lengths in ((3, [100] * 4), (1, [300, 100]), (100, [30] * 13 + [10])):
        assert [rows.stop - rows.start for rows, _ in projection.blocks(replicates)] == lengths


def test_a_selection_has_its_own_products():
    model, x = head()
    chosen = torch.tensor([7, 3, 399, 0])
    whole, part = Projection(model, x), Projection(model, x).select(chosen)
    theta, target, mean, root = statistics(*whole.shape)
    for a, b in zip(part.moments(mean, root), whole.moments(mean, root), strict=True):
        torch.testing.assert_close(a, b[:, chosen], rtol=1e-12, atol=0)
    only = torch.zeros_like(theta).index_fill(1, chosen, 1.0)
    given = theta[:, chosen], target[:, chosen]
    for a, b in zip(part.gram(*given), whole.gram(theta * only, target * only), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("slices", [400, 1600])
def test_directions_are_dropped_by_relative_energy(slices, monkeypatch):
    model, x = head()
    x = x.repeat(slices // 400, 1)  # energies grow with the repeats
    ones = torch.ones(1, len(x), dtype=torch.float64)
    energy = torch.linalg.eigvalsh(Projection(model, x).gram(ones, ones)[0][0])
    for share, kept in ((0.99, 5), (1.01, 4)):
        monkeypatch.setattr(module, "COMPRESSION", share * float(energy[-5]) * len(x) ** 0.5)
        assert Projection(model, x, compress=True).shape == (slices, kept)


@pytest.mark.realdata
def test_float32_sums_keep_the_precision_matrix_positive(rsna_features):
    x = rsna_features.x
    mean, std = standardisation(x)
    z = choose_inducing(
        x, rsna_features.offsets, rsna_features.labels, mean=mean, std=std, n_inducing=100, seed=0
    )
    model = SparseGP(z, mean, std, HeadSettings(n_inducing=100, lengthscale_squared=128.0)).eval()
    L, rbf = model.prior_root(), Projection(model, x).rbf()
    theta = torch.full((1, len(x)), 0.25, dtype=torch.float64)
    K = model.covar_module(z, model.standardise(x)).to_dense()
    half = torch.linalg.solve_triangular(L, ((K.float() * 0.25) @ K.mT.float()).double(), upper=False)
    whitened = torch.linalg.solve_triangular(L, half.mT, upper=False)
    projected, exact = (
        rbf_gram(x, rbf, theta, 0 * theta, dtype=dtype)[0][0] for dtype in (torch.float32, torch.float64)
    )
    least = [float(torch.linalg.eigvalsh((A + A.mT) / 2).min()) for A in (whitened, projected, exact)]
    assert least[0] < -10
    assert abs(least[1]) < 1e-3  # A = I + G: at least 0.999
    assert abs(least[2]) < 1e-9

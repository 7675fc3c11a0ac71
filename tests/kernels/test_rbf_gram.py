"""The sums of a sparse GP over slices against plain loops, and the Triton kernels against both."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ich_mil.kernels import rbf_gram as module
from ich_mil.kernels.rbf_gram import LEAST, PARTS, RBF, Scratch, rbf_gram, rbf_moments

SINGLE, DOUBLE = torch.float32, torch.float64
SIZES = [(1, 1, 1, 1, 1), (2, 3, 5, 4, 2), (37, 8, 70, 66, 3), (1000, 17, 20, 12, 2), (40, 4, 90, 81, 1)]
"""N, D, M, P, R: of P = 66 two directions are left beyond a block of 64, of 81 too many for a narrow one."""
FLOOR = {SINGLE: 2**-20 if torch.cuda.is_available() else 2**-21, DOUBLE: 1e-13}
"""Of the largest value: what three tf32 products lose of a float32 one, and 500 units of float64 for sums in
another order.

The product of the small parts is left out, 2^-22 of two factors, and each small part is cut to 11 bits, 2^-23
of its factor. A card also cuts sums, which the interpreter does not."""


@pytest.fixture(autouse=True)
def tensor_cores(monkeypatch):
    """Interpreted, a product of float32 too sees the first 11 bits of its factors and no more."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    product = interpreter.InterpreterBuilder.create_dot

    def cut(factor):
        if factor.data.dtype != np.float32:
            return factor
        return interpreter.TensorHandle((factor.data.view(np.int32) & -0x2000).view(np.float32), factor.dtype)

    def of_cut(builder, a, b, *others):
        return product(builder, cut(a), cut(b), *others)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", of_cut)


def case(n=100, d=4, m=20, p=15, r=2, *, scale=1.0, device="cpu", seed=0):
    """Features, map, θ, r, m, W."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    # ‖u - z‖² around 3: every slice counts
    rbf = RBF(
        scale * normal(d) / 3,
        (normal(d) / 3).exp() / (scale * math.sqrt(d)),
        normal(m, d) / math.sqrt(d),
        torch.tensor(0.7, dtype=DOUBLE),
        normal(p, m),
    )
    x = (scale * normal(n, d)).float()
    parts = (x, normal(r, n).abs(), normal(r, n), normal(r, p), normal(r, p, p) / math.sqrt(p))
    return on(rbf, device), *(part.to(device) for part in parts)


def on(rbf, device):
    return RBF(*(getattr(rbf, name).to(device) for name in RBF.__dataclass_fields__))


def phi_of(x, rbf):
    """φ (P, N) from differences, one slice after the other, in float64 on the CPU."""
    rbf = on(rbf, "cpu")
    columns = []
    for row in x.cpu().double():
        u = (row - rbf.shift) * rbf.scale
        k = [float(rbf.variance) * math.exp(-float((u - z).square().sum()) / 2) for z in rbf.inducing]
        columns.append(rbf.projection @ torch.tensor(k, dtype=DOUBLE))
    return torch.stack(columns, dim=1)


def oracle(rbf, x, theta, target, mean, root):
    """G, g, μ, Σ(Wφ)² from φ, in float64."""
    phi = phi_of(x, rbf)
    theta, target, mean, root = (part.cpu() for part in (theta, target, mean, root))
    G = torch.stack([phi @ torch.diag(row) @ phi.mT for row in theta])
    return G, target @ phi.mT, mean @ phi, (root @ phi).square().sum(1)


def both(inputs, **options):
    """G, g, μ, Σ(Wφ)² by the ops."""
    rbf, x, theta, target, mean, root = inputs
    return *rbf_gram(x, rbf, theta, target, **options), *rbf_moments(x, rbf, mean, root, **options)


def distance(got, expected):
    """Largest difference over largest value, of each."""
    found = [
        float((a.cpu() - b.cpu()).abs().max() / b.abs().max()) for a, b in zip(got, expected, strict=True)
    ]
    assert not any(map(math.isnan, found))  # `max` may pass over it
    return found


def test_one_slice_by_hand(device):
    one = torch.ones(1, 1, dtype=DOUBLE, device=device)
    rbf = RBF(one[0], one[0] / 2, 3 * one, torch.tensor(0.5, dtype=DOUBLE, device=device), 4 * one)
    # u = (5 - 1) / 2 = 2, ‖u - z‖² = 1, φ = 4 · ½ e^-½
    phi = 2 * math.exp(-0.5)
    G, g = rbf_gram(5 * one, rbf, 0.25 * one, -3 * one)
    mu, spread = rbf_moments(5 * one, rbf, 7 * one, -2 * one[None])
    found = [float(value.squeeze()) for value in (G, g, mu, spread)]
    assert found == pytest.approx([phi**2 / 4, -3 * phi, 7 * phi, 4 * phi**2], rel=1e-14)


@pytest.mark.parametrize("size", SIZES)
def test_definition_equals_loops(size, device):
    inputs = case(*size, device=device)
    expected = oracle(*inputs)
    # cancellation in ‖u - z‖² costs two digits
    assert max(distance(both(inputs, impl="torch"), expected)) < 1e-13
    # float32 φ: each rounded by 6e-8, and so is each product
    single = both(inputs, impl="torch", dtype=SINGLE)
    assert max(distance(single, expected)) < 1e-6
    assert all(value.dtype == DOUBLE for value in single)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("size", [*SIZES[:3], (150, 17, 20, 12, 2), SIZES[4]])
def test_kernels_are_as_near_to_the_truth_as_the_definition(size, dtype, kernel_device, nan_memory):
    inputs = case(*size, device=kernel_device)
    expected = oracle(*inputs)
    plain = distance(both(inputs, impl="torch", dtype=dtype), expected)
    kernel = distance(both(inputs, impl="triton", dtype=dtype), expected)
    for err, reference in zip(kernel, plain, strict=True):
        assert err <= 2 * reference + FLOOR[dtype]
    # φ is rounded to that dtype
    assert {err > 1e-12 for err in kernel} == {dtype == SINGLE}


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_values_of_ten_thousand_and_strided_half_precision(impl, kernel_device, nan_memory):
    rbf, x, theta, target, mean, root = case(n=60, scale=1e4, device=kernel_device)
    x = torch.stack([x.half(), x.half() + 5], dim=-1).flatten(1)[:, ::2]  # every other column
    assert x.stride() == (8, 2)
    theta, mean = theta.mT.contiguous().mT, mean[:1].expand(2, -1)
    scale = torch.stack([rbf.scale, rbf.scale + 5], dim=-1)[:, 0]
    strided = replace(rbf, scale=scale, inducing=rbf.inducing.mT.contiguous().mT)
    expected = oracle(rbf, x, theta, target, mean, root.mT)
    # ‖u - z‖² around 10: an ulp of u of 1e-16 · 1e4 · 1e-4 each, and the exponential keeps absolute errors
    assert max(distance(both((strided, x, theta, target, mean, root.mT), impl=impl), expected)) < 1e-13


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_far_centre_costs_nothing(impl, kernel_device):
    # all of the map 1e4 length scales away from 0: ‖u‖² alone would be 1e8 and lose 8 digits
    inputs = case(n=30, device=kernel_device)
    rbf = inputs[0]
    moved = replace(rbf, inducing=rbf.inducing + 1e4, shift=rbf.shift - 1e4 / rbf.scale)
    # the inputs themselves are rounded by 1e4 · 1e-16
    assert max(distance(both((moved, *inputs[1:]), impl=impl), oracle(*inputs))) < 1e-10


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_slice_on_a_far_point_is_no_nearer_than_at_it(impl, kernel_device):
    # ‖u‖² is 1e20, and ‖u - z‖² wrong by 1e4
    z = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE).to(kernel_device) * 1e10
    one = torch.ones((), dtype=DOUBLE, device=kernel_device)
    rbf = RBF(0 * z[0], one + 0 * z[0], z, one, torch.eye(50, dtype=DOUBLE, device=kernel_device))
    k, _ = rbf_moments(z, rbf, rbf.projection, rbf.projection.expand(50, -1, -1), impl=impl)
    assert float(k.max()) == 1.0


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_tiles_and_order_of_rows_do_not_matter(impl, dtype, kernel_device, nan_memory):
    how = {"impl": impl, "dtype": dtype}
    rbf, x, theta, target, mean, root = case(n=200, device=kernel_device)
    rows = torch.randperm(200, generator=torch.Generator().manual_seed(1)).to(kernel_device)
    whole = both((rbf, x, theta, target, mean, root), **how)
    turned = both((rbf, x, theta[:, rows], target[:, rows], mean, root), **how, rows=rows, tile=83)
    G, g, mu, spread = turned
    back = torch.empty_like(mu), torch.empty_like(spread)
    back[0][:, rows], back[1][:, rows] = mu, spread
    floor = 1e-6 if dtype == SINGLE else 1e-13  # sums in another order
    assert max(distance((G, g, *back), whole)) < floor
    torch.testing.assert_close(G, G.mT, rtol=0, atol=floor * float(G.abs().max()))


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_runs_agree_to_the_bit_and_nobody_sees_the_others(impl, dtype, kernel_device):
    inputs = case(n=80, r=3, device=kernel_device)
    rbf, x, theta, target, mean, root = inputs
    once, again = (both(inputs, impl=impl, dtype=dtype, tile=37) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    # slices 20 to 29 and replicate 1 change
    x, theta, target, mean, root = (part.clone() for part in (x, theta, target, mean, root))
    for part in (theta, target, mean, root):
        part[1] *= -3
    other = both((rbf, x, theta.abs(), target, mean, root), impl=impl, dtype=dtype, tile=37)
    for a, b in zip(once, other, strict=True):
        assert torch.equal(a[::2], b[::2])
        assert not torch.equal(a[1], b[1])
    x[20:30] += 1
    moved = both((rbf, x, theta.abs(), target, mean, root), impl=impl, dtype=dtype, tile=37)
    for a, b in zip(other[2:], moved[2:], strict=True):
        assert torch.equal(a[:, :20], b[:, :20])
        assert torch.equal(a[:, 30:], b[:, 30:])
        assert not (a[:, 20:30] == b[:, 20:30]).any()


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_feature_that_is_not_a_number_shows_in_its_slice_alone(impl, kernel_device):
    rbf, x, _, _, mean, root = case(n=40, device=kernel_device)
    x[7, 1] = math.nan
    for value in rbf_moments(x, rbf, mean, root, impl=impl):
        assert value.isnan().nonzero()[:, 1].tolist() == [7, 7]


LONG = [
    (1, 1, 1),
    (2 * LEAST - 1, 3, 5),  # the most rows that are one product
    (2 * LEAST, 3, 5),
    (PARTS * LEAST + 77, 1, 70),  # 64 parts of 513 rows, 13 rows are left
    (5001, 130, 65),  # 19 parts
]


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("size", LONG)
def test_a_product_over_many_rows_is_that_of_its_parts(size, dtype, device):
    n, p, q = size
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.rand(n, k, generator=generator, dtype=DOUBLE).to(dtype).to(device) for k in (p, q))
    expected = left.double().mT @ right.double()
    # all is positive: a sum of n may lose n roundings, and in practice loses their root
    rtol = 8 * n**0.5 * torch.finfo(dtype).eps
    torch.testing.assert_close(module._long(left, right).double(), expected, rtol=rtol, atol=0)


def test_of_tiles_in_float32_g_and_mu_are_sums_in_float64(device):
    _, _, theta, target, mean, root = case(device=device)
    phi = torch.randn(100, 15, generator=torch.Generator().manual_seed(3)).to(device)
    parts = [(slice(0, 70), phi[:70]), (slice(70, 100), phi[70:])]
    _, g = module.gram_of(parts, theta, target, width=15, scratch=Scratch())
    mu, _ = module.moments_of(parts, mean, root, length=100, scratch=Scratch())
    wanted = target @ phi.double(), mean @ phi.double().mT
    assert max(distance((g, mu), wanted)) < 1e-13


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_sums_as_a_gpu_makes_them_are_those_of_the_cpu(dtype, monkeypatch):
    inputs = case(1100, 5, 20, 12, 2)
    rbf, x, theta, target, *_ = inputs
    expected = oracle(*inputs)[:2]
    _, g = rbf_gram(x, rbf, theta, target, dtype=dtype, tile=600, impl="torch")
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    found = rbf_gram(x, rbf, theta, target, dtype=dtype, tile=600, impl="torch")
    assert max(distance(found, expected)) < (3e-6 if dtype is SINGLE else 1e-13)
    # of the same φ in float32 or not, g is a sum in float64
    assert distance(found[1:], [g]) < [1e-13]


def test_memory_for_products_is_kept_and_is_of_the_dtype_of_the_tile():
    scratch, single = Scratch(), torch.empty(1, dtype=SINGLE)
    first = scratch.like(single, 4, 3)
    assert scratch.like(single, 2, 5).data_ptr() == first.data_ptr()
    assert scratch.like(single, 2, 7).shape == (2, 7)
    assert scratch.like(single.double(), 2).dtype == DOUBLE


def test_identities(device):
    rbf, x, theta, target, mean, root = case(device=device)
    G, g = rbf_gram(x, rbf, theta, target)
    mu, spread = rbf_moments(x, rbf, mean, root)
    # mᵀG m = Σ θ μ², mᵀg = Σ r μ, tr(W G Wᵀ) = Σ θ Σ(Wφ)²
    for got, expected in (
        ((mean[:, None] @ G @ mean[..., None]).flatten(), (theta * mu.square()).sum(1)),
        ((mean * g).sum(1), (target * mu).sum(1)),
        ((root @ G @ root.mT).diagonal(dim1=1, dim2=2).sum(1), (theta * spread).sum(1)),
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


@pytest.fixture
def grids(monkeypatch):
    """Of the kernels that are launched."""
    from ich_mil.kernels.triton import rbf_tiles as rbf_tiles_triton

    kernels, seen = type(rbf_tiles_triton._kernel_tile), []
    launch = kernels.__getitem__
    monkeypatch.setattr(
        kernels, "__getitem__", lambda kernel, grid: seen.append(grid) or launch(kernel, grid)
    )
    return seen


def test_slices_run_along_the_one_axis_of_a_launch_that_may_be_long(kernel_device, grids):
    rbf, x, _, _, mean, root = case(300, 4, 100, 20, 3, device=kernel_device)
    rbf_moments(x, rbf, mean, root, impl="triton")
    assert grids == [(5, 2), (3, 3)]  # blocks of slices; of points, and replicates


@pytest.mark.parametrize(
    ("directions", "programs"), [(8, [1]), (64, [1]), (80, [1, 2]), (81, [4]), (200, [9, 4])]
)
def test_few_directions_beyond_whole_blocks_are_a_narrow_one(directions, programs, kernel_device, grids):
    rbf, x, theta, target, *_ = case(20, 3, 5, directions, 3, device=kernel_device)
    rbf_gram(x, rbf, theta, target, impl="triton")
    assert [grid[:2] for grid in grids[1:]] == [(number, 2) for number in programs]  # replicates in pairs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_opcheck(kernel_device):
    from ich_mil.kernels.triton import rbf_gram as rbf_gram_triton
    from ich_mil.kernels.triton import rbf_moments as rbf_moments_triton

    rbf, x, theta, target, mean, root = case(n=20, device=kernel_device)
    rows = torch.arange(20, device=kernel_device).flip(0)
    for order in (None, rows):
        first = (x, order, *rbf.centred())
        torch.library.opcheck(rbf_gram_triton.rbf_gram, (*first, theta, target, True, 7))
        torch.library.opcheck(rbf_moments_triton.rbf_moments, (*first, mean, root, False, 7))


def test_invalid_input_is_refused():
    rbf, x, theta, target, mean, root = case()
    single = replace(rbf, projection=rbf.projection.float())
    for says, given, how in (
        ("one slice", (x[:0], rbf, theta[:, :0], target[:, :0]), {}),
        ("one slice", (x, rbf, theta[:, :0], target[:, :0]), {"rows": torch.arange(0)}),
        ("4 features", (x[:, :3], rbf, theta, target), {}),
        ("4 features", (x[..., None], rbf, theta, target), {}),
        (r"\(2, 99\)", (x, rbf, theta[:, 1:], target), {}),
        (r"\(1, 100\)", (x, rbf, theta, target[:1]), {}),
        (r"\(100,\)", (x, rbf, theta[0], target[0]), {}),
        ("float64", (x, rbf, theta.float(), target), {}),
        ("float64", (x, single, theta, target), {}),
        ("float16", (x, rbf, theta, target), {"dtype": torch.float16}),
        (r"\(2, 100\)", (x, rbf, theta, target), {"rows": torch.arange(3)}),
    ):
        with pytest.raises(ValueError, match=says):
            rbf_gram(*given, **how)
    for says, given in ((r"\(2, 14\)", (mean[:, 1:], root)), (r"\(1, 15, 15\)", (mean, root[:1]))):
        with pytest.raises(ValueError, match=says):
            rbf_moments(x, rbf, *given)

"""The sums of a sparse GP over slices against plain loops, and the Triton kernels against both."""

import math
from dataclasses import replace

import pytest
import torch

from ich_mil.kernels.rbf_gram import RBF, gram_of, moments_of, rbf_gram

SINGLE, DOUBLE = torch.float32, torch.float64
SIZES = [(1, 1, 1, 1, 1), (2, 3, 5, 4, 2), (37, 8, 70, 66, 3), (1000, 17, 20, 12, 2), (40, 4, 90, 81, 1)]
"""N, D, M, P, R: of P = 66 two directions are left beyond a block of 64, of 81 too many for a narrow one."""
FLOOR = {SINGLE: 2**-20 if torch.cuda.is_available() else 2**-21, DOUBLE: 1e-13}
"""Of the largest value: what three tf32 products lose of a float32 one, and 500 units of float64 for sums in
another order.

The product of the small parts is left out, 2^-22 of two factors, and each small part is cut to 11 bits, 2^-23
of its factor, on a card, which also cuts sums."""


def case(n=100, d=4, m=20, p=15, r=2, *, scale=1.0, device="cpu", seed=0):
    """Map, features, θ, r."""
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
    parts = (x, normal(r, n).abs(), normal(r, n))
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


def oracle(rbf, x, theta, target):
    """G and g from φ, in float64."""
    phi = phi_of(x, rbf)
    theta, target = theta.cpu(), target.cpu()
    return torch.stack([phi @ torch.diag(row) @ phi.mT for row in theta]), target @ phi.mT


def distance(got, expected):
    """Largest difference over largest value, of each."""
    found = [
        float((a.cpu() - b.cpu()).abs().max() / b.abs().max()) for a, b in zip(got, expected, strict=True)
    ]
    assert not any(map(math.isnan, found))  # `max` may pass over it
    return found


def gram(inputs, **options):
    """G and g of `case` by the op."""
    rbf, x, *sums = inputs
    return rbf_gram(x, rbf, *sums, **options)


@pytest.mark.parametrize("size", SIZES)
def test_definition_equals_loops(size, device):
    inputs = case(*size, device=device)
    expected = oracle(*inputs)
    # cancellation in ‖u - z‖² costs two digits
    assert max(distance(gram(inputs, impl="torch"), expected)) < 1e-13
    # float32 φ: each rounded by 6e-8, and so is each product
    single = gram(inputs, impl="torch", dtype=SINGLE)
    assert max(distance(single, expected)) < 1e-6
    assert all(value.dtype == DOUBLE for value in single)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("size", [*SIZES[:3], (150, 17, 20, 12, 2), SIZES[4]])
def test_kernels_are_as_exact_as_the_definition(size, dtype, kernel_device, nan_memory):
    inputs = case(*size, device=kernel_device)
    expected = oracle(*inputs)
    plain = distance(gram(inputs, impl="torch", dtype=dtype), expected)
    kernel = distance(gram(inputs, impl="triton", dtype=dtype), expected)
    for err, reference in zip(kernel, plain, strict=True):
        assert err <= 2 * reference + FLOOR[dtype]
    # φ is rounded to that dtype
    assert {err > 1e-12 for err in kernel} == {dtype == SINGLE}


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_values_of_ten_thousand_and_strided_half_precision(impl, kernel_device, nan_memory):
    rbf, x, theta, target = case(n=60, scale=1e4, device=kernel_device)
    x = torch.stack([x.half(), x.half() + 5], dim=-1).flatten(1)[:, ::2]  # every other column
    assert x.stride() == (8, 2)
    scale = torch.stack([rbf.scale, rbf.scale + 5], dim=-1)[:, 0]
    strided = replace(rbf, scale=scale, inducing=rbf.inducing.mT.contiguous().mT)
    sums = theta.mT.contiguous().mT, target[:1].expand(2, -1)
    # ‖u - z‖² around 10: an ulp of u of 1e-16 · 1e4 · 1e-4 each, and the exponential keeps absolute errors
    assert max(distance(gram((strided, x, *sums), impl=impl), oracle(rbf, x, *sums))) < 1e-13


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_far_centre_costs_nothing(impl, kernel_device):
    # all of the map 1e4 length scales away from 0: ‖u‖² alone would be 1e8 and lose 8 digits
    inputs = case(n=30, device=kernel_device)
    rbf = inputs[0]
    moved = replace(rbf, inducing=rbf.inducing + 1e4, shift=rbf.shift - 1e4 / rbf.scale)
    # the inputs themselves are rounded by 1e4 · 1e-16
    assert max(distance(gram((moved, *inputs[1:]), impl=impl), oracle(*inputs))) < 1e-10


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_distances_of_far_slices_are_not_negative(impl, kernel_device):
    # ‖u‖² is 1e20, and ‖u - z‖² wrong by 1e4
    z = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE).to(kernel_device) * 1e10
    eye = torch.eye(50, dtype=DOUBLE, device=kernel_device)
    rbf = RBF(0 * z[0], 1 + 0 * z[0], z, eye[0, 0], eye)
    _, k = rbf_gram(z, rbf, eye, eye, impl=impl)
    assert float(k.max()) == 1.0


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_tiles_and_order_of_rows_do_not_matter(impl, dtype, kernel_device, nan_memory):
    how = {"impl": impl, "dtype": dtype}
    rbf, x, theta, target = case(n=200, device=kernel_device)
    rows = torch.randperm(200, generator=torch.Generator().manual_seed(1)).to(kernel_device)
    whole = rbf_gram(x, rbf, theta, target, **how)
    turned = rbf_gram(x, rbf, theta[:, rows], target[:, rows], **how, rows=rows, tile=83)
    floor = 1e-6 if dtype == SINGLE else 1e-13  # sums in another order
    assert max(distance(turned, whole)) < floor
    G = turned[0]
    torch.testing.assert_close(G, G.mT, rtol=0, atol=floor * float(G.abs().max()))


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_runs_agree_and_replicates_are_independent(impl, dtype, kernel_device):
    rbf, x, theta, target = case(n=80, r=3, device=kernel_device)
    how = {"impl": impl, "dtype": dtype, "tile": 37}
    first, again = (rbf_gram(x, rbf, theta, target, **how) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    change = torch.tensor([[1.0], [3.0], [1.0]], dtype=DOUBLE, device=kernel_device)  # of replicate 1
    for a, b in zip(first, rbf_gram(x, rbf, change * theta, change * target, **how), strict=True):
        assert torch.equal(a[::2], b[::2])
        assert not torch.equal(a[1], b[1])


def test_identities_of_the_sums(device):
    generator = torch.Generator().manual_seed(3)
    _, _, theta, target = case(device=device)
    phi, mean = (torch.randn(*shape, generator=generator).to(device) for shape in ((100, 15), (2, 15)))
    root, mean = torch.randn(2, 15, 15, generator=generator, dtype=DOUBLE).to(device), mean.double()
    for dtype, error in ((DOUBLE, 1e-12), (SINGLE, 1e-5)):
        blocks = [(slice(0, 70), phi[:70].to(dtype)), (slice(70, 100), phi[70:].to(dtype))]
        G, g = gram_of(blocks, theta, target, width=15)
        mu, spread = moments_of(blocks, mean, root, length=100)
        # g and μ are sums in float64 whatever the dtype of Φ
        assert max(distance((g, mu), (target @ phi.double(), mean @ phi.double().mT))) < 1e-13
        # mᵀG m = Σ θ μ², tr(W G Wᵀ) = Σ θ Σ(Wφ)²
        for got, expected in (
            ((mean[:, None] @ G @ mean[..., None]).flatten(), (theta * mu.square()).sum(1)),
            ((root @ G @ root.mT).diagonal(dim1=1, dim2=2).sum(1), (theta * spread).sum(1)),
        ):
            torch.testing.assert_close(got, expected, rtol=error, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_opcheck(kernel_device):
    from ich_mil.kernels.triton import rbf_gram as by_kernel

    rbf, x, theta, target = case(n=20, device=kernel_device)
    for order in (None, torch.arange(20, device=kernel_device).flip(0)):
        torch.library.opcheck(by_kernel.rbf_gram, (x, order, *rbf.centred(), theta, target, True, 7))


def test_shapes_that_do_not_fit_are_refused():
    rbf, x, theta, target = case()
    for given, how in (
        ((x[:0], rbf, theta[:, :0], target[:, :0]), {}),
        ((x[:, :3], rbf, theta, target), {}),
        ((x, rbf, theta[:, 1:], target), {}),
        ((x, rbf, theta, target[:1]), {}),
        ((x, rbf, theta[0], target[0]), {}),
        ((x, rbf, theta, target), {"rows": torch.arange(3)}),
    ):
        with pytest.raises(ValueError, match=r"4 features, theta .* must be \(R, "):
            rbf_gram(*given, **how)

"""Φ of many slices: the RBF op against the kernel object, and slices shared among ranks."""

import threading

import gpytorch
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from ich_mil.gp.inference import projection as module
from ich_mil.gp.inference.inducing import choose_inducing, standardisation
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.rbf_gram import rbf_gram
from ich_mil.ranks import Ranks


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
    shapes = (
        (replicates, n),
        (replicates, n),
        (replicates, directions),
        (replicates, directions, directions),
    )
    parts = [torch.randn(*shape, generator=generator, dtype=torch.float64).to(device) for shape in shapes]
    return parts[0].abs(), *parts[1:]


def ard(**options):
    kernel = ScaleKernel(RBFKernel(ard_num_dims=5, **options)).double()
    kernel.outputscale = torch.tensor(0.7, dtype=torch.float64)
    kernel.base_kernel.lengthscale = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5], dtype=torch.float64)
    return kernel


def matern():
    return ScaleKernel(MaternKernel(nu=2.5)).double()


class Dropping(RBFKernel):
    """A kernel of one feature less, which says so only when it is asked."""

    def forward(self, x1, x2, **options):
        return super().forward(x1[..., 1:], x2[..., 1:], **options)


@pytest.fixture
def ops(monkeypatch):
    """Names of the ops that were called; nothing is stored, tiles are of 64 rows."""
    called = []

    def watched(name):
        op = getattr(module, name)
        return lambda *args, **options: (called.append(name), op(*args, **options))[1]

    for name in ("rbf_gram", "rbf_moments"):
        monkeypatch.setattr(module, name, watched(name))
    for name, value in {
        "STORE_BYTES": 0,
        "TILE_BYTES": 1,
        "ONE_TILE": 0,
        "LEAST_ROWS": 64,
        "GPU_ROWS": 64,
    }.items():
        monkeypatch.setattr(module, name, value)
    return called


@pytest.mark.parametrize(
    ("kernel", "settings", "by_op"),
    [
        (None, {}, True),
        (None, {"preset": "public"}, True),  # unit prior: in the residual alone
        (None, {"ard": True}, True),
        (ard, {}, True),
        (None, {"bias": 1.0}, False),
        (matern, {}, False),
        (lambda: ScaleKernel(RBFKernel(active_dims=(0, 2))).double(), {}, False),
        (lambda: ScaleKernel(RBFKernel(), active_dims=(0, 2)).double(), {}, False),
        (lambda: RBFKernel().double(), {}, False),
        (lambda: ScaleKernel(Dropping()).double(), {}, False),
    ],
    ids=["rbf", "public", "ard", "own", "bias", "matern", "some", "outside", "unscaled", "subclass"],
)
@pytest.mark.parametrize("compress", [False, True])
def test_what_is_not_stored_is_the_same(kernel, settings, by_op, compress, ops, monkeypatch, device):
    model, x = head(kernel and kernel(), device=device, **settings)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(2)).to(device)
    with monkeypatch.context() as patch:
        patch.setattr(module, "STORE_BYTES", 10**9)
        stored = Projection(model, x, rows=rows, compress=compress)
    anew = Projection(model, x, rows=rows, compress=compress)
    assert anew.shape == stored.shape
    theta, target, mean, root = statistics(*stored.shape, device=device)
    expected = *stored.gram(theta, target), *stored.moments(mean, root)
    assert ops == []
    got = *anew.gram(theta, target), *anew.moments(mean, root)
    assert ops == (["rbf_gram", "rbf_moments"] if by_op else [])
    # L⁻¹ is multiplied with instead of solved for: its condition, some 1e3, times 1e-16
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11 * float(b.abs().max()))


def test_mixed_precision_by_the_op_is_that_of_the_tiles(ops, monkeypatch, device):
    model, x = head(device=device)
    theta, target, mean, root = statistics(*Projection(model, x).shape, device=device)
    truth = Projection(model, x)
    truth = *truth.gram(theta, target), *truth.moments(mean, root)
    mixed = Projection(model, x, dtype=torch.float32)
    assert {phi.dtype for _, phi in mixed.tiles(1)} == {torch.float32}
    assert [len(phi) for _, phi in mixed.tiles(1)] == [64] * 6 + [16]
    mixed = *mixed.gram(theta, target), *mixed.moments(mean, root)
    for a, b in zip(mixed, truth, strict=True):
        assert a.dtype == torch.float64
        # 6e-8 for each φ, and some of them cancel
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6 * float(b.abs().max()))
        assert not torch.equal(a, b)


@pytest.mark.parametrize("compress", [False, True])
def test_the_variance_of_the_prior_is_that_of_the_kernel(compress, ops):
    model, x = head()
    projection = Projection(model, x, compress=compress)
    _, m = projection.shape
    zero, one = torch.zeros(1, m, dtype=torch.float64), torch.eye(m, dtype=torch.float64)[None]
    mu, variance = projection.moments(zero, one)
    assert ops == ["rbf_moments"]
    assert not mu.any()
    # v + ε, but for what the directions left out have, 1e-9 of it
    torch.testing.assert_close(variance, torch.full_like(variance, 0.5 + 1e-5), rtol=1e-7, atol=0)


def test_a_stored_projection_has_longer_tiles_on_a_gpu(monkeypatch):
    model, x = head()
    made = Projection(model, x)
    expected = made.gram(*statistics(400, 40)[:2])
    monkeypatch.setattr(module, "GPU_ROWS", 30)
    monkeypatch.setattr(module, "GPU_BYTES", 100 * 40 * 3 * 8)  # of 100 slices, for 3 replicates
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert [rows.stop - rows.start for rows, _ in made.tiles(3)] == [100] * 4
    for found, other in zip(made.gram(*statistics(400, 40)[:2]), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-12, atol=1e-12 * float(other.abs().max()))
    monkeypatch.setattr(module, "STORE_BYTES", 0)
    assert {rows.stop - rows.start for rows, _ in Projection(model, x).tiles(3)} == {30, 10}


def test_a_kernel_that_changes_later_changes_nothing(ops):
    model, x = head()
    projection = Projection(model, x)
    theta, target, _, _ = statistics(*projection.shape)
    before = projection.gram(theta, target)
    model.covar_module.outputscale = torch.tensor(3.0, dtype=torch.float64)
    for a, b in zip(projection.gram(theta, target), before, strict=True):
        assert torch.equal(a, b)


class Beside:
    """A rank that is a thread: sums and first values by way of a list."""

    size = 2

    def __init__(self, rank, meeting, values):
        self.rank, self.meeting, self.values = rank, meeting, values

    def _all(self, value):
        self.values[self.rank] = value
        self.meeting.wait()
        values = list(self.values)
        self.meeting.wait()
        return values

    def total(self, value):
        one, other = self._all(value)
        return one + other

    def same(self, value):
        return self._all(value)[0]


@pytest.mark.parametrize("stored", [True, False])
def test_two_ranks_have_the_sums_and_the_directions_of_all_slices(stored, monkeypatch):
    if not stored:
        monkeypatch.setattr(module, "STORE_BYTES", 0)
    model, x = head()
    whole = Projection(model, x, compress=True)
    assert whole.shape[1] < 36, "nothing to compress"
    theta, target, mean, root = statistics(*whole.shape)
    shares = [torch.arange(150).flip(0), torch.arange(150, 400)]
    meeting, values = threading.Barrier(2, timeout=60), [None, None]
    found = [None, None]

    def work(rank):
        mine = shares[rank]
        part = Projection(model, x[mine], compress=True, ranks=Beside(rank, meeting, values))
        sums = part.gram(theta[:, mine], target[:, mine])
        # the same span: weights of the whole, in this basis
        turn = whole.basis.mT @ part.basis
        found[rank] = part.basis, sums, turn, part.moments(mean @ turn, root @ turn)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected, moments = whole.gram(theta, target), whole.moments(mean, root)
    for (basis, (G, g), turn, seen), mine in zip(found, shares, strict=True):
        assert torch.equal(basis, found[0][0])
        assert torch.equal(G, found[0][1][0])
        # directions of nearly equal energy may be mixed, and weak ones are known to 1e-9 of Φ
        torch.testing.assert_close(turn @ turn.mT, torch.eye(len(turn)).double(), rtol=0, atol=1e-6)
        for a, b in (
            (turn @ G @ turn.mT, expected[0]),
            (g @ turn.mT, expected[1]),
            (seen[0], moments[0][:, mine]),
            (seen[1], moments[1][:, mine]),
        ):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-8 * float(b.abs().max()))


def test_the_bound_of_compression_counts_the_slices_of_all_ranks(monkeypatch):
    model, x = head()
    kept = []
    for others in (0.0, 1e12):
        # a rank that has nothing but slices: its energies are 0
        crowd = Beside(0, None, None)
        crowd.total = lambda value, more=others: (
            value
            + torch.nn.functional.pad(value.new_full((1, value.shape[1]), more), (0, 0, len(value) - 1, 0))
        )
        crowd.same = lambda value: value
        kept.append(Projection(model, x, compress=True, ranks=crowd).shape[1])
    assert kept[0] == Projection(model, x, compress=True).shape[1] < kept[1]


@pytest.mark.realdata
def test_whitening_after_float32_sums_is_no_gaussian_and_projecting_first_is(rsna_features):
    x = rsna_features.x
    mean, std = standardisation(x)
    z = choose_inducing(
        x, rsna_features.offsets, rsna_features.labels, mean=mean, std=std, n_inducing=100, seed=0
    )
    model = SparseGP(z, mean, std, HeadSettings(n_inducing=100, lengthscale_squared=128.0)).eval()
    L = model.prior_root()
    theta = torch.full((1, len(x)), 0.25, dtype=torch.float64)
    map_ = Projection(model, x)._as_rbf()
    K = gpytorch.kernels.ScaleKernel.forward(model.covar_module, z, model.standardise(x)).to_dense()
    G = (K.float() * theta.float()) @ K.mT.float()
    half = torch.linalg.solve_triangular(L, G.double(), upper=False)
    whitened = torch.linalg.solve_triangular(L, half.mT, upper=False)
    projected = rbf_gram(x, map_, theta, torch.zeros_like(theta), dtype=torch.float32)[0][0]
    exact = rbf_gram(x, map_, theta, torch.zeros_like(theta))[0][0]
    least = [float(torch.linalg.eigvalsh((A + A.mT) / 2).min()) for A in (whitened, projected, exact)]
    assert least[0] < -10
    assert abs(least[1]) < 1e-3  # A = I + G: at least 0.999
    assert abs(least[2]) < 1e-9


class Twice(Ranks):
    """Two ranks with the same slices, played by one."""

    def total(self, value):
        return 2 * value


def test_directions_are_left_out_by_the_number_of_slices_on_all_ranks(monkeypatch):
    model, x = head()
    ones = torch.ones(1, len(x), dtype=torch.float64)
    energy = torch.linalg.eigvalsh(Projection(model, x).gram(ones, ones)[0][0])
    # kept for the slices of both ranks, left out for those of one
    bound = 0.85 * float(2 * energy[-5]) * (2 * len(x)) ** 0.5
    monkeypatch.setattr(module, "COMPRESSION", bound)
    both = Projection(model, torch.cat([x, x]), compress=True)
    assert Projection(model, x, compress=True, ranks=Twice()).shape[1] == both.shape[1] == 5

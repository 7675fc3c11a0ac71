"""Smoothing along z against dense algebra, its limits, and what it must not mix."""

import copy
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.linalg
import torch

from ich_mil.errors import DataError
from ich_mil.gp.bags import Bags
from ich_mil.gp.counterfactual import counterfactuals
from ich_mil.gp.fit import Job, fit, fit_many
from ich_mil.gp.fit_calibration import calibrate, fit_calibrated
from ich_mil.gp.head import Head
from ich_mil.gp.inference.gibbs import sample_posterior
from ich_mil.gp.inference.hyperparameters import learn_hyperparameters
from ich_mil.gp.inference.objective import KernelObjective
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.inference.weights import Weights
from ich_mil.gp.predict import draw, mean_logits, predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.smoothing import Smoother, smoothing_weights
from ich_mil.gp.storage import load_head, save_head
from ich_mil.kernels.leave_one_out import Turns
from tests.gp.observations.test_vgpmil import textbook_bound, theta_and_log_psi
from tests.gp.synthetic import close, kl_of_prior, scans

WIDTH = 4.0
SETTINGS = HeadSettings(
    n_inducing=12, sweeps=6, smooth_mm=WIDTH, variance=0.5, bias=0.0, lengthscale_squared=3.0
)
FIELDS = ("slice_mean", "slice_std", "slice_low", "slice_high", "scan_mean", "scan_std", "scan_low")


def heights(offsets, seed=0):
    """Uneven steps of 2 to 7 mm in each scan, from an origin of its own."""
    generator = torch.Generator().manual_seed(seed)
    steps = 2 + 5 * torch.rand(int(offsets[-1]), generator=generator, dtype=torch.float64)
    return torch.cat(
        [part.cumsum(0) - 300 * b for b, part in enumerate(steps.split(offsets.diff().tolist()))]
    )


@pytest.fixture(scope="module")
def data():
    x, offsets, labels = scans()
    return Bags(x, offsets, labels, heights(offsets))


def bare(data):
    """The scans without positions."""
    return data._replace(positions=None)


@pytest.fixture(scope="module")
def head(data):
    return fit(data, SETTINGS)[0]


def dense_weights(positions, offsets, width):
    """W (N, N) of all scans, by numpy and scipy."""
    blocks = []
    for start, end in pairwise(offsets.tolist()):
        z = positions[start:end].numpy()
        k = np.exp(-(np.subtract.outer(z, z) ** 2) / (2 * width**2))
        blocks.append(k / k.sum(1, keepdims=True))
    return torch.from_numpy(scipy.linalg.block_diag(*blocks))


def dense_q(model, x, W):
    """Mean and covariance of W f under q, with K_XX and K_ZZ whole, explicit inverses and no whitening."""
    settings, ell = model.settings, model.settings.lengthscale_squared
    standard, z = (x - model.x_mean) / model.x_std, model.inducing

    def k(a, b):
        return settings.variant.variance * torch.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * ell))

    eye = torch.eye(len(z), dtype=torch.float64)
    Kzz = k(z, z) + settings.jitter * eye
    L = torch.linalg.cholesky(Kzz)
    u, S = L @ model.q_mean, L @ model.q_root @ model.q_root.T @ L.T
    A = k(standard, z) @ torch.linalg.inv(Kzz)
    K = k(standard, standard) + settings.jitter * torch.eye(len(x), dtype=torch.float64)
    return W @ A @ u, W @ (A @ (S - Kzz) @ A.T + K) @ W.T


def test_weights_by_hand():
    W = smoothing_weights(torch.tensor([10.0, 15.0, 25.0]), 5.0)
    near, far, farther = math.exp(-0.5), math.exp(-2.0), math.exp(-4.5)
    expected = torch.tensor(
        [
            [1 / (1 + near + farther), near / (1 + near + farther), farther / (1 + near + farther)],
            [near / (1 + near + far), 1 / (1 + near + far), far / (1 + near + far)],
            [farther / (1 + far + farther), far / (1 + far + farther), 1 / (1 + far + farther)],
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(W, expected, rtol=1e-12, atol=0)
    assert torch.equal(smoothing_weights(torch.tensor([3.0]), 5.0), torch.ones(1, 1).double())


def test_weights_have_their_limits():
    z = torch.tensor([0.0, 2.5, 5.0, 40.0])
    assert torch.equal(smoothing_weights(z, 1e-3), torch.eye(4).double())
    torch.testing.assert_close(
        smoothing_weights(z, 1e6), torch.full((4, 4), 0.25).double(), rtol=1e-8, atol=0
    )
    moved = smoothing_weights(z.double() - 1000, 5.0)
    torch.testing.assert_close(moved, smoothing_weights(z, 5.0), rtol=1e-10, atol=0)


@pytest.mark.parametrize("family", ["psi", "probit", "large_margin"])
def test_a_width_that_reaches_no_neighbour_is_the_head_without_smoothing(data, family):
    plain, report = fit(bare(data), replace(SETTINGS, smooth_mm=0.0, family=family))
    settings = replace(SETTINGS, smooth_mm=0.01, family=family)
    narrow, other = fit(data, settings)
    close(narrow.q_mean, plain.q_mean, rtol=1e-9)
    close(torch.tensor(other.elbo), torch.tensor(report.elbo), rtol=1e-10)
    one, two = predict(narrow, data, samples=50), predict(plain, bare(data), samples=50)
    for name in FIELDS:
        torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=1e-7, atol=0)


def test_off_is_bit_identical_with_and_without_positions(data):
    off = replace(SETTINGS, smooth_mm=0.0)
    plain, report = fit(bare(data), off)
    given, other = fit(data, off)
    assert report == other
    assert torch.equal(plain.q_mean, given.q_mean)
    one, two = predict(plain, bare(data), samples=20), predict(given, data, samples=20)
    assert all(torch.equal(getattr(one, name), getattr(two, name)) for name in FIELDS)
    assert HeadSettings().smooth_mm == 0


def textbook(model, data, W):
    """The sweeps of ψ-VGPMIL with a logistic ψ on W f: unwhitened u, explicit inverses, loops over slices.

    Returns μ, σ² and the evidence bound of the last sweep.
    """
    settings, z = model.settings, model.inducing
    standard, log_h = (data.x - model.x_mean) / model.x_std, settings.variant.log_h
    n, eye = len(data.x), torch.eye(len(z), dtype=torch.float64)

    def k(a, b):
        d = ((a[:, None] - b[None]) ** 2).sum(-1)
        return settings.variant.variance * torch.exp(-d / (2 * settings.lengthscale_squared))

    Kzz = k(z, z) + settings.jitter * eye
    Kinv = torch.linalg.inv(Kzz)
    A = W @ k(standard, z) @ Kinv
    K = k(standard, standard) + settings.jitter * torch.eye(n, dtype=torch.float64)
    prior = (W @ K @ W.T - A @ Kzz @ A.T).diagonal()
    S, m = Kzz, torch.zeros(len(z), dtype=torch.float64)
    spans = list(zip(*data.offsets.unfold(0, 2, 1).T.tolist(), data.labels.tolist(), strict=True))
    pi = [0.5 if t else 1 / (1 + math.exp(log_h)) for start, end, t in spans for _ in range(start, end)]

    def moments():
        return A @ m, ((A @ S) * A).sum(1) + prior

    for _ in range(settings.sweeps):
        mu, var = moments()
        theta = [theta_and_log_psi(math.sqrt(q), settings)[0] for q in (mu**2 + var).tolist()]
        S = torch.linalg.inv(A.T @ torch.diag(torch.tensor(theta).double()) @ A + Kinv)
        m = S @ A.T @ (torch.tensor(pi, dtype=torch.float64) - 0.5)
        mu, var = moments()
        for start, end, t in spans:
            for i in range(start, end):
                others = math.prod(1 - pi[j] for j in range(start, end) if j != i)
                pi[i] = 1 / (1 + math.exp(-(float(mu[i]) + log_h * (2 * t - 1) * others)))
    return mu, var, textbook_bound(mu, var, pi, spans, settings) - kl_of_prior(m, S, Kzz)


def test_the_fit_is_the_textbook_on_smoothed_values(data):
    settings = replace(SETTINGS, log_h=math.log(100))
    model, report = fit(data, settings)
    W = dense_weights(data.positions, data.offsets, WIDTH)
    mu, var, bound = textbook(model, data, W)
    assert report.elbo[-1] == pytest.approx(bound, rel=1e-9)
    smoother = Smoother(data.positions, data.offsets, WIDTH)
    got = Projection(model, data.x, smoother=smoother).moments(model.q_mean[None], model.q_root.mT[None])
    close(got[0][0], mu)
    close(got[1][0], var)
    # and it is another model: what the plain head makes of these scans is far from it
    plain, _ = fit(bare(data), replace(settings, smooth_mm=0.0))
    assert float((plain(data.x).mean - mu).abs().max()) > 0.2


def test_phi_and_residual_are_those_of_dense_algebra(data, head):
    W = dense_weights(data.positions, data.offsets, WIDTH)
    smoother = Smoother(data.positions, data.offsets, WIDTH)
    mean, covariance = dense_q(head, data.x, W)
    one = Projection(head, data.x, smoother=smoother)
    mu, variance = one.moments(head.q_mean[None], head.q_root.mT[None])
    close(mu[0], mean)
    close(variance[0], covariance.diagonal())
    # the order of the rows, directions left out, and single precision change nothing but rounding
    turns = Turns(data.offsets)
    short = Projection(head, data.x, rows=turns.order, compress=True, smoother=smoother)
    close(turns.restore(short.residual[None])[0] + short_energy(short, turns), one.residual + energy(one))
    mixed = Projection(head, data.x, dtype=torch.float32, smoother=smoother)
    close(mixed.moments(head.q_mean[None], head.q_root.mT[None])[0][0], mean, rtol=1e-6)


def energy(projection):
    return torch.cat([phi.square().sum(1) for _, phi in projection.blocks(1)])


def short_energy(projection, turns):
    return turns.restore(energy(projection)[None])[0]


def test_samples_have_the_covariance_of_dense_algebra(data, head):
    part = data.take([4, 5, 6])
    mean, covariance = dense_q(head, part.x, dense_weights(part.positions, part.offsets, WIDTH))
    scale = float(covariance.diagonal().max())
    drawn = draw(head, part, samples=20_000, seed=2)
    for one, (first, last) in zip(drawn, pairwise(part.offsets.tolist()), strict=True):
        f = one.logits
        # the error of a covariance from 20,000 samples is √(2/L) = 1 % of the variance
        assert float((f.T.cov() - covariance[first:last, first:last]).abs().max()) < 0.04 * scale
        assert float((f.mean(0) - mean[first:last]).abs().max()) < 0.04 * scale**0.5


@pytest.mark.parametrize("width", [2.0, 10.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_gauss_seidel_never_lets_the_bound_fall(seed, width):
    x, offsets, labels = scans(30, seed)
    settings = HeadSettings(n_inducing=20, sweeps=40, tolerance=1e-9, smooth_mm=width)
    elbo = fit(Bags(x, offsets, labels, heights(offsets, seed)), settings)[1].elbo
    assert len(elbo) > 5
    assert all(b >= a - 1e-9 * abs(a) for a, b in pairwise(elbo))
    assert elbo[-1] > elbo[0]


def test_a_scan_does_not_depend_on_the_others(data, head):
    whole = predict(head, data, samples=40)
    parts = whole.slice_mean.split(data.offsets.diff().tolist())
    for b in (0, 5, 11):
        alone = predict(head, data.take([b]), samples=40)
        assert torch.equal(alone.scan_mean, whole.scan_mean[b : b + 1])
        assert torch.equal(alone.slice_mean, parts[b])
    # but a slice depends on its neighbours
    x, first = data.x.clone(), int(data.offsets[int(data.offsets.diff().argmax())])
    x[first + 1] += 3
    moved = predict(head, data._replace(x=x), samples=40)
    assert not torch.equal(moved.slice_mean[first], whole.slice_mean[first])


def test_the_order_of_slices_has_no_part_in_it(data, head):
    generator = torch.Generator().manual_seed(3)
    order = torch.cat(
        [
            start + torch.randperm(end - start, generator=generator)
            for start, end in pairwise(data.offsets.tolist())
        ]
    )
    other = data._replace(x=data.x[order], positions=data.positions[order])
    close(mean_logits([head], other)[0], mean_logits([head], data)[0][order], rtol=1e-12)
    close(predict(head, other, samples=20).slice_mean, predict(head, data, samples=20).slice_mean[order])
    # the fit too, where every slice is an inducing point and all π of a scan are updated at once
    settings = replace(SETTINGS, n_inducing=300, update="jacobi", jitter=1e-4)
    with pytest.warns(UserWarning, match="each is one"):
        turned, _ = fit(other, settings)
    with pytest.warns(UserWarning, match="each is one"):
        whole, _ = fit(data, settings)
    close(mean_logits([turned], other)[0], mean_logits([whole], data)[0][order], rtol=1e-7)


def test_without_a_slice_its_neighbours_are_smoothed_over_the_others(data, head):
    (one,) = draw(head, data.take([int(data.offsets.diff().argmax())]), samples=30, seed=4)
    n, z = one.f.shape[1], one.positions
    said = torch.zeros(n)
    said[2:4] = 1.0
    found = counterfactuals(one, said, threshold=0.5)

    def without(gone):
        left = [i for i in range(n) if i not in gone]
        W = dense_weights(z[left], torch.tensor([0, len(left)]), WIDTH)
        return float((one.f[:, left] @ W.T).sigmoid().mean(0).max())

    expected = torch.tensor([without([i]) for i in range(n)], dtype=torch.float64)
    torch.testing.assert_close(found.scan_without, expected, rtol=1e-10, atol=0)
    ((run,),) = found.runs
    assert (run.first, run.last) == (2, 3)
    assert run.scan_without == pytest.approx(without([2, 3]), rel=1e-10)


def test_a_saved_head_predicts_the_same_bits(data, head, tmp_path):
    save_head(head, tmp_path)
    again = load_head(tmp_path)
    assert again.settings.smooth_mm == WIDTH
    one, two = (predict(m, data, samples=20) for m in (head, again))
    assert all(torch.equal(getattr(one, name), getattr(two, name)) for name in FIELDS)


def test_every_way_in_passes_positions_on(data):
    """`fit_many`, held-out folds, `Head` with rows in any order, early stopping."""
    settings = replace(SETTINGS, calibration_folds=3)
    train, watch = tuple(range(18)), (20, 21, 22, 23)
    ((fitted,),) = fit_many(data, [Job(settings, train, watch)])
    part, held = data.take(train), data.take(watch)
    alone, report = fit(part, settings, validation=held)
    assert fitted.report == report
    assert torch.equal(fitted.model.q_mean, alone.q_mean)
    x, offsets, labels, z, _ = data
    head = Head(**vars(settings)).fit(x, offsets, labels, positions=z)
    assert head.model_.calibration == fit_calibrated(data, settings)[0].calibration
    assert (
        head.model_.calibration != fit_calibrated(bare(data), replace(settings, smooth_mm=0.0))[0].calibration
    )
    stopped = Head(**vars(settings)).fit(*part[:3], positions=part.positions, validation=held[:4])
    assert stopped.model_.calibration == calibrate(alone, held)
    p = head.predict_instance_proba(x, offsets, positions=z)
    scan = head.predict_bag_proba(x, offsets, positions=z)
    bags = np.repeat(np.arange(len(labels)), offsets.diff().numpy())
    # all first slices, then all second ones: rows of scans interleaved, those of one in their order
    ordered = np.argsort(np.arange(len(bags)) - offsets.numpy()[bags], kind="stable")
    got = head.predict_instance_proba(x[ordered], bags[ordered], positions=z[ordered])
    np.testing.assert_array_equal(got, p[ordered])
    sizes = offsets.diff().tolist()
    listed = head.predict_bag_proba(list(x.split(sizes)), positions=list(z.split(sizes)))
    np.testing.assert_array_equal(listed, scan)
    assert head.score(x, offsets, labels, positions=z) == np.mean((scan >= 0.5) == labels.numpy())


def test_the_gibbs_sampler_draws_from_the_posterior_of_the_smoothed_model(data):
    settings = replace(SETTINGS, family="gibbs", chains=2, burn_in=20, draws=20)
    with pytest.warns(UserWarning, match="chains of the Gibbs sampler disagree"):
        model, _ = fit(data, settings)
    # the margins of the sampler have mean W Φᵀw, here from Φ of the plain model and a dense W
    W = dense_weights(data.positions, data.offsets, WIDTH)
    turns = Turns(data.offsets)
    plain = Projection(model, data.x)
    (_, phi) = next(plain.blocks(1))
    smooth = copy.copy(plain)
    smooth._stored = (W @ phi)[turns.order]
    with pytest.warns(UserWarning, match="chains of the Gibbs sampler disagree"):
        expected, _ = sample_posterior(copy.deepcopy(model), smooth, data.labels[turns.bag_order], turns)
    close(model.draws, expected.draws, rtol=1e-6)


def test_kernel_learning_climbs_the_bound_of_the_smoothed_model(data, head):
    """F at fixed Θ, π against dense algebra, its gradient against differences, and J rises."""
    smoother = Smoother(data.positions, data.offsets, WIDTH)
    turns = Turns(data.offsets)
    generator = torch.Generator().manual_seed(1)
    target = torch.rand(len(data.x), generator=generator, dtype=torch.float64) - 0.5
    theta = 0.05 + 0.2 * torch.rand(len(data.x), generator=generator, dtype=torch.float64)
    model = fit(data, SETTINGS)[0]
    density = SETTINGS.make_density()
    objective = KernelObjective(model, data.x, turns.order, target, density, smoother=smoother)
    raw = model.covar_module.raw_outputscale

    def dense():
        W = dense_weights(data.positions, data.offsets, WIDTH)[turns.order]
        standard, z = model.standardise(data.x), model.inducing
        K = model.covar_module(standard).to_dense() + SETTINGS.jitter * torch.eye(len(data.x)).double()
        Kxz = W @ model.covar_module(standard, z).to_dense()
        Kzz = model.covar_module(z).to_dense() + SETTINGS.jitter * torch.eye(len(z)).double()
        Q = Kxz @ torch.linalg.inv(Kzz) @ Kxz.T
        # N(target/θ; 0, Q + 1/θ) without its constants, and the trace term
        C = torch.eye(len(data.x)).double() + theta[:, None] ** 0.5 * Q * theta**0.5
        scaled = target / theta**0.5
        fit_term = scaled @ (torch.eye(len(C)).double() - torch.linalg.inv(C)) @ scaled
        rest = theta @ ((W @ K @ W.T).diagonal() - Q.diagonal())
        return float((fit_term - torch.logdet(C) - rest).detach()) / 2

    raw.requires_grad_(True)
    raw.grad = None
    assert objective.collapsed(theta) == pytest.approx(dense(), rel=1e-8)
    slope = float(raw.grad)
    raw.requires_grad_(False)
    step, ends = 1e-4, []
    for sign in (1, -1):
        raw.add_(sign * step)
        ends.append(dense())
        raw.sub_(sign * step)
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5)

    # one call: the q(w) it ends with is the best of the smoothed model under the new kernel, and J is higher
    before = Weights(model.q_mean[None], model.q_root.mT[None], 2 * model.q_root.diagonal().log().sum()[None])
    J, now = objective.evaluate(objective.projection(), before)
    q = learn_hyperparameters(model, data.x, turns.order, before, target, density, smoother=smoother)
    best = Weights.solve(*objective.projection().gram(now[None], target[None]))
    close(q.mean, best.mean)
    assert objective.evaluate(objective.projection(), q)[0] > J

    learning = replace(SETTINGS, learn="kernel", outer=2)
    learned, report = fit(data, learning)
    assert report.elbo[-1] > fit(data, SETTINGS)[1].elbo[-1]
    assert float(learned.covar_module.outputscale) != float(head.covar_module.outputscale)


def test_the_length_scale_a_fit_learns_is_the_best_of_the_smoothed_model():
    x, offsets, labels = scans(12)
    z, settings = heights(offsets), replace(SETTINGS, n_inducing=6, smooth_mm=12.0)
    model, _ = fit(Bags(x, offsets, labels, z), replace(settings, learn="kernel", outer=4))
    variance, length = (
        model.covar_module.outputscale.item(),
        model.covar_module.base_kernel.lengthscale.item(),
    )
    bounds = []
    for factor in (1 / 1.2, 1.0, 1.2):
        fixed = replace(settings, sweeps=60, variance=variance, lengthscale_squared=(factor * length) ** 2)
        bounds.append(fit(Bags(x, offsets, labels, z), fixed)[1].elbo[-1])
    assert bounds[1] == max(bounds)


def test_smoothing_needs_positions(data, head):
    for call in (
        lambda: fit(bare(data), SETTINGS),
        lambda: fit(data, SETTINGS, validation=bare(data)),
        lambda: predict(head, bare(data), samples=2),
        lambda: mean_logits([head], bare(data)),
        lambda: Head(**vars(SETTINGS)).fit(*data[:3]),
    ):
        with pytest.raises(DataError, match="smooth_mm is 4, but the positions"):
            call()
    for b, n, value in ((2, 1, torch.nan), (2, 0, torch.inf)):
        lost = data.positions.clone()
        lost[int(data.offsets[b]) + n] = value
        for ids, name in ((None, "2"), ("abcdefghijklmnopqrstuvwx", "'c'")):
            with pytest.raises(DataError, match=f"slice {n} of scan {name}"):
                fit(data._replace(positions=lost, ids=ids), SETTINGS)
    for bad in (lost[:5], data.positions[:, None], ["a"] * len(data.x)):
        with pytest.raises(DataError, match="positions"):
            Head(**vars(SETTINGS)).fit(*data[:3], positions=bad)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"smooth_mm": -1.0}, "smooth_mm must be a finite number of at least 0"),
        ({"smooth_mm": math.inf}, "smooth_mm must be a finite number of at least 0"),
        ({"smooth_mm": 5.0, "preset": "public"}, "smooth_mm has no meaning in the preset 'public'"),
        ({"smooth_mm": 5.0, "log_z": 10, "learn": "kernel"}, "set log_z or smooth_mm to 0"),
    ],
)
def test_settings_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        HeadSettings(**change)

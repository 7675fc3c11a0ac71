"""Many heads in one call, presets, a ψ of one's own, precision, and Φ that is not stored."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import MultitaskKernel, RBFKernel

from ich_mil.errors import ConfigError
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import platt
from ich_mil.gp.fit import Job, fit, fit_replicates
from ich_mil.gp.inference import projection
from ich_mil.gp.inference.weights import Weights
from ich_mil.gp.observations.densities import Gamma, GammaLogisticTail, LogDensity, Logistic
from ich_mil.gp.predict import mean_logits
from ich_mil.gp.settings import VARIANTS, HeadSettings
from ich_mil.kernels.leave_one_out import Turns
from tests.gp.observations.test_vgpmil import close, textbook
from tests.gp.synthetic import scans


def test_jaakkola_and_polya_gamma_are_one_algorithm():
    """Haußmann et al. 2017 bound the sigmoid with λ(ξ); PG-VGPMIL takes a Pólya-Gamma's mean."""
    c = torch.tensor([0.01, 0.5, 2.0, 9.0], dtype=torch.float64)
    jaakkola = 2 * (torch.sigmoid(c) - 0.5) / (2 * c)  # Λ = 2 λ(ξ) at ξ = c
    k = torch.arange(1, 2_000_001, dtype=torch.float64)[:, None] - 0.5
    series = (1 / (k.square() + (c / (2 * math.pi)).square())).sum(0) / (2 * math.pi**2)  # E PG(1, c)
    tail = 1 / (2 * math.pi**2 * 2_000_000)  # ∫ 1/k² beyond the last term
    theta = Logistic().theta(c)
    torch.testing.assert_close(theta, jaakkola, rtol=1e-12, atol=0)
    torch.testing.assert_close(theta, series + tail, rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    "given", [Logistic(), Gamma(1.0, 2.5), GammaLogisticTail(0.5, 1.0)], ids=["logistic", "gamma", "tail"]
)
def test_theta_by_automatic_derivative(given):
    own = LogDensity(given.log_psi)
    c = torch.tensor([0.0, 1e-6, 1e-3, 0.3, 1.0, 4.0, 20.0], dtype=torch.float64)
    torch.testing.assert_close(own.theta(c), given.theta(c), rtol=2e-8, atol=0)  # θ(0) is that of c = 1e-4


def jobs(n_scans):
    folds = [tuple(b for b in range(n_scans) if b // 5 % 4 != k) for k in range(2)]
    made = []
    for fold in folds:
        held = tuple(set(range(n_scans)) - set(fold))
        for m in (8, 12):
            for alpha, beta in ((0.5, 1.0), (1.0, 2.5), (1.0, 4.0)):
                one = HeadSettings(density="gamma", alpha=alpha, beta=beta, n_inducing=m, sweeps=9)
                made.append(Job(one, fold, held))
        made.append(Job(HeadSettings(n_inducing=8, sweeps=9), fold))
        for other in (
            {"rule": "noisy_or"},
            {"tolerance": 0.05},
            {"preset": "paper"},
            {"preset": "public"},
            {"preset": "public", "beta": 4.0},
            {"random_state": 1},
            {"learn": "kernel", "sweeps": 2},
            {"learn": "kernel", "sweeps": 2, "beta": 4.0},
        ):
            made.append(Job(replace(made[0].settings, **other), fold, held))
    return made


def test_many_fits_equal_single_ones():
    data, many = Bags(*scans(40)), jobs(40)
    found = {one.place: one[1:] for group in fit_replicates(data, many) for one in group}
    assert sorted(found) == list(range(len(many)))
    means = []
    for place, job in enumerate(many):
        held = None if job.validation is None else data.take(job.validation)
        model, report = fit(data.take(job.train), job.settings, validation=held)
        got, told = found[place]
        assert got.settings == job.settings
        assert (told.stopped, told.best_sweep, len(told.elbo)) == (
            report.stopped,
            report.best_sweep,
            len(report.elbo),
        )
        assert told.validation_log_loss == pytest.approx(report.validation_log_loss, rel=1e-8)
        # sums over tiles of another size, hence not to the bit
        close(got.q_mean, model.q_mean, rtol=1e-10)
        close(got.q_root, model.q_root, rtol=1e-10)
        means.append(got.q_mean)
    assert all(not torch.equal(means[0], other) for other in means[1:])


@pytest.mark.parametrize("learned", [{}, {"learn": "kernel"}], ids=["nothing", "kernel"])
def test_features_that_require_gradients_fit_the_same(learned):
    x, offsets, labels = scans()
    settings = HeadSettings(n_inducing=6, sweeps=2, **learned)
    expected, _ = fit(Bags(x, offsets, labels), settings, validation=Bags(x, offsets, labels))
    live = x.clone().requires_grad_()
    model, _ = fit(Bags(live, offsets, labels), settings, validation=Bags(live, offsets, labels))
    assert torch.equal(model.q_mean, expected.q_mean)
    assert torch.equal(
        mean_logits([model], Bags(live, torch.tensor([0, len(live)]))),
        mean_logits([model], Bags(x, torch.tensor([0, len(x)]))),
    )
    assert live.grad is None


def test_replicates_that_stop_leave_the_others_alone(preset):
    # at α = 1000 the second collapses in the first sweep, the others go on
    preset(logistic_tail=False)
    x, offsets, labels = scans(80, 0, longest=40)
    base = HeadSettings(density="gamma", n_inducing=20, sweeps=8, alpha=1.0, beta=2.5)
    bad = replace(base, alpha=1000.0, beta=1.0)
    with pytest.warns(UserWarning, match="has shrunk to 0") as told:
        (group,) = fit_replicates(Bags(x, offsets, labels), [Job(base), Job(bad), Job(base)])
    # commands show the warnings that come from this package
    assert [Path(one.filename).parts[-3:] for one in told] == [("gp", "inference", "replicates.py")]
    alone, _ = fit(Bags(x, offsets, labels), base)
    for place in (0, 2):
        close(group[place].model.q_mean, alone.q_mean, rtol=1e-10)
    report = group[1].report
    assert report.best_sweep < len(report.elbo)
    assert f"in sweep {len(report.elbo)}; the state of sweep {report.best_sweep} is kept" in report.message


def test_mixed_precision_has_the_means_of_float64():
    x, offsets, labels = scans(60, longest=40)
    settings, data = HeadSettings(n_inducing=30, sweeps=20), Bags(x, offsets, labels)
    model, report = fit(data, settings)
    mixed, other = fit(data, replace(settings, precision="mixed"))
    assert float((mixed(x).mean - model(x).mean).abs().max()) < 1e-5
    assert not torch.equal(mixed.q_mean, model.q_mean)
    assert other.elbo[-1] == pytest.approx(report.elbo[-1], rel=1e-5)


def test_compression_leaves_out_only_what_moves_nothing(monkeypatch):
    x, offsets, labels = scans(40)
    held = scans(12, seed=9)
    settings = HeadSettings(n_inducing=60, sweeps=12)  # ℓ = 48: smooth
    model, report = fit(Bags(x, offsets, labels), settings, validation=Bags(*held))
    turns = Turns(offsets)
    short = projection.Projection(model, x, rows=turns.order, compress=True)
    assert short.shape[1] < 50
    Q = short.basis
    torch.testing.assert_close(Q.T @ Q, torch.eye(Q.shape[1]).double(), rtol=0, atol=1e-12)
    monkeypatch.setattr(projection, "COMPRESSION", 0.0)
    whole, other = fit(Bags(x, offsets, labels), settings, validation=Bags(*held))
    assert not torch.equal(whole.q_mean, model.q_mean)
    for at in (x, 3 * x, held[0]):  # far from the training slices too, in mean and in variance
        one, two = model(at), whole(at)
        assert float((one.mean - two.mean).abs().max()) < 1e-8
        torch.testing.assert_close(one.variance, two.variance, rtol=1e-6, atol=0)
    assert report.elbo == pytest.approx(other.elbo, rel=1e-9)
    assert report.validation_log_loss == pytest.approx(other.validation_log_loss, rel=1e-8)


def test_slices_that_leave_the_basis_keep_their_variance(monkeypatch):
    monkeypatch.setattr(projection, "COMPRESSION", 0.1)
    x, offsets, labels = scans(40)
    model, _ = fit(Bags(x, offsets, labels), HeadSettings(n_inducing=60, sweeps=2))
    far = x.mean(0) + 2 * (scans(12, seed=9)[0] - x.mean(0))
    basis = projection.Projection(model, x, compress=True).basis
    whole, inside = projection.Projection(model, far), projection.Projection(model, far, basis=basis)
    prior = Weights.prior(1, 60, like=model.x_mean)
    variance = whole.moments(prior.mean, prior.root)[1]
    other = inside.moments(prior.within(basis).mean, prior.within(basis).root)[1]
    torch.testing.assert_close(other, variance, rtol=1e-9, atol=0)  # v + ε everywhere
    assert float((inside.residual - whole.residual).max()) > 0.01


@pytest.mark.parametrize("rule", ["max", "noisy_or"])
@pytest.mark.parametrize("family", ["psi", "probit"])
def test_the_validation_loss_of_the_returned_state(family, rule):
    x, offsets, labels = scans(40)
    held = scans(12, seed=9)
    settings = HeadSettings(n_inducing=30, family=family, rule=rule)
    model, report = fit(Bags(x, offsets, labels), settings, validation=Bags(*held))
    q = model(held[0])
    mu, variance = q.mean, q.variance
    if family == "probit":
        p = torch.special.ndtr(mu / (1 + variance).sqrt())
    else:
        p = torch.sigmoid(mu / (1 + math.pi / 8 * variance).sqrt())
    of_scans = [
        part.max() if rule == "max" else 1 - (1 - part).prod() for part in p.split(held[1].diff().tolist())
    ]
    expected = platt(torch.stack(of_scans).logit(), held[2])[2]
    assert report.validation_log_loss[report.best_sweep - 1] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("family", ["psi", "large_margin"])
def test_a_bounded_fit_may_be_large(family):
    x, offsets, labels = scans(40)
    big = HeadSettings(family=family, kernel="LinearKernel", variance=1e4, n_inducing=10, sweeps=3)
    model, report = fit(Bags(torch.cat([x[:-1], 1e3 * x[-1:]]), offsets, labels), big)
    assert report.stopped != "diverged"
    assert report.max_abs_mean[-1] > 50
    assert float(model.q_mean.abs().max()) > 0


def test_a_bias_is_a_constant_beside_the_kernel():
    x, offsets, labels = scans()
    model, _ = fit(Bags(x, offsets, labels), HeadSettings(n_inducing=8, sweeps=2, bias=7.0))
    plain, _ = fit(Bags(x, offsets, labels), HeadSettings(n_inducing=8, sweeps=2))
    z = plain.inducing
    torch.testing.assert_close(
        model.covar_module(z).to_dense(), plain.covar_module(z).to_dense() + 7, rtol=1e-12, atol=0
    )


def public_textbook(x, offsets, labels, z, settings, pi, m):
    """The public code's sweep as DESIGN.md describes it, dense, from given π and whitened m."""
    v, ell, eps = settings.variant.variance, float(x.shape[1]), 1e-6
    log_h = 12 * math.log(10)

    def k(a, b):
        return v * torch.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * ell))

    root = torch.linalg.cholesky(k(z, z) + eps * torch.eye(len(z), dtype=torch.float64))
    phi = torch.linalg.inv(root) @ k(z, x)
    left = (1 - (phi * phi).sum(0)).clamp(min=0)
    S = torch.eye(len(z), dtype=torch.float64)
    sizes = offsets.diff().tolist()
    for _ in range(settings.sweeps):
        c = (phi.T @ m).square() + (phi * (S @ phi)).sum(0) + left
        c = c.sqrt().clamp(max=3.0)
        theta = settings.alpha / (settings.beta + c * c / 2)
        S = torch.linalg.inv(torch.eye(len(z)) + phi @ torch.diag(theta) @ phi.T)
        m = S @ phi @ (pi - 0.5)
        others = torch.cat([1 - p for p in (others_max(part) for part in pi.split(sizes))])
        sign = torch.repeat_interleave(2.0 * labels - 1, torch.tensor(sizes))
        pi = torch.sigmoid(phi.T @ m + log_h * sign * others)
    return m, S


def others_max(pi):
    return torch.stack([torch.cat([pi[:n], pi[n + 1 :], torch.zeros(1)]).max() for n in range(len(pi))])


def test_the_public_preset_is_the_public_codes_sweep():
    x, offsets, labels = scans()
    settings = HeadSettings(
        preset="public",
        density="gamma",
        alpha=1.0,
        beta=2.5,
        variance=5.0,  # of some slices c starts beyond the clip, of others it depends on the random mean
        n_inducing=10,
        sweeps=3,
        random_state=4,
    )
    model, _ = fit(Bags(x, offsets, labels), settings)
    generator = torch.Generator().manual_seed(4)
    order = sorted(range(len(labels)), key=lambda b: -int(offsets[b + 1] - offsets[b]))
    drawn = torch.rand(len(x), generator=generator, dtype=torch.float64)
    # π are drawn in the order slices are kept in: position by position, longest bag first
    rows = [
        int(offsets[b]) + p
        for p in range(int(offsets.diff().max()))
        for b in order
        if p < int(offsets.diff()[b])
    ]
    pi = torch.empty_like(drawn)
    pi[rows] = drawn
    m = torch.randn(1, 10, generator=torch.Generator().manual_seed(4))[0].double()
    standard = (x - x.mean(0)) / x.std(0, correction=0)
    mean, S = public_textbook(standard, offsets, labels, model.inducing, settings, pi, m)
    close(model.q_mean, mean)
    close(model.q_root @ model.q_root.T, S)


def test_presets_of_the_paper_and_its_code():
    paper, public = (HeadSettings(preset=name).variant for name in ("paper", "public"))
    assert (paper.log_h, public.log_h) == (math.log(100), 12 * math.log(10))
    assert (paper.rule, public.rule) == ("noisy_or", "max")
    assert paper.leave_one_out == "product"
    assert (public.leave_one_out, public.clip, public.unit_prior) == ("max", 3.0, True)
    assert (paper.clip, paper.unit_prior) == (math.inf, False)
    for one in (paper, public):
        assert (one.update, one.length_per_feature, one.start) == ("jacobi", 1.0, "random")
    assert not paper.logistic_tail
    assert not public.logistic_tail
    # a choice beside the preset wins
    chosen = {"rule": "top_3", "variance": 2.0, "bias": 1.0}
    assert HeadSettings(preset="paper", **chosen).variant == replace(VARIANTS["paper"], **chosen)


def test_the_paper_preset_equals_the_textbook(preset):
    x, offsets, labels = scans()
    preset("paper", start="labels")
    settings = HeadSettings(preset="paper", density="gamma", n_inducing=12, sweeps=4)
    model, _ = fit(Bags(x, offsets, labels), settings)
    standard = (x - x.mean(0)) / x.std(0, correction=0)
    mu, var, _ = textbook(standard, offsets, labels, model.inducing, settings)
    close(model(x).mean, mu)
    close(model(x).variance, var)


def test_weights_by_hand():
    # S⁻¹ = I + [[3]] = 4, m = S · 2
    weights = Weights.solve(torch.full((1, 1, 1), 3.0).double(), torch.full((1, 1), 2.0).double())
    assert float(weights.mean) == 0.5
    assert float(weights.root) == 0.5
    assert float(weights.log_det) == pytest.approx(-math.log(4), rel=1e-15)
    assert float(weights.kl()) == pytest.approx(0.5 * (0.25 + 0.25 - 1 + math.log(4)), rel=1e-15)
    broken = Weights.solve(torch.full((1, 1, 1), -3.0).double(), torch.ones(1, 1).double())
    assert bool(broken.mean.isnan().all())


def test_gpytorch_kernels_by_name_and_as_object():
    import gpytorch

    x, offsets, labels = scans()
    settings = HeadSettings(kernel="MaternKernel", n_inducing=10, sweeps=4, ard=True)
    model, _ = fit(Bags(x, offsets, labels), settings)
    own = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5)).double()
    own.outputscale = torch.tensor(0.5).double()
    own.base_kernel.lengthscale = torch.tensor(math.sqrt(48)).double()  # 16 D
    other, _ = fit(Bags(x, offsets, labels), HeadSettings(n_inducing=10, sweeps=4), kernel=own)
    close(other(x).mean, model(x).mean)
    assert model.covar_module.base_kernel.lengthscale.shape == (1, 3)
    assert other.given == ("kernel",)
    learning = HeadSettings(n_inducing=10, sweeps=4, learn="kernel")
    learned, _ = fit(Bags(x, offsets, labels), learning, kernel=own)
    assert float(learned.covar_module.outputscale) != float(own.outputscale.detach()) == 0.5
    rbf, _ = fit(Bags(x, offsets, labels), HeadSettings(n_inducing=10, sweeps=4))
    assert not torch.allclose(rbf.q_mean, model.q_mean, rtol=1e-3)


def test_gradients_of_q_by_features():
    x, offsets, labels = scans()
    model, _ = fit(Bags(x, offsets, labels), HeadSettings(n_inducing=8, sweeps=3))

    def gradient(rows):
        seen = rows.clone().requires_grad_()
        q = model(seen)
        return torch.autograd.grad(q.mean.sum() + q.variance.sum(), seen)[0]

    first = gradient(x[:5])
    assert torch.equal(gradient(x[5:9]), gradient(x[5:9]))  # a backward of its own, each time
    model = copy.deepcopy(model)  # with nothing of a graph in it
    close(gradient(x[:5]), first)
    change = torch.zeros_like(x[:1]).index_fill(1, torch.tensor(1), 1e-5)
    rise = float((model(x[:1] + change).mean - model(x[:1] - change).mean).sum()) / 2e-5
    fall = float((model(x[:1] + change).variance - model(x[:1] - change).variance).sum()) / 2e-5
    assert float(gradient(x[:1])[0, 1]) == pytest.approx(rise + fall, rel=1e-5)


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        (RBFKernel(batch_shape=torch.Size([2])), r"\(2, 2, 2\)"),
        (MultitaskKernel(RBFKernel(), num_tasks=2), r"\(4, 4\)"),
    ],
)
def test_kernels_of_several_functions_are_refused(kernel, shape):
    with pytest.raises(ConfigError, match=rf"the kernel gives a matrix {shape} of 2 slices, not \(2, 2\)"):
        fit(Bags(*scans()), HeadSettings(n_inducing=4, sweeps=1), kernel=kernel)

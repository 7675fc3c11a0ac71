"""Heads fitted by several processes: the posterior of one process, the same on every rank."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import scipy.optimize
import torch

from ich_mil.data.features import read_feature_table
from ich_mil.errors import DataError
from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import Job, fit, fit_many
from ich_mil.gp.fit_calibration import calibrate, fit_calibrated
from ich_mil.gp.inference import ascent, inducing
from ich_mil.gp.inference.objective import KernelObjective
from ich_mil.gp.inference.report import FitReport
from ich_mil.gp.inference.share import share_of
from ich_mil.gp.inference.weights import Weights
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.leave_one_out import Turns
from ich_mil.ranks import ALONE, Ranks, these_ranks
from tests.gp.synthetic import scans
from tests.together import together

BASE = HeadSettings(n_inducing=10, sweeps=12, tolerance=1e-3, patience=3)
LEARN = replace(BASE, learn="kernel", outer=2, sweeps=4)
FAMILIES = {
    "logistic": BASE,
    "gamma": replace(BASE, density="gamma", alpha=0.5, beta=1.0),
    "without a tail": replace(BASE, density="gamma", beta=4.0, logistic_tail=False),
    "paper": replace(BASE, preset="paper"),
    "public": replace(BASE, preset="public"),
    "large margin": replace(BASE, family="large_margin"),
    "probit": replace(BASE, family="probit"),
    "mixed": replace(BASE, precision="mixed"),
    "smooth": replace(BASE, smooth_mm=5.0),
    "wide": replace(BASE, lengthscale_squared=30_000.0),  # leaves out 3 of 10 directions
    "kernel": LEARN,
    "kernel and inducing": replace(LEARN, learn="kernel_and_inducing", bias=0.5),
    "log Z": replace(LEARN, log_z=20, density="gamma"),
    "smooth kernel": replace(LEARN, smooth_mm=5.0, outer=1),
    "gibbs": replace(BASE, family="gibbs", burn_in=5, draws=10),
}
WATCHED = ("logistic", "without a tail", "probit", "smooth", "wide", "kernel")
FEW = ("without a tail", "paper", "kernel")
"""Of three processes."""

ERROR = {"mixed": 5e-6}
"""Relative to the largest value. Double precision agrees to 1e-12, and to 1e-11 where L-BFGS-B steps amplify
a rounding; `mixed` sums products in float32 within a tile, here to 6e-7, and tiles are other slices."""

Posterior = tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], FitReport]


def with_positions(seed: int, n_bags: int) -> Bags:
    x, offsets, labels = scans(n_bags, seed)
    return Bags(x, offsets, labels, 5.0 * torch.arange(len(x)).double())


def posterior(model: SparseGP, report: FitReport) -> Posterior:
    """Mean and covariance of q(w), kernel and inducing points, and the report."""
    root = model.q_root.detach()
    others = [value.detach().clone() for value in (model.inducing, *model.covar_module.parameters())]
    return model.q_mean.detach().clone(), root @ root.mT, others, report


def agree(got: torch.Tensor, expected: torch.Tensor, error: float = 1e-8) -> None:
    """Relative to the largest value; a head that has shrunk to 0 has none."""
    torch.testing.assert_close(got, expected, rtol=0, atol=error * float(expected.abs().max()))


def all_fits(chosen: Sequence[str] = tuple(FAMILIES)) -> dict[str, Posterior]:
    train, held = with_positions(0, 25), with_positions(3, 10)
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some diverge, on purpose
        for name in chosen:
            found[name] = posterior(*fit(train, FAMILIES[name]))
            if name in WATCHED:
                found[f"{name}, watched"] = posterior(*fit(train, FAMILIES[name], validation=held))
        shrinks = replace(BASE, density="gamma", logistic_tail=False, alpha=50.0, beta=1.0, log_h=0.01)
        cells = [replace(BASE, density="gamma", alpha=a, beta=b) for a, b in ((0.5, 1.0), (1.0, 2.5))]
        cells += [shrinks, replace(cells[0], n_inducing=8)]
        jobs = [Job(cell, tuple(range(20))) for cell in cells]
        for group in fit_many(train, jobs):
            found |= {f"cell {place}": posterior(model, report) for place, model, report in group}
    return found


def calibrations() -> list[tuple[float, ...]]:
    train, held = with_positions(0, 25), with_positions(3, 4)
    model, _ = fit(train, BASE)
    found = [
        fit_calibrated(train, BASE)[0].calibration,
        # 2 scans held out: one rank of 3 has none
        fit_calibrated(train, replace(BASE, calibration_folds=12))[0].calibration,
        fit_calibrated(train, replace(BASE, family="large_margin", calibration_folds=2))[0].calibration,
        calibrate(model, held),
    ]
    return [
        (one.slope, one.intercept, one.slice_slope, one.slice_intercept) for one in found if one is not None
    ]


def refusals() -> list[str]:
    x, offsets, labels = scans(3)
    few, whole, told = Bags(x[: offsets[2]], offsets[:3], labels[:2]), Bags(x, offsets, labels), []
    for bags, validation in ((few, None), (whole, few)):
        try:
            fit(bags, replace(BASE, n_inducing=2), validation=validation)
        except DataError as error:
            told.append(str(error))
    lost = torch.arange(len(x)).double().index_fill(0, offsets[1:2], torch.nan)  # on one rank
    with pytest.raises(DataError) as caught:
        fit(Bags(x, offsets, labels, lost), replace(BASE, n_inducing=2, smooth_mm=5.0))
    return [*told, str(caught.value).partition(";")[0]]


def rounded_otherwise() -> dict[str, Posterior]:
    """Fits in which every rank but the first computes a little differently, as another machine may."""
    train, held = with_positions(0, 25), with_positions(3, 10)
    chosen = {name: FAMILIES[name] for name in (*WATCHED, "gibbs")}
    off = 1.0 + 1e-9 * these_ranks().rank
    far = 1.0 + 0.1 * these_ranks().rank  # k-means may end elsewhere for a rounding
    eigh, cholesky, losses = torch.linalg.eigh, torch.linalg.cholesky_ex, ascent.platt_loss
    standardise, choose = inducing.standardisation, inducing.choose_inducing
    minimise = scipy.optimize.minimize if these_ranks().first else None  # rank 0's steps are everyone's

    def other_sign(matrix):
        energy, directions = eigh(matrix)
        return energy * off, directions if off == 1.0 else -directions

    with (
        warnings.catch_warnings(),
        mock.patch("torch.linalg.eigh", other_sign),
        mock.patch("torch.linalg.cholesky_ex", lambda A: cholesky(A * off)),
        mock.patch.object(ascent, "platt_loss", lambda *given: losses(*given) * off),
        mock.patch("scipy.optimize.minimize", minimise),
        mock.patch.object(inducing, "standardisation", lambda x: [one * far for one in standardise(x)]),
        mock.patch.object(inducing, "choose_inducing", lambda *a, **k: choose(*a, **k) * far),
    ):
        warnings.simplefilter("ignore")
        return {name: posterior(*fit(train, one, validation=held)) for name, one in chosen.items()}


def objectives() -> list[list[float]]:
    """J, log Z, F and the derivatives of F, of slices whose Θ and π - ½ are functions of their numbers."""
    train, ranks, found = with_positions(0, 25), these_ranks(), []
    for settings in (replace(LEARN, density="gamma", log_z=20), replace(LEARN, smooth_mm=5.0)):
        fixed = replace(settings, learn="nothing", outer=BASE.outer, log_z=0, sweeps=BASE.sweeps)
        model, _ = fit(train, fixed)
        model.settings = settings
        share = share_of(train, settings, ranks, "scans")
        turns = Turns(share.bags.offsets)
        number = share.rows[turns.order].double()
        objective = KernelObjective(
            model,
            share.bags.x,
            turns.order,
            number.sin() / 2,
            settings.make_density(),
            smoother=share.smoother,
            ranks=ranks,
        )
        root = model.q_root.mT[None]  # WᵀW = S
        weights = Weights(model.q_mean[None], root, 2 * root.diagonal(dim1=1, dim2=2).log().sum(1))
        variables = [model.inducing.requires_grad_(), *model.covar_module.requires_grad_().parameters()]
        values = [
            objective.evaluate(objective.projection(), weights)[0],
            objective.log_z(),
            objective.collapsed(number.cos().square() / 4),
        ]
        other = weights._replace(log_det=weights.log_det + ranks.rank)  # J decides, so it is rank 0's
        values.append(objective.evaluate(objective.projection(), other)[0])
        found.append(values + [float(ranks.total(one.grad).square().sum()) for one in variables])
    return found


def of_two() -> tuple[object, ...]:
    return all_fits(), calibrations(), refusals(), rounded_otherwise(), objectives()


def of_three() -> tuple[object, ...]:
    return all_fits(FEW), calibrations(), refusals()


@pytest.fixture(scope="module")
def alone():
    return all_fits(), calibrations(), objectives()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return together(of_two, folder=tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return together(of_three, folder=tmp_path_factory.mktemp("three"), size=3)


@pytest.fixture(params=["two", pytest.param("three", marks=pytest.mark.slow)])
def ranks(request):
    return request.getfixturevalue(request.param)


def test_it_is_the_posterior_of_one_process(ranks, alone):
    expected, got = alone[0], ranks[0][0]
    assert len(got) == (len(expected) if len(ranks) == 2 else 9)
    for name in got:
        mean, S, others, report = expected[name]
        error = ERROR.get(name, 1e-8)
        agree(got[name][0], mean, error)
        agree(got[name][1], S, error)
        for one, other in zip(got[name][2], others, strict=True):
            agree(one, other, error)
        told = got[name][3]
        assert (told.stopped, told.best_sweep) == (report.stopped, report.best_sweep), name
        for kind in ("elbo", "max_abs_mean", "validation_log_loss"):
            assert getattr(told, kind) == pytest.approx(getattr(report, kind), rel=100 * error), (name, kind)
    # the ways to end are all among them
    assert {one[3].stopped for one in expected.values()} == {"converged", "diverged", "sweeps", "validation"}


def test_every_rank_has_the_same_bits(ranks):
    first, *others = (one[0] for one in ranks)
    for other in others:
        for name, (mean, S, rest, report) in first.items():
            same = other[name]
            assert torch.equal(same[0], mean)
            assert torch.equal(same[1], S)
            assert all(torch.equal(*pair) for pair in zip(same[2], rest, strict=True))
            assert repr(same[3]) == repr(report), name  # as text: nan is not equal to itself


def test_machines_that_round_differently_agree(two):
    first, *others = (one[3] for one in two)
    for other in others:
        for name, (mean, S, rest, report) in first.items():
            same = other[name]
            assert torch.equal(same[0], mean), name
            assert torch.equal(same[1], S), name
            assert all(torch.equal(*pair) for pair in zip(same[2], rest, strict=True)), name
            assert same[3].validation_log_loss == report.validation_log_loss, name
            assert (same[3].stopped, same[3].best_sweep) == (report.stopped, report.best_sweep), name
    for name in WATCHED:  # and they are not far from where machines that are alike come to
        agree(first[name][0], two[0][0][f"{name}, watched"][0], 1e-5)


def test_the_objective_is_that_of_all_slices(two, alone):
    for rank in two:
        for got, expected in zip(rank[4], alone[2], strict=True):
            assert got == pytest.approx(expected, rel=1e-8)


def test_calibrations_are_those_of_one_process(ranks, alone):
    assert len(alone[1]) == 4
    for rank in ranks:
        assert rank[1] == ranks[0][1]
        for got, expected in zip(rank[1], alone[1], strict=True):
            assert got == pytest.approx(expected, rel=1e-8)


def test_what_cannot_be_shared_is_told_on_every_rank(ranks):
    few = "2 cannot be shared among 3 processes, each needs one; start at most 2 processes"
    expected = [f"training scans: {few}", f"validation scans: {few}"] if len(ranks) == 3 else []
    expected.append("training scans: head.smooth_mm is 5, but the position of slice 0 of scan 1 is unknown")
    assert [one[2] for one in ranks] == [expected] * len(ranks)


def test_a_share_is_scans_with_their_own_places_and_labels():
    bags, settings = with_positions(1, 9), replace(BASE, smooth_mm=5.0)
    shares = [share_of(bags, settings, Ranks(rank, 2), "scans") for rank in range(2)]
    assert torch.cat([share.numbers for share in shares]).sort().values.tolist() == list(range(9))
    assert torch.cat([share.rows for share in shares]).sort().values.tolist() == list(range(len(bags.x)))
    for mine, smoother, numbers, rows, all_labels in shares:
        assert torch.equal(all_labels, bags.labels)
        assert torch.equal(mine.x, bags.x[rows])
        assert torch.equal(mine.labels, bags.labels[numbers])
        assert torch.equal(mine.offsets.diff(), bags.offsets.diff()[numbers])
        assert torch.equal(smoother.positions, bags.positions[rows])
        assert smoother.width == 5.0
    assert [len(share.rows) for share in shares] == [32, 32]  # scans in turn would be 35 and 29
    alone = share_of(bags, BASE, ALONE, "scans")
    assert alone.bags is bags
    assert alone.smoother is None
    assert alone.rows.tolist() == list(range(len(bags.x)))


def real_fits(file: Path) -> dict[str, Posterior]:
    data = read_feature_table(file)
    bags = (data.x, data.offsets, data.labels)
    learn = HeadSettings(learn="kernel", outer=2, sweeps=5, lengthscale_squared=8.0)
    found = {"kernel": posterior(*fit(Bags(*bags), learn))}
    for family in ("psi", "large_margin", "probit"):
        found[family] = posterior(*fit(Bags(*bags), HeadSettings(family=family)))
    return found


@pytest.mark.realdata
def test_real_slices(shared_data, tmp_path):
    file = shared_data / "features" / "rsna150_d8_run2.csv"
    one, two = together(real_fits, file, folder=tmp_path)
    for name, (mean, S, others, report) in real_fits(file).items():
        for got in (one[name], two[name]):
            assert torch.equal(got[0], one[name][0])
            agree(got[0], mean)  # measured: 1e-13, with the kernel learned 1e-11
            agree(got[1], S)
            for value, other in zip(got[2], others, strict=True):
                agree(value, other)
            assert got[3].elbo == pytest.approx(report.elbo, rel=1e-10)

"""Fit a group of replicates: heads with the same training scans and the same kernel, which share Φ.

In: training scans, validation scans for early stopping, the settings of the replicates, inducing points. Out:
a `SparseGP` that holds q(w), and a `FitReport`, for each replicate.

If the kernel is learned, coordinate ascent and kernel learning alternate. A last ascent follows; only this
one uses the validation scans.

Shapes: B bags (scans), N instances (slices), D features, M inducing points, R replicates.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import gpytorch
import torch
from torch import Tensor

from ich_mil.errors import ConfigError, DataError
from ich_mil.gp.bags import Bags, check_both_labels
from ich_mil.gp.inference.ascent import PATIENCE, Limits, Watched, ascend
from ich_mil.gp.inference.gibbs import sample_posterior
from ich_mil.gp.inference.held_out import HeldOut
from ich_mil.gp.inference.hyperparameters import learn_hyperparameters
from ich_mil.gp.inference.inducing import Points
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.inference.report import FitReport, join_reports
from ich_mil.gp.inference.weights import Observation, Weights
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.observations.large_margin import MarginObservation
from ich_mil.gp.observations.probit import ProbitObservation
from ich_mil.gp.observations.vgpmil import PsiObservation
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP, check_kernel, lower_root
from ich_mil.kernels.leave_one_out import Turns

ROUNDS = 5
"""Rounds of kernel learning; each follows a coordinate ascent."""


class Group(NamedTuple):
    """Fitted replicates, each a head and its report; and the held-out folds, if there are any.

    Attributes:
        results: the heads in eval mode, and their reports.
        held_out: q(w) of the folds.
    """

    results: list[tuple[SparseGP, FitReport]]
    held_out: HeldOut | None


@torch.no_grad()
def fit_group(
    train: Bags,
    validation: Bags | None,
    settings: Sequence[HeadSettings],
    points: Points,
    *,
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
    fold_of: Tensor | None = None,
) -> Group:
    """Fit replicates whose settings differ only in `ich_mil.gp.fit.OWN`.

    Args:
        train: training scans.
        validation: validation scans for early stopping, or None.
        settings: settings of each replicate.
        points: inducing points, and mean and standard deviation of the features.
        density: ψ of all replicates, in place of the densities in the settings.
        kernel: kernel of all replicates, in place of the kernels in the settings.
        fold_of: (B,) fold of each training scan, to compute held-out posteriors beside a single replicate
            whose kernel is not learned, of the families psi and probit.

    Raises:
        DataError, ConfigError: as in `ich_mil.gp.fit.fit`.
    """
    shared = settings[0]
    if validation is not None:
        check_both_labels(validation, "validation scans")
        if validation.x.shape[1] != train.x.shape[1]:
            raise DataError(
                f"validation scans: {validation.x.shape[1]} features a slice, training scans have "
                f"{train.x.shape[1]}"
            )
    if density is not None and shared.family != "psi":
        raise ConfigError(f"a density is of ψ-VGPMIL, not of the family {shared.family!r}")
    model = _model(points, shared, kernel, like=train.x)
    turns = Turns(train.offsets)
    if shared.family == "gibbs":
        projection = Projection(model, train.x, rows=turns.order)
        return Group([sample_posterior(model, projection, train.truth[turns.bag_order], turns)], None)
    ascent = _Ascent(model, train, turns)
    observe = partial(_observation, train=train, turns=turns, density=density)
    observation, start, reports = observe(settings), _start(settings, points), list[FitReport]()
    if shared.learn != "nothing":
        fresh = partial(observe, settings)
        observation, start, reports = _learn(ascent, fresh, start, density or shared.make_density())
    projection = ascent.project()
    held_out = None
    if fold_of is not None:
        of_folds = observe([shared] * (int(fold_of.max()) + 1))
        held_out = HeldOut(projection, of_folds, fold_of.to(train.x.device), turns)
    results = []
    fitted = ascent.climb(projection, observation, start, validation, held_out)
    for replicate, (weights, report) in zip(settings, fitted, strict=True):
        head = copy.deepcopy(model)
        head.settings = replicate
        if density is not None:
            head.given += ("density",)
        # GPyTorch expects the lower Cholesky factor of S = WᵀW.
        S = weights.root[0].mT @ weights.root[0]
        head.set_q(weights.mean[0], lower_root(S))
        results.append((head, join_reports([*reports, report])))
    return Group(results, held_out)


def _model(
    points: Points, shared: HeadSettings, kernel: gpytorch.kernels.Kernel | None, *, like: Tensor
) -> SparseGP:
    """Unfitted head on the device of the features `like` (N, D)."""
    model = SparseGP(*points, shared, kernel=copy.deepcopy(kernel)).to(like.device).eval()
    check_kernel(model.covar_module, model.inducing[:2])
    return model


def _start(settings: Sequence[HeadSettings], points: Points) -> Weights:
    """q(w) before the first sweep: the prior, or N(m, I) with one random m for all replicates."""
    shared, m = settings[0], len(points.inducing)
    start = Weights.prior(len(settings), m, like=points.mean)
    if shared.variant.start == "random":
        generator = torch.Generator().manual_seed(shared.random_state)
        mean = torch.randn(m, generator=generator).to(start.mean)
        start = start._replace(mean=mean.expand_as(start.mean))
    return start


def _observation(
    settings: Sequence[HeadSettings], *, train: Bags, turns: Turns, density: Density | None
) -> Observation:
    """Observation model of the replicates."""
    shared, labels = settings[0], train.truth[turns.bag_order]
    if shared.family == "large_margin":
        return MarginObservation(len(settings), labels, turns)
    if shared.family == "probit":
        return ProbitObservation(len(settings), labels, turns)
    log_h = torch.tensor([s.variant.log_h for s in settings], dtype=torch.float64, device=labels.device)
    densities = [density or s.make_density() for s in settings]
    start = None
    if shared.variant.start == "random":  # π in the order of `turns`
        generator = torch.Generator().manual_seed(shared.random_state)
        start = torch.rand(len(train.x), generator=generator, dtype=torch.float64).to(labels.device)
    return PsiObservation(densities, log_h, labels, turns, shared.variant, start=start)


@dataclass(frozen=True)
class _Ascent:
    """Coordinate ascent on the training scans, with the current kernel of the model.

    Attributes:
        model: head whose kernel and inducing points define Φ.
        train: training scans.
        turns: order of their slices.
    """

    model: SparseGP
    train: Bags
    turns: Turns

    def project(self) -> Projection:
        """Φ of the training slices with the current kernel, in compressed directions."""
        return Projection(self.model, self.train.x, rows=self.turns.order, dtype=self._dtype, compress=True)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float32 if self.model.settings.precision == "mixed" else torch.float64

    def climb(
        self,
        projection: Projection,
        observation: Observation,
        start: Weights,
        validation: Bags | None = None,
        held_out: HeldOut | None = None,
    ) -> list[tuple[Weights, FitReport]]:
        """Run the ascent in compressed directions.

        Args:
            projection: Φ from `project`.
            observation: local factors, changed in place.
            start: q(w) in all M directions.
            validation: validation scans for early stopping.
            held_out: folds to update beside.

        Returns:
            q(w) in all M directions and the report, for each replicate.
        """
        s, basis = self.model.settings, projection.basis
        watched = None
        if validation is not None:
            seen = Projection(self.model, validation.x, dtype=self._dtype, basis=basis)
            watched = Watched(seen, validation.offsets.cpu(), validation.truth.cpu())
        fitted = ascend(
            projection,
            observation,
            start.within(basis),
            limits=Limits(s.sweeps, PATIENCE, s.tolerance, s.variant.rule, s.link),
            training=Watched(projection, self.train.offsets.cpu(), self.train.truth.cpu(), self.turns),
            watched=watched,
            held_out=held_out,
        )
        return [(weights.beyond(basis), report) for weights, report in fitted]


def _learn(
    ascent: _Ascent, observe: Callable[[], Observation], start: Weights, density: Density
) -> tuple[Observation, Weights, list[FitReport]]:
    """Alternate coordinate ascent and kernel learning for one replicate; changes the kernel of the model.

    Returns:
        The observation and q(w) from which the last ascent starts, and a report for each ascent so far.
    """
    observation, reports = observe(), []
    for _ in range(ROUNDS):
        ((start, report),) = ascent.climb(ascent.project(), observation, start)
        reports.append(report)
        if report.stopped == "diverged":  # π is that of the diverged sweep, so the kernel must not be learned
            return observe(), start, reports
        start = learn_hyperparameters(
            ascent.model, ascent.train.x, ascent.turns.order, start, observation.target()[0], density
        )
    return observation, start, reports

"""Fit a group of replicates: heads with the same training scans and the same kernel, which share Φ.

In: training scans, validation scans for early stopping, the settings of the replicates, inducing points. Out:
a `SparseGP` that holds q(w), and a `FitReport`, for each replicate.

If the kernel is learned, coordinate ascent and kernel learning alternate. A last ascent follows; only this
one uses the validation scans.

Shapes: B bags (scans), N instances (slices), n of them on this rank, D features, M inducing points, R
replicates.
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
from ich_mil.gp.inference.share import Share, share_of
from ich_mil.gp.inference.weights import Observation, Weights
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.observations.large_margin import MarginObservation
from ich_mil.gp.observations.probit import ProbitObservation
from ich_mil.gp.observations.vgpmil import PsiObservation
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP, check_kernel, lower_root
from ich_mil.kernels.leave_one_out import Turns
from ich_mil.ranks import ALONE, Ranks, these_ranks

ROUNDS = 5
"""Rounds of kernel learning; each follows a coordinate ascent."""


class Group(NamedTuple):
    """Fitted replicates, each a head and its report; and the held-out folds, if there are any.

    Attributes:
        results: the heads in eval mode, and their reports.
        held_out: q(w) of the folds.
        share: this rank's training scans.
    """

    results: list[tuple[SparseGP, FitReport]]
    held_out: HeldOut | None
    share: Share


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

    The arguments are checked before the scans are divided among the ranks, so that an error is raised on
    every rank.

    Args:
        train: all training scans.
        validation: all validation scans for early stopping, or None.
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
    ranks = ALONE if shared.family == "gibbs" else these_ranks()
    share = share_of(train, ranks, "training scans")
    held = None if validation is None else share_of(validation, ranks, "validation scans")
    model = _model(points, shared, kernel, like=train.x)
    turns = Turns(share.bags.offsets)
    if shared.family == "gibbs":
        return Group([_sampled(model, share, turns)], None, share)
    ascent = _Ascent(model, share, turns, ranks)
    observe = partial(_observation, offsets=train.offsets, share=share, turns=turns, density=density)
    observation, start, reports = observe(settings), _start(settings, points), list[FitReport]()
    if shared.learn != "nothing":
        fresh = partial(observe, settings)
        observation, start, reports = _learn(ascent, fresh, start, density or shared.make_density())
    projection = ascent.project()
    held_out = None
    if fold_of is not None:
        of_folds = observe([shared] * (int(fold_of.max()) + 1))
        own = fold_of.to(share.numbers.device)[share.numbers]
        held_out = HeldOut(projection, of_folds, own, turns, ranks)
    results = []
    found = ascent.climb(projection, observation, start, held, held_out)
    for one, (weights, report) in zip(settings, found, strict=True):
        head = copy.deepcopy(model)
        head.settings = one
        if density is not None:
            head.given += ("density",)
        # GPyTorch expects the lower Cholesky factor of S = WᵀW.
        S = weights.root[0].mT @ weights.root[0]
        head.set_q(weights.mean[0], lower_root(S))
        ranks.agree(head)
        results.append((head, join_reports([*reports, report])))
    return Group(results, held_out, share)


def _model(
    points: Points, shared: HeadSettings, kernel: gpytorch.kernels.Kernel | None, *, like: Tensor
) -> SparseGP:
    """Unfitted head on the device of the features `like` (N, D)."""
    model = SparseGP(*points, shared, kernel=copy.deepcopy(kernel)).to(like.device).eval()
    check_kernel(model.covar_module, model.inducing[:2])
    return model


def _sampled(model: SparseGP, share: Share, turns: Turns) -> tuple[SparseGP, FitReport]:
    """Head fitted by Gibbs sampling, the same on every rank."""
    projection = Projection(model, share.bags.x, rows=turns.order)
    head, report = sample_posterior(model, projection, share.bags.truth[turns.bag_order], turns)
    these_ranks().agree(head)
    return head, report


def _start(settings: Sequence[HeadSettings], points: Points) -> Weights:
    """q(w) before the first sweep: the prior, or N(m, I) with one random m for all replicates."""
    shared, m = settings[0], len(points.inducing)
    start = Weights.prior(len(settings), m, like=points.mean)
    if shared.variant.start == "random":
        generator = torch.Generator().manual_seed(shared.random_state)
        mean = torch.randn(m, generator=generator).to(start.mean)
        start = start._replace(mean=mean.expand_as(start.mean))
    return start


def _random_start(offsets: Tensor, share: Share, turns: Turns, seed: int) -> Tensor:
    """Random π (n,) in the order of `turns`.

    π is drawn for the slices of all scans of `offsets` (B + 1,), so that it does not depend on the ranks.
    """
    everyone = Turns(offsets)
    drawn = torch.rand(
        len(everyone.order), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return everyone.restore(drawn.to(offsets.device))[share.rows][turns.order]


def _observation(
    settings: Sequence[HeadSettings],
    *,
    offsets: Tensor,
    share: Share,
    turns: Turns,
    density: Density | None,
) -> Observation:
    """Observation model of the replicates for this rank's share of the scans of `offsets` (B + 1,)."""
    shared, labels = settings[0], share.bags.truth[turns.bag_order]
    if shared.family == "large_margin":
        return MarginObservation(len(settings), labels, turns)
    if shared.family == "probit":
        return ProbitObservation(len(settings), labels, turns)
    log_h = torch.tensor([one.variant.log_h for one in settings], dtype=torch.float64, device=labels.device)
    densities = [density or one.make_density() for one in settings]
    start = None
    if shared.variant.start == "random":
        start = _random_start(offsets, share, turns, shared.random_state)
    return PsiObservation(densities, log_h, labels, turns, shared.variant, start=start)


@dataclass(frozen=True)
class _Ascent:
    """Coordinate ascent on the training scans of one rank, with the current kernel of the model.

    Attributes:
        model: head whose kernel and inducing points define Φ.
        share: this rank's training scans.
        turns: order of their slices.
        ranks: the ranks among which the scans are divided.
    """

    model: SparseGP
    share: Share
    turns: Turns
    ranks: Ranks

    def project(self) -> Projection:
        """Φ of the training slices with the current kernel, in compressed directions."""
        return Projection(
            self.model,
            self.share.bags.x,
            rows=self.turns.order,
            dtype=self._dtype,
            compress=True,
            ranks=self.ranks,
        )

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float32 if self.model.settings.precision == "mixed" else torch.float64

    def climb(
        self,
        projection: Projection,
        observation: Observation,
        start: Weights,
        held: Share | None = None,
        held_out: HeldOut | None = None,
    ) -> list[tuple[Weights, FitReport]]:
        """Run the ascent in compressed directions.

        Args:
            projection: Φ from `project`.
            observation: local factors, changed in place.
            start: q(w) in all M directions.
            held: validation scans for early stopping.
            held_out: folds to update beside.

        Returns:
            q(w) in all M directions and the report, for each replicate.
        """
        one, basis = self.model.settings, projection.basis
        training = Watched(
            projection, self.share.bags.offsets.cpu(), self.share.all_labels, self.turns, self.share.numbers
        )
        watched = None
        if held is not None:
            seen = Projection(self.model, held.bags.x, dtype=self._dtype, basis=basis)
            watched = Watched(seen, held.bags.offsets.cpu(), held.all_labels, numbers=held.numbers)
        found = ascend(
            projection,
            observation,
            start.within(basis),
            limits=Limits(one.sweeps, PATIENCE, one.tolerance, one.variant.rule, one.link),
            training=training,
            watched=watched,
            held_out=held_out,
            ranks=self.ranks,
        )
        return [(weights.beyond(basis), report) for weights, report in found]


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
            ascent.model,
            ascent.share.bags.x,
            ascent.turns.order,
            start,
            observation.target()[0],
            density,
            ranks=ascent.ranks,
        )
    return observation, start, reports

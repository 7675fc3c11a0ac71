"""Fit replicates: heads that train on the same scans with the same kernel, and share Φ.

In: training scans, scans to stop by, the settings of the replicates, inducing points. Out: a `SparseGP` that
holds q(w) and a report for each.

Where the kernel is learned, coordinate ascent and kernel learning take turns; a last ascent follows, which
alone sees the scans to stop by.

Shapes: B bags (scans), N instances (slices), n of them this rank's, D features, M inducing points, R
replicates.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import gpytorch
import torch
from torch import Tensor

from ich_mil.errors import ConfigError, DataError
from ich_mil.gp.ascent import FitReport, Limits, Observation, Watched, Weights, ascend, join_reports
from ich_mil.gp.bags import Bags, check_bags
from ich_mil.gp.densities import Density
from ich_mil.gp.gibbs import sample_posterior
from ich_mil.gp.hyperparameters import learn_hyperparameters
from ich_mil.gp.inducing import Points
from ich_mil.gp.large_margin import MarginObservation
from ich_mil.gp.probit import ProbitObservation
from ich_mil.gp.projection import Projection
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.shares import Share, share_of
from ich_mil.gp.sparse_gp import SparseGP, check_kernel, lower_root
from ich_mil.gp.vgpmil import PsiObservation
from ich_mil.kernels.leave_one_out import Turns
from ich_mil.ranks import ALONE, Ranks, these_ranks


@torch.no_grad()
def fit_group(
    train: Bags,
    validation: Bags | None,
    settings: Sequence[HeadSettings],
    points: Points,
    *,
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
) -> list[tuple[SparseGP, FitReport]]:
    """Fit replicates whose settings differ in `ich_mil.gp.fit.OWN` only.

    What can fail does so before the scans are shared out: then it fails on every rank.

    Args:
        train: all training scans.
        validation: all scans to stop by; None is none.
        settings: of each replicate.
        points: inducing points, and what standardises features.
        density: ψ of all, instead of those the settings name.
        kernel: likewise.

    Returns:
        The heads in eval mode, and what happened.

    Raises:
        DataError: as in `ich_mil.gp.fit.fit`.
        ConfigError: likewise.
    """
    shared = settings[0]
    _check(train, validation, shared, density)
    ranks = ALONE if shared.family == "gibbs" else these_ranks()
    share = share_of(train, shared, ranks, "training scans")
    held = None if validation is None else share_of(validation, shared, ranks, "validation scans")
    model = _model(points, shared, kernel, like=train.x)
    turns = Turns(share.bags.offsets)
    if shared.family == "gibbs":
        return [_sampled(model, share, turns)]
    ascent = _Ascent(model, share, turns, ranks)
    observe = partial(_observation, settings, train.offsets, share, turns, density)
    observation, start, reports = observe(), _start(settings, points), list[FitReport]()
    if shared.learn != "nothing":
        observation, start, reports = _learn(ascent, observe, start, density or shared.make_density())
    results = []
    for one, (weights, report) in zip(settings, ascent.climb(observation, start, held), strict=True):
        head = copy.deepcopy(model)
        head.settings = one
        if density is not None:
            head.given += ("density",)
        # S = WᵀW, and its own lower Cholesky factor for GPyTorch.
        S = weights.root[0].mT @ weights.root[0]
        head.set_q(weights.mean[0], lower_root(S))
        ranks.agree(head)
        results.append((head, join_reports([*reports, report])))
    return results


def _check(train: Bags, validation: Bags | None, shared: HeadSettings, density: Density | None) -> None:
    """Raise for validation scans, or a density, that do not belong to the training scans or the family."""
    if validation is not None:
        check_bags(*validation[:3], "validation scans")
        if validation.x.shape[1] != train.x.shape[1]:
            raise DataError(
                f"validation scans: {validation.x.shape[1]} features a slice, training scans have "
                f"{train.x.shape[1]}"
            )
    if density is not None and shared.family != "psi":
        raise ConfigError(f"a density is of ψ-VGPMIL, not of the family {shared.family!r}")


def _model(
    points: Points, shared: HeadSettings, kernel: gpytorch.kernels.Kernel | None, *, like: Tensor
) -> SparseGP:
    """The head before its fit, on the device of the features `like` (N, D)."""
    model = SparseGP(*points, shared, kernel=copy.deepcopy(kernel)).to(like.device).eval()
    check_kernel(model.covar_module, model.inducing[:2])
    return model


def _sampled(model: SparseGP, share: Share, turns: Turns) -> tuple[SparseGP, FitReport]:
    """The head with a posterior of Gibbs chains, the same on every rank."""
    projection = Projection(model, share.bags.x, rows=turns.order, smoother=share.smoother)
    head, report = sample_posterior(model, projection, share.bags.labels[turns.bag_order], turns)
    these_ranks().agree(head)
    return head, report


def _start(settings: Sequence[HeadSettings], points: Points) -> Weights:
    """q(w) before the first sweep: its prior, or around one random mean for all replicates."""
    shared, m = settings[0], len(points.inducing)
    start = Weights.prior(len(settings), m, like=points.mean)
    if shared.variant.start == "random":
        generator = torch.Generator().manual_seed(shared.seed)
        mean = torch.randn(m, generator=generator).to(start.mean)
        start = start._replace(mean=mean.expand_as(start.mean))
    return start


def _random_start(offsets: Tensor, share: Share, turns: Turns, seed: int) -> Tensor:
    """Random π (n,) in the order of `turns`, drawn for the slices of all scans (B + 1,), whoever has them."""
    everyone = Turns(offsets)
    drawn = torch.rand(
        len(everyone.order), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return everyone.restore(drawn.to(offsets.device))[share.rows][turns.order]


def _observation(
    settings: Sequence[HeadSettings],
    offsets: Tensor,
    share: Share,
    turns: Turns,
    density: Density | None,
) -> Observation:
    """The local side of the replicates' family for this share of the scans of `offsets` (B + 1,)."""
    shared, labels = settings[0], share.bags.labels[turns.bag_order]
    if shared.family == "large_margin":
        return MarginObservation(settings, labels, turns)
    if shared.family == "probit":
        return ProbitObservation(len(settings), labels, turns)
    log_h = torch.tensor([one.variant.log_h for one in settings], dtype=torch.float64, device=labels.device)
    densities = [density or one.make_density() for one in settings]
    start = None
    if shared.variant.start == "random":
        start = _random_start(offsets, share, turns, shared.seed)
    return PsiObservation(densities, log_h, labels, turns, shared.variant, start=start)


@dataclass(frozen=True)
class _Ascent:
    """Coordinate ascent on the training scans of one rank, with the kernel that the model has at the time.

    Attributes:
        model: gives Φ.
        share: of the training scans.
        turns: their order.
        ranks: that share the scans out.
    """

    model: SparseGP
    share: Share
    turns: Turns
    ranks: Ranks

    def climb(
        self, observation: Observation, start: Weights, held: Share | None = None
    ) -> list[tuple[Weights, FitReport]]:
        """q(w) in all M directions goes in and comes out; scans of `held` say when to stop."""
        one, bags = self.model.settings, self.share.bags
        dtype = torch.float32 if one.precision == "mixed" else torch.float64
        projection = Projection(
            self.model,
            bags.x,
            rows=self.turns.order,
            dtype=dtype,
            compress=True,
            smoother=self.share.smoother,
            ranks=self.ranks,
        )
        basis = projection.basis
        training = Watched(
            projection, bags.offsets.cpu(), self.share.all_labels, self.turns, self.share.numbers
        )
        watched = None
        if held is not None:
            seen = Projection(self.model, held.bags.x, dtype=dtype, basis=basis, smoother=held.smoother)
            watched = Watched(seen, held.bags.offsets.cpu(), held.all_labels, numbers=held.numbers)
        found = ascend(
            projection,
            observation,
            start.within(basis),
            limits=Limits(one.sweeps, one.patience, one.tolerance, one.variant.rule, one.link),
            training=training,
            watched=watched,
            ranks=self.ranks,
        )
        return [(weights.beyond(basis), report) for weights, report in found]


def _learn(
    ascent: _Ascent, observe: Callable[[], Observation], start: Weights, density: Density
) -> tuple[Observation, Weights, list[FitReport]]:
    """Ascent and kernel learning in turn, of one replicate: the model's kernel is another afterwards.

    Returns:
        The observation and q(w) that a last ascent starts from, and a report for each ascent so far.
    """
    observation, reports = observe(), []
    for _ in range(ascent.model.settings.outer):
        ((start, report),) = ascent.climb(observation, start)
        reports.append(report)
        if report.stopped == "diverged":  # the π are those of the runaway sweep: nothing to learn from
            return observe(), start, reports
        start = learn_hyperparameters(
            ascent.model,
            ascent.share.bags.x,
            ascent.turns.order,
            start,
            observation.target()[0],
            density,
            smoother=ascent.share.smoother,
            ranks=ascent.ranks,
        )
    return observation, start, reports

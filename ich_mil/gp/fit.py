"""Fit heads: slice features and scan labels to Gaussian processes, one or many in a call.

In: packed (N, D) features, offsets and scan labels. Out: a `SparseGP` that holds q(w), and a report of the
fit. Heads that train on the same scans with the same kernel share Φ, and their sweeps run side by side as
replicates. Everything is done on the device of the features.

Several ranks (`ich_mil.ranks`) fit together: each calls with the same scans and works on its share of them,
and all get the same head, to the bit.

Shapes: B bags (scans), N instances (slices), D features, M inducing points, R replicates.
"""

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import gpytorch
import torch
from torch import Tensor

from ich_mil.errors import ConfigError, DataError
from ich_mil.gp.ascent import FitReport, Limits, Observation, Watched, Weights, ascend, join_reports
from ich_mil.gp.bags import AnyBags, Bags, check_bags, take
from ich_mil.gp.densities import Density
from ich_mil.gp.gibbs import sample_posterior
from ich_mil.gp.hyperparameters import learn_hyperparameters
from ich_mil.gp.inducing import Points, place_points
from ich_mil.gp.large_margin import MarginObservation
from ich_mil.gp.probit import ProbitObservation
from ich_mil.gp.projection import Projection
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.shares import Share, on_device, share_of
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.gp.vgpmil import PsiObservation
from ich_mil.kernels.leave_one_out import Turns
from ich_mil.ranks import ALONE, these_ranks

OWN = ("density", "alpha", "beta", "logistic_tail", "log_h", "margin_c", "margin_v")
"""The settings in which replicates of one Φ may differ."""


@dataclass(frozen=True)
class Job:
    """One fit among many.

    Attributes:
        settings: of the head.
        train: numbers of the bags to train on; None is all.
        validation: numbers of the bags for early stopping; None is none.
    """

    settings: HeadSettings
    train: tuple[int, ...] | None = None
    validation: tuple[int, ...] | None = None


def fit(
    x: Tensor,
    offsets: Tensor,
    labels: Tensor,
    *,
    settings: HeadSettings,
    positions: Tensor | None = None,
    validation: AnyBags | None = None,
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
) -> tuple[SparseGP, FitReport]:
    """Fit one head.

    A sweep updates Θ, S, m and the local posteriors, each once (`ascend`). q(w) starts at its prior.

    Args:
        x: (N, D) raw features.
        offsets: (B + 1,).
        labels: (B,) in {0, 1}.
        settings: all there is to choose.
        positions: (N,) mm along the scan; needed where the settings smooth along z.
        validation: features, offsets, labels (and positions) of other scans, for early stopping.
        density: ψ instead of the one the settings name.
        kernel: instead of the one the settings name.

    Returns:
        The head in eval mode, and what happened.

    Raises:
        DataError: shapes do not fit, a slice is not `measurable`, a label is not 0/1 or one label is missing;
            the settings smooth, and where slices lie is not known; there are fewer scans than ranks.
        ConfigError: a kernel that is not one of D features; a density in a family other than ψ-VGPMIL.
    """
    bags = on_device(Bags(x, offsets, labels, positions), x.device)
    held = None if validation is None else on_device(Bags(*validation), x.device)
    (result,) = _fit_group(
        bags, held, [settings], place_points(bags, settings), density=density, kernel=kernel
    )
    return result


class Fitted(NamedTuple):
    """One job done: its place among the jobs, the head, and what happened."""

    place: int
    model: SparseGP
    report: FitReport


def fit_many(
    x: Tensor,
    offsets: Tensor,
    labels: Tensor,
    jobs: Sequence[Job],
    *,
    positions: Tensor | None = None,
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
) -> Iterator[list[Fitted]]:
    """Fit many heads to scans of one data set: folds, seeds, densities, numbers of inducing points.

    Jobs that train on the same scans and differ in `OWN` settings only share Φ, and their sweeps run as one.

    Args:
        x: (N, D) raw features.
        offsets: (B + 1,).
        labels: (B,) in {0, 1}.
        jobs: what to fit; the order is free.
        positions: (N,) mm along the scan; needed where a job smooths along z.
        density: ψ of all jobs, instead of those the settings name.
        kernel: likewise.

    Yields:
        The jobs of one group after the other, which share kernel and inducing points.

    Raises:
        DataError: as in `fit`.
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    shared = {name: getattr(HeadSettings(), name) for name in OWN}
    for place, job in enumerate(jobs):
        one = job.settings
        alone = place if one.learn != "nothing" or one.family == "gibbs" else None
        groups[(alone, job.train, job.validation, replace(one, **shared))].append(place)
    points: dict[tuple[object, ...], Points] = {}
    bags = on_device(Bags(x, offsets, labels, positions), x.device)
    for places in groups.values():
        first = jobs[places[0]]
        train, validation = (
            None if chosen is None else take(bags, chosen) for chosen in (first.train, first.validation)
        )
        settings = [jobs[place].settings for place in places]
        key = (first.train, first.settings.n_inducing, first.settings.seed)
        if key not in points:  # k-means is the dearest part of a small fit
            points[key] = place_points(train or bags, first.settings)
        results = _fit_group(train or bags, validation, settings, points[key], density=density, kernel=kernel)
        yield [Fitted(place, *result) for place, result in zip(places, results, strict=True)]


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


@torch.no_grad()
def _fit_group(
    train: Bags,
    validation: Bags | None,
    settings: Sequence[HeadSettings],
    points: Points,
    *,
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
) -> list[tuple[SparseGP, FitReport]]:
    """Fit replicates that share everything but `OWN` settings.

    What can fail does so before the scans are shared out: then it fails on every rank.
    """
    if validation is not None:
        check_bags(*validation[:3], "validation scans")
        if validation.x.shape[1] != train.x.shape[1]:
            raise DataError(
                f"validation scans: {validation.x.shape[1]} features a slice, training scans have "
                f"{train.x.shape[1]}"
            )
    shared = settings[0]
    if density is not None and shared.family != "psi":
        raise ConfigError(f"a density is of ψ-VGPMIL, not of the family {shared.family!r}")
    ranks = ALONE if shared.family == "gibbs" else these_ranks()
    share = share_of(train, shared, ranks, "training scans")
    held = None if validation is None else share_of(validation, shared, ranks, "validation scans")
    (x, offsets, labels, _), smoother = share.bags, share.smoother
    inducing, mean, std = points
    model = SparseGP(inducing, mean, std, shared, kernel=copy.deepcopy(kernel)).to(x.device).eval()
    try:
        model.covar_module(model.inducing[:1]).to_dense()
    except RuntimeError as error:
        raise ConfigError(
            f"the kernel cannot be computed of {x.shape[1]} features a slice ({error}); give one that can"
        ) from error
    turns = Turns(offsets)
    dtype = torch.float32 if shared.precision == "mixed" else torch.float64
    limits = Limits(shared.sweeps, shared.patience, shared.tolerance, shared.variant.rule, shared.link)

    if shared.family == "gibbs":
        projection = Projection(model, x, rows=turns.order, smoother=smoother)
        head, report = sample_posterior(model, projection, labels[turns.bag_order], turns)
        these_ranks().agree(head)
        return [(head, report)]
    observation = _observation(settings, train.offsets, share, turns, density)
    start = Weights.prior(len(settings), len(inducing), like=mean)
    if shared.variant.start == "random":
        generator = torch.Generator().manual_seed(shared.seed)
        mean_start = torch.randn(len(inducing), generator=generator).to(start.mean)
        start = start._replace(mean=mean_start.expand_as(start.mean))

    def climb(
        observation: Observation, start: Weights, held: Share | None
    ) -> list[tuple[Weights, FitReport]]:
        """Coordinate ascent with the kernel as it is now; q(w) in all M directions goes in and comes out."""
        projection = Projection(
            model, x, rows=turns.order, dtype=dtype, compress=True, smoother=smoother, ranks=ranks
        )
        basis = projection.basis
        training = Watched(projection, offsets.cpu(), train.labels.cpu(), turns, share.numbers)
        watched = None
        if held is not None and validation is not None:
            seen = Projection(model, held.bags.x, dtype=dtype, basis=basis, smoother=held.smoother)
            watched = Watched(seen, held.bags.offsets.cpu(), validation.labels.cpu(), numbers=held.numbers)
        found = ascend(
            projection,
            observation,
            start.within(basis),
            limits=limits,
            training=training,
            watched=watched,
            ranks=ranks,
        )
        return [(weights.beyond(basis), report) for weights, report in found]

    reports = []
    if shared.learn != "nothing":
        for _ in range(shared.outer):
            ((start, report),) = climb(observation, start, None)
            reports.append(report)
            if report.stopped == "diverged":  # the π are those of the runaway sweep: nothing to learn from
                observation = _observation(settings, train.offsets, share, turns, density)
                break
            start = learn_hyperparameters(
                model,
                x,
                turns.order,
                start,
                observation.target()[0],
                density or shared.make_density(),
                smoother=smoother,
                ranks=ranks,
            )
    outcomes = climb(observation, start, held)
    results = []
    for one, (weights, report) in zip(settings, outcomes, strict=True):
        head = copy.deepcopy(model)
        head.settings = one
        if density is not None:
            head.given += ("density",)
        # S = WᵀW, and its own lower Cholesky factor for GPyTorch.
        S = weights.root[0].mT @ weights.root[0]
        head.set_q(weights.mean[0], torch.linalg.cholesky(S))
        ranks.agree(head)
        results.append((head, join_reports([*reports, report])))
    return results

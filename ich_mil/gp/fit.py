"""Fit heads: slice features and scan labels to Gaussian processes, one or many in a call.

In: packed (N, D) features, offsets and scan labels. Out: a `SparseGP` that holds q(w), and a report of the
fit. Heads that train on the same scans with the same kernel share Φ, and their sweeps run side by side as
replicates.

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
from ich_mil.gp.bags import CHUNK, AnyBags, Bags, check_bags, take
from ich_mil.gp.densities import Density
from ich_mil.gp.gibbs import sample_posterior
from ich_mil.gp.hyperparameters import learn_hyperparameters
from ich_mil.gp.inducing import choose_inducing
from ich_mil.gp.large_margin import MarginObservation
from ich_mil.gp.probit import ProbitObservation
from ich_mil.gp.projection import Projection
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.smoothing import make_smoother
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.gp.vgpmil import PsiObservation
from ich_mil.kernels.leave_one_out import Turns

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


def standardisation(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation (D,) in float64; the deviation of a constant feature is 1."""
    parts = x.split(CHUNK)
    mean = torch.stack([part.double().sum(0) for part in parts]).sum(0) / len(x)
    square = torch.stack([(part.double() - mean).square().sum(0) for part in parts]).sum(0) / len(x)
    largest = torch.stack([part.abs().amax(0) for part in parts]).amax(0).double()
    std = square.sqrt()
    constant = std <= 1e-12 * largest  # a constant 0.1 has a mean an ulp away from it
    return mean, torch.where(constant, torch.ones_like(std), std)


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
        DataError: shapes do not fit, a feature is not finite, a label is not 0/1 or one label is missing; the
            settings smooth, and where slices lie is not known.
    """
    bags = Bags(x, offsets, labels, positions)
    held = None if validation is None else Bags(*validation)
    (result,) = _fit_group(bags, held, [settings], _place(bags, settings), density=density, kernel=kernel)
    return result


class Points(NamedTuple):
    """Inducing points (M, D), standardised with mean and deviation (D,) of the training slices."""

    inducing: Tensor
    mean: Tensor
    std: Tensor


def _place(train: Bags, settings: HeadSettings) -> Points:
    """Check the training scans and choose inducing points; kernel and density have no part in it."""
    x, offsets, labels, _ = train
    check_bags(x, offsets, labels, "training scans")
    mean, std = standardisation(x)
    inducing = choose_inducing(
        x, offsets, labels, mean=mean, std=std, n_inducing=settings.n_inducing, seed=settings.seed
    )
    return Points(inducing, mean, std)


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
    bags = Bags(x, offsets, labels, positions)
    for places in groups.values():
        first = jobs[places[0]]
        train, validation = (
            None if chosen is None else take(bags, chosen) for chosen in (first.train, first.validation)
        )
        settings = [jobs[place].settings for place in places]
        key = (first.train, first.settings.n_inducing, first.settings.seed)
        if key not in points:  # k-means is the dearest part of a small fit
            points[key] = _place(train or bags, first.settings)
        results = _fit_group(train or bags, validation, settings, points[key], density=density, kernel=kernel)
        yield [Fitted(place, *result) for place, result in zip(places, results, strict=True)]


def _observation(
    settings: Sequence[HeadSettings], labels: Tensor, turns: Turns, density: Density | None
) -> Observation:
    """The local side of the replicates' family; labels (B,) by rank."""
    shared = settings[0]
    if shared.family == "large_margin":
        return MarginObservation(settings, labels, turns)
    if shared.family == "probit":
        return ProbitObservation(len(settings), labels, turns)
    log_h = torch.tensor([one.variant.log_h for one in settings], dtype=torch.float64, device=labels.device)
    densities = [density or one.make_density() for one in settings]
    generator = torch.Generator().manual_seed(shared.seed)
    return PsiObservation(densities, log_h, labels, turns, shared.variant, generator=generator)


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
    """Fit replicates that share everything but `OWN` settings."""
    x, offsets, labels, _ = train
    if validation is not None:
        check_bags(*validation[:3], "validation scans")
        if validation.x.shape[1] != x.shape[1]:
            raise DataError(
                f"validation scans: {validation.x.shape[1]} features a slice, training scans have "
                f"{x.shape[1]}"
            )
    shared = settings[0]
    if density is not None and shared.family != "psi":
        raise ConfigError(f"a density is of ψ-VGPMIL, not of the family {shared.family!r}")
    inducing, mean, std = points
    model = SparseGP(inducing, mean, std, shared, kernel=copy.deepcopy(kernel)).to(x.device).eval()
    turns = Turns(offsets)
    dtype = torch.float32 if shared.precision == "mixed" else torch.float64
    limits = Limits(shared.sweeps, shared.patience, shared.tolerance, shared.variant.rule, shared.link)
    smoother = make_smoother(shared, train.positions, offsets, what="training scans")

    if shared.family == "gibbs":
        projection = Projection(model, x, rows=turns.order, smoother=smoother)
        return [sample_posterior(model, projection, labels[turns.bag_order], turns)]
    observation = _observation(settings, labels[turns.bag_order], turns, density)
    start = Weights.prior(len(settings), len(inducing), like=mean)
    if shared.variant.start == "random":
        generator = torch.Generator().manual_seed(shared.seed)
        mean_start = torch.randn(len(inducing), generator=generator).to(start.mean)
        start = start._replace(mean=mean_start.expand_as(start.mean))

    def climb(start: Weights, held: Bags | None) -> list[tuple[Weights, FitReport]]:
        """Coordinate ascent with the kernel as it is now; q(w) in all M directions goes in and comes out."""
        projection = Projection(model, x, rows=turns.order, dtype=dtype, compress=True, smoother=smoother)
        basis = projection.basis
        training = Watched(projection, offsets, labels, turns)
        watched = None
        if held is not None:
            other = make_smoother(shared, held.positions, held.offsets, what="validation scans")
            seen = Projection(model, held.x, dtype=dtype, basis=basis, smoother=other)
            watched = Watched(seen, held.offsets, held.labels)
        found = ascend(
            projection, observation, start.within(basis), limits=limits, training=training, watched=watched
        )
        return [(weights.beyond(basis), report) for weights, report in found]

    reports = []
    if shared.learn != "nothing":
        for _ in range(shared.outer):
            ((start, report),) = climb(start, None)
            reports.append(report)
            if report.stopped == "diverged":  # the π are those of the runaway sweep: nothing to learn from
                observation = _observation(settings, labels[turns.bag_order], turns, density)
                break
            start = learn_hyperparameters(
                model,
                x,
                turns.order,
                start,
                observation.target()[0],
                density or shared.make_density(),
                smoother=smoother,
            )
    outcomes = climb(start, validation)
    results = []
    for one, (weights, report) in zip(settings, outcomes, strict=True):
        head = copy.deepcopy(model)
        head.settings = one
        if density is not None:
            head.given += ("density",)
        # S = WᵀW, and its own lower Cholesky factor for GPyTorch.
        S = weights.root[0].mT @ weights.root[0]
        head.set_q(weights.mean[0], torch.linalg.cholesky(S))
        results.append((head, join_reports([*reports, report])))
    return results

"""Fit sparse GP heads to slice features and scan labels, one (`fit`) or many replicates (`fit_replicates`).

In: packed bags with labels. Out: a `SparseGP` that holds q(w), and a `FitReport`. Heads with the same
training scans and the same kernel share Φ; their sweeps run batched, as replicates. All computation is on the
device of the features.

Shapes: B bags (scans), N instances (slices), D features, M inducing points, R replicates.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import gpytorch

from ich_mil.gp.bags import Bags
from ich_mil.gp.inference.inducing import Points, place_points
from ich_mil.gp.inference.replicates import fit_group
from ich_mil.gp.inference.report import FitReport
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP

OWN = ("density", "alpha", "beta")
"""Settings in which replicates that share Φ may differ."""


@dataclass(frozen=True)
class Job:
    """One fit of `fit_replicates`.

    Attributes:
        settings: settings of the head.
        train: indices of the training bags; None: all bags.
        validation: indices of the bags for early stopping; None: no early stopping.
    """

    settings: HeadSettings
    train: tuple[int, ...] | None = None
    validation: tuple[int, ...] | None = None


def fit(
    train: Bags,
    settings: HeadSettings,
    *,
    validation: Bags | None = None,
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
) -> tuple[SparseGP, FitReport]:
    """Fit one head.

    A sweep updates Θ, S, m and the local posteriors, each once (`ascend`). q(w) starts at its prior.

    Args:
        train: labelled bags.
        settings: settings of kernel, density and algorithm.
        validation: other labelled bags, for early stopping.
        density: ψ, in place of the density in the settings.
        kernel: kernel, in place of the kernel in the settings.

    Returns:
        The head in eval mode, and the report of the fit.

    Raises:
        DataError: a label is not 0 or 1; all labels are equal; validation scans of another number of
            features.
        ConfigError: a kernel that cannot be computed on D features, or that cannot be learned as the settings
            ask; a density in a family other than ψ-VGPMIL.
    """
    held = None if validation is None else validation.to(train.x.device)
    points = place_points(train, settings)
    return fit_group(train, held, [settings], points, density=density, kernel=kernel).results[0]


class Fitted(NamedTuple):
    """Result of a job: its index in `jobs`, the head, and the report of the fit."""

    place: int
    model: SparseGP
    report: FitReport


def fit_replicates(
    bags: Bags,
    jobs: Sequence[Job],
    *,
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
) -> Iterator[list[Fitted]]:
    """Fit heads of several folds, seeds, densities or numbers of inducing points to scans of one data set.

    Jobs that train on the same scans and differ only in `OWN` settings are replicates: they share Φ and
    their sweeps run batched.

    Args:
        bags: labelled bags.
        jobs: fits to run, in any order.
        density: ψ of all jobs, in place of the densities in the settings.
        kernel: kernel of all jobs, in place of the kernels in the settings.

    Yields:
        The results of one group of jobs at a time; a group shares kernel and inducing points.

    Raises:
        DataError, ConfigError: as in `fit`.
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    shared = {name: getattr(HeadSettings(), name) for name in OWN}
    for index, job in enumerate(jobs):
        settings = job.settings
        alone = index if settings.learn != "nothing" or settings.family == "gibbs" else None
        groups[(alone, job.train, job.validation, replace(settings, **shared))].append(index)
    points: dict[tuple[object, ...], Points] = {}
    for indices in groups.values():
        first = jobs[indices[0]]
        train = bags if first.train is None else bags.take(first.train)
        validation = None if first.validation is None else bags.take(first.validation)
        key = (first.train, first.settings.n_inducing, first.settings.random_state)
        if key not in points:  # k-means is the most expensive part of a small fit
            points[key] = place_points(train, first.settings)
        replicates = [jobs[index].settings for index in indices]
        group = fit_group(train, validation, replicates, points[key], density=density, kernel=kernel)
        yield [Fitted(index, *result) for index, result in zip(indices, group.results, strict=True)]

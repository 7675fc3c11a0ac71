"""Fit sparse GP heads to slice features and scan labels, one (`fit`) or many in a call (`fit_many`).

In: packed (N, D) features, offsets and scan labels. Out: a `SparseGP` that holds q(w), and a `FitReport`.
Heads with the same training scans and the same kernel share Φ; their sweeps run batched, as replicates. All
computation is on the device of the features.

With several ranks (`ich_mil.ranks`), every rank calls with the same scans and works on its share. All ranks
get the same head, bit for bit.

Shapes: B bags (scans), N instances (slices), D features, M inducing points, R replicates.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import gpytorch
from torch import Tensor

from ich_mil.gp.bags import AnyBags, Bags, take
from ich_mil.gp.inference.ascent import FitReport
from ich_mil.gp.inference.devices import on_device
from ich_mil.gp.inference.inducing import Points, place_points
from ich_mil.gp.inference.replicates import fit_group
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP

OWN = ("density", "alpha", "beta", "logistic_tail", "log_h", "margin_c", "margin_v")
"""Settings in which replicates that share Φ may differ."""


@dataclass(frozen=True)
class Job:
    """One fit of `fit_many`.

    Attributes:
        settings: settings of the head.
        train: indices of the training bags; None: all bags.
        validation: indices of the bags for early stopping; None: no early stopping.
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
        settings: settings of kernel, density and algorithm.
        positions: (N,) mm along the scan; needed if the settings smooth along z.
        validation: features, offsets, labels (and positions) of other scans, for early stopping.
        density: ψ, in place of the density in the settings.
        kernel: kernel, in place of the kernel in the settings.

    Returns:
        The head in eval mode, and the report of the fit.

    Raises:
        DataError: shapes do not fit; a slice is not `measurable`; a label is not 0 or 1; all labels are
            equal; the settings smooth along z and positions are unknown; fewer scans than ranks.
        ConfigError: a kernel that cannot be computed on D features, or that cannot be learned as the settings
            ask; a density in a family other than ψ-VGPMIL.
    """
    bags = on_device(Bags(x, offsets, labels, positions), x.device)
    held = None if validation is None else on_device(Bags(*validation), x.device)
    (result,) = fit_group(
        bags, held, [settings], place_points(bags, settings), density=density, kernel=kernel
    )
    return result


class Fitted(NamedTuple):
    """Result of one job: its index in `jobs`, the head, and the report of the fit."""

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

    Jobs that train on the same scans and differ only in `OWN` settings share Φ; their sweeps run batched.

    Args:
        x: (N, D) raw features.
        offsets: (B + 1,).
        labels: (B,) in {0, 1}.
        jobs: fits to run, in any order.
        positions: (N,) mm along the scan; needed if a job smooths along z.
        density: ψ of all jobs, in place of the densities in the settings.
        kernel: kernel of all jobs, in place of the kernels in the settings.

    Yields:
        The results of one group of jobs at a time; a group shares kernel and inducing points.

    Raises:
        DataError, ConfigError: as in `fit`.
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
        if key not in points:  # k-means is the most expensive part of a small fit
            points[key] = place_points(train or bags, first.settings)
        results = fit_group(train or bags, validation, settings, points[key], density=density, kernel=kernel)
        yield [Fitted(place, *result) for place, result in zip(places, results, strict=True)]

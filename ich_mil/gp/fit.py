"""Fit heads: slice features and scan labels to Gaussian processes, one or many in a call.

In: packed (N, D) features, offsets and scan labels. Out: a `SparseGP` that holds q(w), and a report of the
fit. Heads that train on the same scans with the same kernel share Φ, and their sweeps run side by side as
replicates. Everything is done on the device of the features.

Several ranks (`ich_mil.ranks`) fit together: each calls with the same scans and works on its share of them,
and all get the same head, to the bit.

Shapes: B bags (scans), N instances (slices), D features, M inducing points, R replicates.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import gpytorch
from torch import Tensor

from ich_mil.gp.ascent import FitReport
from ich_mil.gp.bags import AnyBags, Bags, take
from ich_mil.gp.densities import Density
from ich_mil.gp.group import fit_group
from ich_mil.gp.inducing import Points, place_points
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.shares import on_device
from ich_mil.gp.sparse_gp import SparseGP

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
        settings: of kernel, density and algorithm.
        positions: (N,) mm along the scan; needed where the settings smooth along z.
        validation: features, offsets, labels (and positions) of other scans, for early stopping.
        density: ψ instead of the one the settings name.
        kernel: instead of the one the settings name.

    Returns:
        The head in eval mode, and what happened.

    Raises:
        DataError: shapes do not fit, a slice is not `measurable`, a label is not 0/1 or one label is missing;
            the settings smooth, and where slices lie is not known; there are fewer scans than ranks.
        ConfigError: a kernel that is not one of D features, or that cannot be learned as the settings ask; a
            density in a family other than ψ-VGPMIL.
    """
    bags = on_device(Bags(x, offsets, labels, positions), x.device)
    held = None if validation is None else on_device(Bags(*validation), x.device)
    (result,) = fit_group(
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
        if key not in points:  # k-means is the dearest part of a small fit
            points[key] = place_points(train or bags, first.settings)
        results = fit_group(train or bags, validation, settings, points[key], density=density, kernel=kernel)
        yield [Fitted(place, *result) for place, result in zip(places, results, strict=True)]

"""Choose α and β of the Gamma density by validation scans, which the paper leaves to a grid.

In: training scans, validation scans and the values to try. Out: the settings that did best. Heads that differ
in their density only are replicates of one fit and share Φ (`ich_mil.gp.fit.fit_many`): a lattice of a dozen
costs as much as a few heads.

α and β are not learned by the evidence bound, because that degenerates, even with the normaliser of Eq. 38 on
the whole line,

    Z(α, β) = β^(½ - α) √(2π) Γ(α - ½) / Γ(α),   α > ½

Σ_n E[log ψ(f_n)] - N log Z fits ψ to the latent values, and ψ in turn shrinks those. On the RSNA features
(ℓ = D), three sweeps and one maximisation by turns, θ(0) = α / β goes from 0.4 over 0.7, 5 and 200 to 16,000,
and μ to 0.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from ich_mil.gp.bags import AnyBags, Bags
from ich_mil.gp.fit import Job, fit_many
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.shares import on_device


def choose_density(
    x: Tensor,
    offsets: Tensor,
    labels: Tensor,
    validation: AnyBags,
    settings: HeadSettings,
    alphas: Sequence[float],
    betas: Sequence[float],
    *,
    positions: Tensor | None = None,
) -> HeadSettings:
    """The best density for these scans: logistic, or Gamma with one of `alphas` and one of `betas`.

    Best is the lowest calibrated log-loss of the validation scans at the sweep where each head stops early;
    of equals the first, logistic before Gamma.

    Args:
        x: (N, D) raw features of the training scans.
        offsets: (B + 1,).
        labels: (B,) in {0, 1}.
        validation: features, offsets, labels (and positions) of other scans.
        settings: of everything but the density.
        alphas: of the lattice.
        betas: of the lattice.
        positions: (N,) mm along the scan; needed where the settings smooth along z.

    Returns:
        `settings` with `density`, `alpha` and `beta` replaced.

    Raises:
        DataError, ConfigError: as in `ich_mil.gp.fit.fit`.
    """
    cells = [replace(settings, density="logistic", alpha=HeadSettings.alpha, beta=HeadSettings.beta)]
    cells += [replace(settings, density="gamma", alpha=a, beta=b) for a, b in product(alphas, betas)]
    bags, held_out = (
        on_device(given, x.device) for given in (Bags(x, offsets, labels, positions), Bags(*validation))
    )
    x_all = torch.cat([x, held_out.x])
    offsets_all = torch.cat([bags.offsets, held_out.offsets[1:] + bags.offsets[-1]])
    labels_all = torch.cat([bags.labels, held_out.labels])
    z_all = None
    if bags.positions is not None and held_out.positions is not None:
        z_all = torch.cat([bags.positions, held_out.positions])
    train, held = tuple(range(len(labels))), tuple(range(len(labels), len(labels_all)))
    losses: dict[int, float] = {}
    jobs = [Job(cell, train, held) for cell in cells]
    for group in fit_many(x_all, offsets_all, labels_all, jobs, positions=z_all):
        losses |= {one.place: min(one.report.validation_log_loss, default=math.inf) for one in group}
    return cells[min(range(len(cells)), key=losses.__getitem__)]

"""Choose kernel variance, bias and length scale of a head by cross-validation on its training bags.

In: training bags, and settings with None for some of the three. Out: settings with values for all three.

The candidates are the kernel of the preset, which suits features learned by a network, and kernels with a
larger variance, a bias and one of several length scales. Each candidate is fitted to folds of the bags and
scored by log-loss on the held-out bags. The preset is kept unless the best candidate lowers the log-loss by
more than the standard error of the difference (one-standard-error rule, Breiman et al. 1984, section 3.4.3).

Shapes: B bags, N instances, D features, C candidates.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ich_mil.errors import DataError
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import platt, smoothed_targets
from ich_mil.gp.fit_calibration import FOLDS, fit_with_folds
from ich_mil.gp.inference.folds import Fold, folds_of
from ich_mil.gp.inference.inducing import place_points
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.settings import HeadSettings

VARIANCE, BIAS = 10.0, 10.0
"""Variance and bias of the other candidates. On MUSK and on CT features larger values change nothing."""
LENGTHS = (0.25, 1.0, 4.0, 16.0)
"""ℓ of the other candidates, divided by the number of non-constant features. The mean squared distance of two
standardised instances is twice that number of features."""
MOST = 10_000
"""Approximate number of instances of the bags used for the choice; more do not separate the candidates
better."""
SWEEPS = 15
"""Maximum number of sweeps of each fit."""


def choose_kernel(
    train: Bags,
    settings: HeadSettings,
    *,
    patients: Sequence[str] | None = None,
    density: Density | None = None,
) -> HeadSettings:
    """Fill in variance, bias and ℓ of the settings where they are None.

    The values of the preset are used if the kernel is learned, if the posterior is sampled, if the preset is
    not `default`, or if there are too few bags or patients of a label for `FOLDS` folds.

    Args:
        train: training bags.
        settings: settings of the head.
        patients: (B,) patient of each bag; bags of one patient stay in one fold.
        density: ψ, in place of the density in the settings.

    Returns:
        The settings with variance, bias and ℓ.
    """
    candidates = list(dict.fromkeys(_candidates(settings, train.x)))
    if len(candidates) == 1 or settings.learn != "nothing" or settings.family == "gibbs":
        return candidates[0]
    chosen, keys = _some(train, patients, seed=settings.random_state)
    try:
        folds = folds_of(chosen.truth, keys, folds=FOLDS, seed=settings.random_state)
    except DataError:
        return candidates[0]
    losses = _held_out_losses(chosen, candidates, folds, density)  # (C, B)
    best = int(losses.mean(1).argmin())
    gain = losses[0] - losses[best]  # (B,)
    certain = float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5
    return candidates[best if certain else 0]


def _candidates(settings: HeadSettings, x: Tensor) -> list[HeadSettings]:
    """Candidate settings, the preset first; values given in the settings are the same in all candidates."""
    variant = settings.variant
    kernels = [(variant.variance, variant.bias, variant.length_per_feature * x.shape[1])]
    if settings.preset == "default":
        vary = int((x.amax(0) > x.amin(0)).sum())
        kernels += [(VARIANCE, BIAS, length * max(vary, 1)) for length in LENGTHS]
    return [
        replace(
            settings,
            variance=variance if settings.variance is None else settings.variance,
            bias=bias if settings.bias is None else settings.bias,
            lengthscale_squared=settings.lengthscale_squared or length,
        )
        for variance, bias, length in kernels
    ]


def _some(train: Bags, patients: Sequence[str] | None, *, seed: int) -> tuple[Bags, Sequence[str] | None]:
    """Random subset of the bags with at most about `MOST` instances, and their patients."""
    if len(train.x) <= MOST:
        return train, patients
    order = torch.randperm(len(train.truth), generator=torch.Generator().manual_seed(seed))
    within = train.offsets.diff().cpu()[order].cumsum(0) <= MOST
    bags = tuple(sorted(order[within].tolist()))
    return train.take(bags), None if patients is None else [patients[b] for b in bags]


@torch.no_grad()
def _held_out_losses(
    train: Bags, candidates: Sequence[HeadSettings], folds: Sequence[Fold], density: Density | None
) -> Tensor:
    """Held-out log-loss (C, B) of each bag, after Platt scaling of the held-out logits of each candidate."""
    labels = train.truth.cpu()
    target, points = smoothed_targets(labels), place_points(train, candidates[0])
    losses = []
    for candidate in candidates:
        short = replace(candidate, sweeps=min(candidate.sweeps, SWEEPS))
        logits = fit_with_folds(train, short, points, folds, density).scores(short)
        slope, intercept, _ = platt(logits, labels)
        z = slope * logits + intercept if slope > 0 else torch.logit(target.mean()).expand(len(labels))
        losses.append(softplus(z) - target * z)
    return torch.stack(losses)

"""Calibrate a head: on validation scans, or on scans that other heads of the same settings have held out.

In: a fitted head, and scans with labels. Out: a `Calibration`, which the caller keeps in `model.calibration`.

Held-out folds (cross-fitting) use every scan both to fit and to calibrate: each scan's logits come from a
head that has not seen it, one calibration is fitted to all of them, and serves the head that was fitted to
all scans (`CalibratedClassifierCV(ensemble=False)` in scikit-learn's words).

Several ranks (`ich_mil.ranks`) call with the same scans, and each samples some of them.

Shapes: B scans, N slices, D features, L samples.
"""

from collections.abc import Sequence

import gpytorch
import torch
from torch import Tensor

from ich_mil.errors import ScanError
from ich_mil.gp.bags import AnyBags, Bags, take
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.densities import Density
from ich_mil.gp.fit import Job, fit_many
from ich_mil.gp.folds import folds_of
from ich_mil.gp.predict import scan_samples
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.shares import on_device
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.ranks import these_ranks


def _sampled(model: SparseGP, bags: Bags, chosen: Sequence[int], samples: int, seed: int) -> Tensor:
    """Logits (2, L, C) of the chosen scans, by the head's rule and by `SLICE_RULE`; each rank draws some.

    A `ScanError` has the scan's number among all of `bags`.
    """
    ranks = these_ranks()
    logits = torch.zeros(2, samples, len(chosen), dtype=torch.float64)
    own = list(range(ranks.rank, len(chosen), ranks.size))
    if own:
        x, offsets, _, positions = take(bags, tuple(chosen[i] for i in own))
        try:
            drawn = scan_samples(model, x, offsets, None, positions=positions, samples=samples, seed=seed)
        except ScanError as error:
            raise ScanError(chosen[own[error.scan]], error.reason) from error
        logits[:, :, own] = torch.stack(drawn).cpu()
    return ranks.total(logits)


def calibrate(model: SparseGP, held: AnyBags, *, samples: int = 1000) -> Calibration | None:
    """Calibrate on scans the head has not been fitted to.

    Args:
        model: the head.
        held: their features (N, D), offsets (B + 1,) and labels (B,), and positions where the head smooths.
        samples: L.

    Returns:
        The calibration; None, with a warning, where none can be fitted, and without one if the settings ask
        for none.

    Raises:
        ScanError: a scan of `held` that the head cannot judge (`ich_mil.gp.predict.sample_scans`).
    """
    settings = model.settings
    if settings.calibration == "none":
        return None
    bags = on_device(Bags(*held), model.x_mean.device)
    logits = _sampled(model, bags, range(len(bags.labels)), samples, seed=0)
    return Calibration.fit(
        logits[0], logits[1], bags.labels, rule=settings.variant.rule, method=settings.calibration
    )


def cross_fit(
    train: AnyBags,
    settings: HeadSettings,
    *,
    patients: Sequence[str] | None = None,
    samples: int = 1000,
    seed: int = 0,
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
    places: Tensor | None = None,
) -> Calibration | None:
    """Calibrate a head of these settings on the scans it is fitted to, each held out once.

    Args:
        train: features (N, D), offsets (B + 1,), labels (B,), and positions where the settings smooth.
        settings: of the head; `calibration_folds` says how many others are fitted.
        patients: (B,) keys that keep scans in one fold.
        samples: L.
        seed: of the folds and of the samples.
        density: ψ instead of the one the settings name.
        kernel: likewise.
        places: (K,) of the scans that calibrate, as of `calibrating`; None: all do.

    Returns:
        As `calibrate`.

    Raises:
        ScanError: a scan that the heads fitted to others cannot judge.
        DataError: fewer patients of a label than folds; or as in `ich_mil.gp.fit.fit`.
    """
    if settings.calibration == "none":
        return None
    logits = held_out_logits(
        train, settings, patients=patients, samples=samples, seed=seed, density=density, kernel=kernel
    )
    used = torch.arange(len(train[2])) if places is None else places
    return Calibration.fit(
        logits[0, :, used],
        logits[1, :, used],
        train[2].cpu()[used],
        rule=settings.variant.rule,
        method=settings.calibration,
    )


def calibrating(offsets: Tensor, labels: Tensor) -> Tensor:
    """Places of the bags that calibrate: of all, those of several instances where these have both labels.

    A bag of one is a labelled instance; its probability is not that of a scan.

    Args:
        offsets: (B + 1,).
        labels: (B,) in {0, 1}.
    """
    several = (offsets.diff() > 1).cpu()  # (B,)
    if len(labels.cpu()[several].unique()) < 2:
        several = torch.ones_like(several)
    return several.nonzero().squeeze(1)


def held_out_logits(
    train: AnyBags,
    settings: HeadSettings,
    *,
    patients: Sequence[str] | None = None,
    samples: int = 1000,
    seed: int = 0,
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
) -> Tensor:
    """Sampled logits (2, L, B), each scan's from a head that has not seen it: what `cross_fit` fits to.

    Arguments and errors are those of `cross_fit`; the first row is by the head's rule, the second by
    `SLICE_RULE`.
    """
    bags = on_device(Bags(*train), train[0].device)
    folds = folds_of(bags.labels, patients, folds=settings.calibration_folds, seed=seed)
    logits = torch.empty(2, samples, len(bags.labels), dtype=torch.float64)
    jobs = [Job(settings, seen) for seen, _ in folds]
    groups = fit_many(*bags[:3], jobs, positions=bags.positions, density=density, kernel=kernel)
    for place, model, _ in (one for group in groups for one in group):
        out = list(folds[place][1])
        logits[:, :, out] = _sampled(model, bags, out, samples, seed)
    return logits

"""Fit the calibration of a head, on validation scans or by cross-fitting on the training scans.

In: a fitted head or its settings, and labelled scans. Out: a `Calibration`, which the caller stores in
`model.calibration`.

Cross-fitting uses every scan both to fit and to calibrate. The logits of each scan come from a head fitted
to the other folds. One calibration is fitted to all these logits and applied to the head fitted to all scans
(as `CalibratedClassifierCV(ensemble=False)` of scikit-learn).

With several ranks (`ich_mil.ranks`), every rank calls with the same scans and samples a share of them.

Shapes: B scans, N slices, D features, L samples.
"""

from collections.abc import Sequence

import gpytorch
import torch
from torch import Tensor

from ich_mil.errors import ScanError
from ich_mil.gp.bags import AnyBags, Bags, take
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit import Job, fit_many
from ich_mil.gp.inference.devices import on_device
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.predict import scan_samples
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.ranks import these_ranks


def _sampled(model: SparseGP, bags: Bags, chosen: Sequence[int], samples: int, seed: int) -> Tensor:
    """Sampled logits (2, L, C) of the chosen scans, by the head's rule and by `SLICE_RULE`.

    The scans are divided among the ranks. A `ScanError` carries the index of the scan in `bags`.
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
    """Fit a calibration to scans that were not used to fit the head.

    Args:
        model: the head.
        held: features (N, D), offsets (B + 1,) and labels (B,) of these scans, and positions if the head
            smooths along z.
        samples: L.

    Returns:
        The calibration. None if the settings ask for none, or, with a warning, if it cannot be fitted.

    Raises:
        ScanError: a scan of `held` has features that cannot be used (`ich_mil.gp.predict.sample_scans`).
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
    """Fit a calibration by cross-fitting: each training scan is held out once.

    Args:
        train: features (N, D), offsets (B + 1,) and labels (B,) of the training scans, and positions if the
            settings smooth along z.
        settings: settings of the head; `calibration_folds` is the number of heads fitted here.
        patients: (B,) patient of each scan; scans of one patient stay in one fold.
        samples: L.
        seed: seed of the folds and of the samples.
        density: ψ, in place of the density in the settings.
        kernel: kernel, in place of the kernel in the settings.
        places: (K,) indices of the scans to which the calibration is fitted (`calibrating`); None: all.

    Returns:
        As `calibrate`.

    Raises:
        ScanError: a scan has features that a head fitted to the other folds cannot use.
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
    """Select the bags to which a calibration is fitted.

    A bag of one instance is a labelled instance, whose probability is not that of a scan.

    Args:
        offsets: (B + 1,).
        labels: (B,) in {0, 1}.

    Returns:
        (K,) indices of the bags with several instances, or of all bags if these do not have both labels.
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
    """Sampled logits (2, L, B) of each scan from a head that was not fitted to it.

    The first row is by the head's rule, the second by `SLICE_RULE`. `cross_fit` fits the calibration to
    these logits. Arguments and errors are those of `cross_fit`.
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

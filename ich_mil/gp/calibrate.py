"""Calibrate a head: on validation scans, or on scans that other heads of the same settings have held out.

In: a fitted head, and scans with labels. Out: a `Calibration`, which the caller keeps in `model.calibration`.

Held-out folds (cross-fitting) use every scan both to fit and to calibrate: each scan's logits come from a
head that has not seen it, one calibration is fitted to all of them, and serves the head that was fitted to
all scans (`CalibratedClassifierCV(ensemble=False)` in scikit-learn's words).

Shapes: B scans, N slices, D features, L samples.
"""

from collections.abc import Sequence

import gpytorch
import torch

from ich_mil.gp.bags import AnyBags, Bags
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.densities import Density
from ich_mil.gp.fit import Job, fit_many
from ich_mil.gp.folds import folds_of
from ich_mil.gp.predict import scan_samples
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.segments import take_bags


def calibrate(
    model: SparseGP, held: AnyBags, *, scans: list[str] | None = None, samples: int = 1000, seed: int = 0
) -> Calibration | None:
    """Calibrate on scans the head has not been fitted to.

    Args:
        model: the head.
        held: their features (N, D), offsets (B + 1,) and labels (B,), and positions where the head smooths.
        scans: B ids; they key the noise.
        samples: L.
        seed: of the samples.

    Returns:
        The calibration; None, with a warning, where none can be fitted, and without one if the settings ask
        for none.
    """
    settings = model.settings
    if settings.calibration == "none":
        return None
    x, offsets, labels, positions = Bags(*held)
    logits = scan_samples(model, x, offsets, scans, positions=positions, samples=samples, seed=seed)
    return Calibration.fit(*logits, labels, rule=settings.variant.rule, method=settings.calibration)


def cross_fit(
    train: AnyBags,
    settings: HeadSettings,
    *,
    patients: Sequence[str] | None = None,
    scans: list[str] | None = None,
    samples: int = 1000,
    seed: int = 0,
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
) -> Calibration | None:
    """Calibrate a head of these settings on the scans it is fitted to, each held out once.

    Args:
        train: features (N, D), offsets (B + 1,), labels (B,), and positions where the settings smooth.
        settings: of the head; `calibration_folds` says how many others are fitted.
        patients: (B,) keys that keep scans in one fold.
        scans: B ids; they key the noise.
        samples: L.
        seed: of the folds and of the samples.
        density: ψ instead of the one the settings name.
        kernel: likewise.

    Returns:
        As `calibrate`.

    Raises:
        DataError: fewer scans of a label than folds.
    """
    if settings.calibration == "none":
        return None
    x, offsets, labels, positions = Bags(*train)
    folds = folds_of(labels, patients, folds=settings.calibration_folds, seed=seed)
    of_scan, of_slices = torch.empty(2, samples, len(labels), dtype=torch.float64)
    jobs = [Job(settings, seen) for seen, _ in folds]
    for group in fit_many(x, offsets, labels, jobs, positions=positions, density=density, kernel=kernel):
        for place, model, _ in group:
            out = list(folds[place][1])
            rows, own = take_bags(offsets, torch.tensor(out))
            ids = None if scans is None else [scans[b] for b in out]
            z = None if positions is None else positions[rows]
            drawn = scan_samples(model, x[rows], own, ids, positions=z, samples=samples, seed=seed)
            of_scan[:, out], of_slices[:, out] = (part.cpu() for part in drawn)
    return Calibration.fit(
        of_scan, of_slices, labels, rule=settings.variant.rule, method=settings.calibration
    )

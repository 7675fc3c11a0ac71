"""A head fitted to slice features of a run or a protocol, where there is a GPU on it."""

from dataclasses import replace

import torch

from ich_mil.data.features import FeatureSet
from ich_mil.errors import DataError, ScanError
from ich_mil.gp.calibrate import calibrating
from ich_mil.gp.head import Head
from ich_mil.gp.settings import HeadSettings
from ich_mil.ranks import device


def fit_to(
    learn: FeatureSet, watch: FeatureSet | None, settings: HeadSettings, *, mixed: bool = False
) -> Head:
    """Fit and calibrate a head, with the kernel of its preset where the settings leave it open.

    A shorter length scale that is chosen on scans of one site carries over worse to another
    (benchmarks/RESULTS.md).

    Args:
        learn: the scans it is fitted to, B scans of D features a slice.
        watch: those it is stopped and calibrated on. None: it is calibrated on held-out folds of `learn`, by
            patient.
        settings: of the head.
        mixed: whether single slices are among `learn`, which do not calibrate where whole scans can.

    Returns:
        The head, on the device it was fitted on.

    Raises:
        DataError: as in `Head.fit`, a scan by its id.
    """
    preset = settings.variant
    settings = replace(
        settings,
        variance=preset.variance,
        bias=preset.bias,
        lengthscale_squared=settings.lengthscale_squared or preset.length_per_feature * learn.x.shape[1],
    )
    held = None if watch is None else (watch.x, watch.offsets, watch.labels, watch.positions_mm)
    calibrates = None
    if mixed:
        calibrates = torch.zeros(learn.n_scans, dtype=torch.bool)
        calibrates[calibrating(learn.offsets, learn.labels)] = True
    try:
        return Head(**vars(settings)).fit(
            learn.x.to(device()),
            learn.offsets,
            learn.labels,
            positions=learn.positions_mm,
            validation=held,
            groups=learn.patients,
            calibrates=calibrates,
        )
    except ScanError as error:
        scans = (watch or learn).scans  # those it is calibrated on
        raise DataError(f"scan {scans[error.scan]!r}: {error.reason}") from error

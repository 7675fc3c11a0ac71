"""Fit and calibrate a head on slice features of a run or a protocol, on the GPU where there is one."""

from dataclasses import replace

import torch

from ich_mil.errors import DataError, ScanError
from ich_mil.gp.fit_calibration import calibrating
from ich_mil.gp.head import Head
from ich_mil.gp.settings import HeadSettings
from ich_mil.multimodal.head import MultimodalHead
from ich_mil.multimodal.settings import MultimodalSettings
from ich_mil.ranks import device
from ich_mil.sets.features import FeatureSet


def fit_to(
    learn: FeatureSet, watch: FeatureSet | None, settings: HeadSettings, *, mixed: bool = False
) -> Head:
    """Fit and calibrate a head.

    Kernel parameters missing in the settings are those of the preset. They are not chosen on the data: a
    shorter length scale chosen on scans of one site transfers worse to another (research/RESULTS.md).

    Args:
        learn: training scans, B scans with D features per slice.
        watch: scans for early stopping and calibration. None: calibration on held-out folds of `learn`, by
            patient.
        settings: settings of the head.
        mixed: whether `learn` contains single slices, which are not used for calibration if there are enough
            whole scans.

    Raises:
        DataError: as in `Head.fit`, with the id of the scan.
    """
    preset = settings.variant
    settings = replace(
        settings,
        variance=preset.variance,
        bias=preset.bias,
        lengthscale_squared=settings.lengthscale_squared or preset.length_per_feature * learn.x.shape[1],
    )
    held = None if watch is None else (watch.x, watch.offsets, watch.labels)
    calibrates = None
    if mixed:
        calibrates = torch.zeros(learn.n_scans, dtype=torch.bool)
        calibrates[calibrating(learn.offsets, learn.labels)] = True
    try:
        return Head(settings).fit(
            learn.x.to(device()),
            learn.offsets,
            learn.labels,
            validation=held,
            groups=learn.patients,
            calibrates=calibrates,
        )
    except ScanError as error:
        scans = (watch or learn).scans  # the scans of the calibration
        raise DataError(f"scan {scans[error.scan]!r}: {error.reason}") from error


def fit_family(
    learn: FeatureSet,
    watch: FeatureSet | None,
    settings: HeadSettings,
    multimodal: MultimodalSettings,
    *,
    mixed: bool,
) -> Head | MultimodalHead:
    """Fit and calibrate a head of any family; other arguments are those of `fit_to`.

    Args:
        learn: training scans; for family multimodal, with their extras.
        watch: scans to calibrate on.
        settings: settings of the head.
        multimodal: further settings of family multimodal.
        mixed: whether `learn` contains single slices.
    """
    if settings.family != "multimodal":
        return fit_to(learn, watch, settings, mixed=mixed)
    places = calibrating(learn.offsets, learn.labels) if mixed else None
    return MultimodalHead.fit(learn, settings, multimodal, watch=watch, places=places, device=device())

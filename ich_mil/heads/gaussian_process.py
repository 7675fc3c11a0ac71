"""Gaussian-process head of a run, a `ScanHead`; fitted on the GPU where there is one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ich_mil.errors import DataError, ScanError
from ich_mil.gp.bags import Bags
from ich_mil.gp.fit_calibration import calibrating, held_out_logits
from ich_mil.gp.inference.report import FitReport
from ich_mil.gp.predict import Draw, draw
from ich_mil.gp.settings import FAMILY_NAMES, HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.gp.storage import load_head, save_head
from ich_mil.ranks import device
from ich_mil.sets.features import FeatureSet


def bags_of(features: FeatureSet) -> Bags:
    """Convert a feature set, which is checked where it is read."""
    return Bags(features.x, features.offsets, features.labels, features.scans)


class GaussianProcessHead:
    """A `SparseGP` as a `ScanHead` (`ich_mil.heads.scan_head`), whose attributes it has."""

    title = "Gaussian-process head"
    extras: tuple[str, ...] = ()
    report_: FitReport

    def __init__(self, model: SparseGP) -> None:
        self.model, self.settings, self.calibration = model, model.settings, model.calibration
        self.x_mean = model.x_mean

    @property
    def name(self) -> str:
        """Family and sizes, such as 'G-VGPMIL α=1 β=2.5, M=100, D=8'."""
        settings = self.settings
        name = FAMILY_NAMES[settings.family]
        if "density" in self.model.given:
            name = "ψ-VGPMIL with a density of its own"
        elif settings.family == "psi" and settings.density == "gamma":
            name = f"G-VGPMIL α={settings.alpha:g} β={settings.beta:g}"
        return f"{name}, M={len(self.model.inducing)}, D={len(self.x_mean)}"

    @classmethod
    def fit(
        cls,
        learn: FeatureSet,
        settings: HeadSettings,
        own: Any = None,
        *,
        watch: FeatureSet | None = None,
        mixed: bool = False,
    ) -> Self:
        """As `ScanHead.fit`, without `own`. `DataError`: as in `Head.fit`, with the id of the scan.

        Kernel parameters missing in the settings are those of the preset. They are not chosen on the data: a
        shorter length scale chosen on scans of one site transfers worse to another (research/RESULTS.md).
        """
        from ich_mil.gp.head import Head  # imports scikit-learn

        preset = settings.variant
        settings = replace(
            settings,
            variance=preset.variance,
            bias=preset.bias,
            lengthscale_squared=settings.lengthscale_squared or preset.length_per_feature * learn.x.shape[1],
        )
        calibrates = None
        if mixed:
            calibrates = torch.zeros(learn.n_scans, dtype=torch.bool)
            calibrates[calibrating(learn.offsets, learn.labels)] = True
        try:
            fitted = Head(settings).fit(
                learn.x.to(device()),
                learn.offsets,
                learn.labels,
                validation=None if watch is None else (watch.x, watch.offsets, watch.labels),
                groups=learn.patients,
                calibrates=calibrates,
            )
        except ScanError as error:
            scans = (watch or learn).scans  # the scans of the calibration
            raise DataError(f"scan {scans[error.scan]!r}: {error.reason}") from error
        head = cls(fitted.model_)
        head.report_ = fitted.report_
        return head

    def draw(self, features: FeatureSet, samples: int, *, seed: int) -> Iterator[Draw]:
        """Joint posterior samples of f, scan by scan."""
        return draw(self.model, bags_of(features), samples=samples, seed=seed)

    def held_out_logits(self, learn: FeatureSet, samples: int) -> Tensor:
        """As `ich_mil.gp.fit_calibration.held_out_logits`."""
        bags = bags_of(learn).to(device())
        return held_out_logits(bags, self.settings, patients=learn.patients, samples=samples)

    def save(self, folder: Path) -> None:
        """Write the head with its calibration."""
        self.model.calibration = self.calibration
        save_head(self.model, folder)

    @classmethod
    def load(cls, folder: Path, *, n_features: int | None = None) -> Self:
        """As `ich_mil.gp.storage.load_head`."""
        return cls(load_head(folder, n_features=n_features))

"""Protocol of the heads of runs. Shapes: L samples, B scans, n slices, D features, M coefficients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, Self

from torch import Tensor

from ich_mil.gp.calibration import Calibration
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.counterfactual import ScanSamples
from ich_mil.sets.features import FeatureSet


class ScanHead(Protocol):
    """Head of a run, of any family: from features of slices to posterior samples of scans.

    Attributes:
        title: name of its row in result tables.
        settings: settings `head` of the fit.
        calibration: calibration of scans and slices; None: not calibrated.
        report_: history of the fit, a dataclass with a `message`; absent after `load`.
        extras: kinds of input beside the slices that it takes.
        x_mean: (D,) mean of the training slices.
    """

    title: str
    settings: HeadSettings
    calibration: Calibration | None
    report_: Any
    extras: tuple[str, ...]
    x_mean: Tensor

    @property
    def name(self) -> str:
        """Kind and size of the model."""

    @classmethod
    def fit(
        cls, learn: FeatureSet, settings: HeadSettings, own: Any, *, watch: FeatureSet | None, mixed: bool
    ) -> Self:
        """Fit and calibrate. `DataError`: scans that cannot be used.

        Args:
            learn: training scans with their extras.
            settings: settings `head` of the run.
            own: further settings of the family (`RunConfig.own`).
            watch: scans for early stopping and calibration; None: calibration on held-out folds, by patient.
            mixed: whether `learn` contains single slices, which are not used for calibration if there are
                enough whole scans.
        """

    def draw(self, features: FeatureSet, samples: int, *, seed: int) -> Iterator[ScanSamples]:
        """Posterior samples of each scan."""

    def held_out_logits(self, learn: FeatureSet, samples: int) -> Tensor:
        """`scan_logits` (2, L, B) of the training scans, each by a head fitted to the other folds."""

    def save(self, folder: Path) -> None:
        """Write the head as `head.json` and `head.safetensors`."""

    @classmethod
    def load(cls, folder: Path, *, n_features: int | None) -> Self:
        """Read what `save` wrote. `ModelError`: it cannot be used, or is not of `n_features` features."""

"""Lightning's loggers of a CNN training: TensorBoard, MLflow, Weights & Biases.

Curves and settings stay in the folder of the run: W&B runs offline, and usage reports of the packages are
switched off. MLflow writes to a server only if the user has set MLFLOW_TRACKING_URI.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ich_mil.errors import check_installed

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

PROJECT = "ich_mil"
"""Name of the MLflow experiment and of the W&B project."""
DEFAULTS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # files in the folder of the run, where no server is named
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
}
"""Environment variables of the packages, where the user has not set them."""


def check_logger(name: str) -> None:
    """Raise `ConfigError` if the package of the logger is not installed."""
    if name != "none":
        check_installed(name, "loggers", f"training.logger {name}")


def make_logger(name: str, out: Path, settings: dict[str, Any]) -> "Logger | None":
    """Logger of a training that writes below `out`, with the settings logged; None for `none`."""
    if name == "none":
        return None
    for variable, value in DEFAULTS.items():
        os.environ.setdefault(variable, value)
    from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger

    class FinishedWandbLogger(WandbLogger):
        """Lightning leaves the run of W&B open, so that the next member of an ensemble would add to it."""

        def finalize(self, status: str) -> None:
            super().finalize(status)
            self.experiment.finish()

    logger: Logger
    match name:
        case "tensorboard":
            logger = TensorBoardLogger(out, name=None, version="tensorboard")
        case "mlflow":
            logger = MLFlowLogger(PROJECT, run_name=out.parent.name, save_dir=str(out / "mlruns"))
        case "wandb":
            logger = FinishedWandbLogger(out.parent.name, out, offline=True, project=PROJECT)
    logger.log_hyperparams(settings)
    return logger

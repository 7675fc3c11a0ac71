"""Training settings of the CNN: the section `training` of a configuration."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TrainingSettings:
    """Training settings; the defaults are those of the papers.

    Attributes:
        learning_rate: learning rate of Adam; the maximum if there is a schedule.
        schedule: `constant`, or `one_cycle`, which raises the learning rate and lowers it to nearly 0 by
            `max_epochs` (Smith & Topin 2019, arXiv:1708.07120). Use it without `patience`, which keeps the
            last epoch.
        weight_decay: weight decay of all trained weights, decoupled from the gradient (AdamW); 0 is Adam.
        bags: scans per step, over all GPUs together.
        max_epochs: largest number of epochs.
        patience: number of epochs without a lower validation loss before training stops; the epoch with the
            lowest is kept. null: train for `max_epochs` and keep the last epoch, for sets with too few
            validation scans to choose an epoch.
        workers: number of processes that read scans ahead; 0 reads each scan on request.
        augment: augment the training scans differently in each epoch (`training.augment`).
        logger: also log curves and settings by TensorBoard, MLflow or W&B (extra `loggers`), into the folder
            `cnn` of the run; nothing is sent (`training.loggers`).
    """

    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5e-5
    schedule: Literal["constant", "one_cycle"] = "constant"
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    bags: Annotated[int, Field(ge=1)] = 4
    max_epochs: Annotated[int, Field(ge=1)] = 200
    patience: Annotated[int, Field(ge=1)] | None = 8
    workers: Annotated[int, Field(ge=0)] = 0
    augment: bool = False
    logger: Literal["none", "tensorboard", "mlflow", "wandb"] = "none"

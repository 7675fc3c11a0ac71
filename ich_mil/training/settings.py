"""Training settings of the CNN: the section `training` of a configuration."""

import math
from dataclasses import dataclass
from typing import Literal

from ich_mil.settings import check_least


@dataclass(frozen=True)
class TrainingSettings:
    """Training settings; the defaults are those of the papers.

    Attributes:
        learning_rate: learning rate of Adam; the maximum if there is a schedule.
        schedule: `constant`, or `one_cycle`, which raises the learning rate and lowers it to nearly 0 by
            `max_epochs` (Smith & Topin 2019, arXiv:1708.07120). Use it with `fixed_epochs`, which keeps the
            last epoch.
        weight_decay: weight decay of all trained weights, decoupled from the gradient (AdamW); 0 is Adam.
        bags: scans per step, over all GPUs together.
        accumulate: number of steps whose gradients are averaged for one weight update.
        max_epochs: largest number of epochs.
        patience: number of epochs without a lower validation loss before training stops.
        fixed_epochs: train for `max_epochs` and keep the last epoch, not the epoch with the lowest validation
            loss. For sets with too few validation scans to choose an epoch.
        workers: number of processes that read scans ahead; 0 reads each scan on request.
        augment: augment the training scans differently in each epoch (`training.augment`).
        bleeds: probability, per epoch, that a negative training scan gets a synthetic bleed and becomes
            positive.
        controls: probability, per epoch, that a negative training scan instead gets an insertion of the same
            shapes filled with tissue-like grey, and stays negative.
        warmup_steps: number of steps of self-supervised warm-up on slices (`training.warmup`). After a
            warm-up, scan labels train only attention and classifier.
        logger: also log curves and settings by TensorBoard, MLflow or W&B (extra `loggers`), into the folder
            `cnn` of the run; nothing is sent (`training.loggers`).
    """

    learning_rate: float = 5e-5
    schedule: Literal["constant", "one_cycle"] = "constant"
    weight_decay: float = 0.0
    bags: int = 4
    accumulate: int = 1
    max_epochs: int = 200
    patience: int = 8
    workers: int = 0
    augment: bool = False
    bleeds: float = 0.0
    controls: float = 0.0
    warmup_steps: int = 0
    fixed_epochs: bool = False
    logger: Literal["none", "tensorboard", "mlflow", "wandb"] = "none"

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"training.learning_rate must be positive and finite, got {self.learning_rate}")
        check_least(self, "training.", bags=1, accumulate=1, max_epochs=1, patience=1)
        if self.schedule not in ("constant", "one_cycle"):
            raise ValueError(f"training.schedule must be constant or one_cycle, got {self.schedule!r}")
        check_least(self, "training.", weight_decay=0, workers=0, bleeds=0, controls=0, warmup_steps=0)
        if self.bleeds >= 1 or self.bleeds + self.controls > 1:
            raise ValueError(
                "training.bleeds must be below 1, and at most 1 together with training.controls, "
                f"got {self.bleeds} and {self.controls}"
            )

"""How the CNN is trained, as a configuration says it."""

import math
from dataclasses import dataclass
from typing import Literal

from ich_mil.settings import check_least


@dataclass(frozen=True)
class TrainingSettings:
    """How the CNN is trained; the defaults are the papers'.

    Attributes:
        learning_rate: of Adam; the highest one of a schedule.
        schedule: `constant`, or `one_cycle`, which raises the learning rate and takes it back to nearly 0 by
            `max_epochs` (Smith & Topin 2019, arXiv:1708.07120). Together with `fixed_epochs` the last epoch
            is then the one to keep.
        weight_decay: of all trained weights, decoupled from the gradient (AdamW); 0 is Adam.
        bags: scans a step, on all GPUs together.
        accumulate: steps whose gradients are averaged before the weights move.
        max_epochs: at most.
        patience: epochs without a lower validation loss before training stops.
        fixed_epochs: train `max_epochs` and keep the last, not the one of the lowest validation loss: where
            validation scans are too few to choose an epoch by.
        workers: threads that read scans ahead; 0 reads each when it is asked for.
        augment: vary the training scans from epoch to epoch (`training.augment`).
        bleeds: probability, in each epoch, that a negative training scan gets a synthetic bleed and is
            positive.
        controls: probability that it gets tissue-like grey of the same shapes instead, and stays negative.
        warmup_steps: steps of self-supervised warm-up on slices (`training.warmup`), after which scan labels
            train only attention and classifier.
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

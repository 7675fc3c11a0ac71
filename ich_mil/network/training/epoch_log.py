"""Progress of training: a row of `log.csv` and a line for each epoch, and lines within long epochs."""

import csv
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from ich_mil.errors import DataError
from ich_mil.files import whole_file
from ich_mil.progress import PLAIN_SECONDS, say

LOGGED = ("train_loss", "val_loss", "val_auc")


class EpochLog(Callback):
    """Log each epoch as one row of `log.csv` and one line on the screen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Say how far the epoch is, at most every `PLAIN_SECONDS`; a terminal has a bar of its own."""
        done, total = trainer.fit_loop.batch_idx + 1, trainer.num_training_batches
        if (
            trainer.is_global_zero
            and not sys.stderr.isatty()
            and time.monotonic() - self._last >= PLAIN_SECONDS
        ):
            self._last = time.monotonic()
            say(f"epoch {trainer.current_epoch:3d}  step {done} of {total}")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Append the row of the epoch, after removing rows of epochs that a resumed run repeats."""
        if not trainer.is_global_zero:
            return
        epoch, columns, rows = trainer.current_epoch, ("epoch", *LOGGED), []
        if self.path.is_file():
            try:
                with self.path.open(newline="") as file:
                    before = [row for row in csv.DictReader(file) if int(row["epoch"]) < epoch]
                rows = [[row[name] for name in columns] for row in before]
            except (ValueError, KeyError) as error:
                raise DataError(f"{self.path}: is damaged; delete it and go on with --resume") from error
        now = {name: f"{float(trainer.callback_metrics[name]):.6g}" for name in LOGGED}
        with whole_file(self.path) as temporary, temporary.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows, [epoch, *now.values()]])
        self._last = time.monotonic()
        say(f"epoch {epoch:3d}  " + "  ".join(f"{name} {value}" for name, value in now.items()))

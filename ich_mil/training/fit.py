"""Fit the attention CNN on prepared scans with Lightning, and keep the best state.

In: a prepared set, a split, settings. Out: the model of the lowest validation loss, and `log.csv` with one
row an epoch. `last.ckpt` is the newest epoch that was the best so far (with `fixed_epochs`, the newest): a
killed run goes on from there and ends at the same model.

Where there is a GPU it computes in bfloat16, weights and the pooling of slices stay float32. Several
processes (`ich_mil.ranks`) share the scans of each step by Lightning's DDP: how many there are changes how
long a step takes, and of its result rounding (`ich_mil.models.shared_norm` says how much), the dropout masks,
and where a step has more slices than `chunk_slices` the chunks that share their batch statistics.
"""

import csv
import ctypes
import io
import logging
import os
import signal
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pandas as pd
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from ich_mil.data.bags import Batch, ScanDataset, StepSampler
from ich_mil.data.loader import loader
from ich_mil.data.store import PreparedSet
from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.files import remove_leftovers, whole_file, write_bytes
from ich_mil.models.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.models.encoders import EncoderSettings
from ich_mil.models.shared_norm import share_statistics
from ich_mil.progress import say
from ich_mil.ranks import Ranks, device, these_ranks
from ich_mil.training.augment import VariedScans
from ich_mil.training.module import MilModule, class_weights
from ich_mil.training.settings import TrainingSettings
from ich_mil.training.warmup import warm_up

LOGGED = ("train_loss", "val_loss", "val_auc")


class EpochLog(Callback):
    """One row an epoch in `log.csv`, one line an epoch on the screen."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Append the epoch's row; rows of epochs that a resumed run repeats are dropped first."""
        if not trainer.is_global_zero:
            return
        epoch = trainer.current_epoch
        columns = ("epoch", *LOGGED)
        rows = []
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
        say(f"epoch {epoch:3d}  " + "  ".join(f"{name} {value}" for name, value in now.items()))


class _BestEpoch(ModelCheckpoint):
    """Keeps the best epoch on resume, also if the run's folder was moved (Lightning would forget it)."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "dirpath": self.dirpath})

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write nothing: Lightning would, in a process in which no epoch was the best.

        A checkpoint does not say that training has stopped, so a run resumed from that one would go on.
        """


class _WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all; Lightning may copy it over the old one, from another disk."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write it to `path`. `DataError` if the disk is full."""
        content = io.BytesIO()
        torch.save(checkpoint, content)  # straight to a file it would hide why that cannot be written
        write_bytes(Path(path), content.getvalue())


@contextmanager
def _within_memory() -> Iterator[None]:
    """Tell that the memory of a GPU is too small, and what to do. `ConfigError`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"a step does not fit into the GPU's memory ({str(error).splitlines()[0]}); lower training.bags, "
            "and raise training.accumulate for it, or lower cnn.chunk_slices"
        ) from error


def keep_freed_memory() -> None:
    """Let glibc keep the memory of one training step for the next.

    By default it hands blocks of this size back to the kernel, which clears them anew each step: that took
    half of a step's time on a CPU (benchmarks/RESULTS.md). Another C library is left as it is.
    """
    mmap_max, trim_threshold = -4, -1  # malloc.h: M_MMAP_MAX, M_TRIM_THRESHOLD
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, 2**31 - 1)


def _steps(
    scans: ScanDataset, watched: ScanDataset, training: TrainingSettings, seed: int, ranks: Ranks
) -> tuple[StepSampler, list[list[int]]]:
    """The steps of training, and this rank's validation steps of one scan each.

    Raises:
        ConfigError: too few scans for as many ranks.
    """
    try:
        steps = StepSampler(scans.sizes, bags=training.bags, seed=seed, ranks=ranks)
    except ValueError as error:
        raise ConfigError(f"{error}; start fewer processes, or raise training.bags") from error
    if len(watched) < ranks.size:
        raise ConfigError(
            f"{len(watched)} validation scans cannot be shared among {ranks.size} processes; start fewer"
        )
    return steps, [[place] for place in ranks.share(watched.sizes).tolist()]


def _trainer(out: Path, training: TrainingSettings, ranks: Ranks) -> tuple[pl.Trainer, ModelCheckpoint]:
    """Lightning's trainer on the device at hand, and its callback that keeps the best epoch."""
    best = _BestEpoch(
        out,
        filename="best",
        # None: each epoch takes the place of the one before
        monitor=None if training.fixed_epochs else "val_loss",
        save_last=True,
        enable_version_counter=False,
    )
    callbacks: list[Callback] = [best, EpochLog(out / "log.csv")]
    if not training.fixed_epochs:
        callbacks.insert(0, EarlyStopping("val_loss", patience=training.patience, check_finite=True))
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # it advertises and lists devices
    terminal = sys.stderr.isatty()
    if terminal:
        callbacks.append(TQDMProgressBar())
    # or Lightning would look for other launchers, as SLURM, that have not shared the work
    processes: dict[str, Any] = {"devices": 1, "plugins": [LightningEnvironment()]}
    if ranks.size > 1:
        here = int(os.environ["LOCAL_WORLD_SIZE"])  # torchrun says so
        # ranks may watch different numbers of scans, so no call of the model alone may wait for the others
        strategy = DDPStrategy(broadcast_buffers=False)
        processes = {
            "devices": here,
            "num_nodes": ranks.size // here,
            "strategy": strategy,
            "plugins": [TorchElasticEnvironment()],
        }
    processes["plugins"].append(_WholeCheckpoints())
    gpu = device().type == "cuda"
    trainer = pl.Trainer(
        max_epochs=training.max_epochs,
        accumulate_grad_batches=training.accumulate,
        precision="bf16-mixed" if gpu else "32-true",
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=terminal,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=out,
        use_distributed_sampler=False,
        accelerator="gpu" if gpu else "cpu",
        **processes,
    )
    # Lightning's handler of SIGTERM ends a run with exit code 0, and on several ranks waits for the others,
    # which are waiting for something else; it cannot be turned off
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    return trainer, best


def _run(
    trainer: pl.Trainer,
    module: MilModule,
    steps: DataLoader[Batch],
    to_watch: DataLoader[Batch],
    last: Path,
) -> None:
    """Lightning's loops, from the checkpoint `last` on where it is there; its errors are told as ours."""
    with warnings.catch_warnings():
        # `loader` has threads, which Lightning does not count; the checkpoint folder is meant to be non-empty
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*exists and is not empty.*")
        warnings.filterwarnings("ignore", message=".*in eval mode at the start.*")  # frozen blocks
        # its successor is not in torch 2.11
        warnings.filterwarnings("ignore", message=".*broadcast_buffers.* is deprecated")
        interrupted = signal.getsignal(signal.SIGINT)
        try:
            with _within_memory():
                trainer.fit(
                    module,
                    steps,
                    to_watch,
                    ckpt_path=last if last.is_file() else None,
                    weights_only=True,
                )
        except (RuntimeError, KeyError) as error:
            if last.is_file() and "state_dict" in str(error):
                raise ModelError(
                    f"{last}: belongs to another model; start the run in an empty folder"
                ) from error
            raise
        except SystemExit as error:
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            # Lightning's answer to Ctrl-C: it would end a notebook, and leave it deaf to the next
            signal.signal(signal.SIGINT, interrupted)
            raise KeyboardInterrupt from error


def _read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The weights of the module, on the CPU. `ModelError` if it is none."""
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
        state: dict[str, Tensor] = content["state_dict"]
        if "loops" not in content:
            raise ValueError("it says nothing of how far training was")
        return state
    except Exception as error:  # torch has no error class for what is no checkpoint
        raise ModelError(
            f"{path}: cannot be read ({error!r:.200}); delete {path.parent} and go on with --resume, the CNN "
            "starts anew"
        ) from error


def _best_state(out: Path, best: ModelCheckpoint, training: TrainingSettings) -> dict[str, Tensor]:
    """The model's weights that were kept, on the CPU. `ModelError` if they are of no use."""
    score = best.best_model_score
    if not training.fixed_epochs and (score is None or not torch.isfinite(score)):
        raise ModelError(f"{out}: no epoch had a finite validation loss; lower training.learning_rate")
    state = _read_checkpoint(out / "best.ckpt")
    if not all(torch.isfinite(value).all() for value in state.values()):
        raise ModelError(f"{out}: the weights are not finite; lower training.learning_rate")
    return {k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.")}


def fit_cnn(
    prepared: PreparedSet,
    splits: pd.DataFrame,
    out: Path,
    *,
    encoder: EncoderSettings,
    cnn: CnnSettings,
    training: TrainingSettings,
    seed: int,
    in_slices: Collection[str] = (),
    start: AttentionCnn | None = None,
) -> AttentionCnn:
    """Train on the scans of split `train`, stop on the loss of split `validation`.

    Args:
        prepared: the scans.
        splits: columns scan, label, split.
        out: folder for checkpoints and the log; a `last.ckpt` found there is gone on from.
        encoder: the slice encoder and its initial weights.
        cnn: what follows it.
        training: how it is trained.
        seed: of initial weights, order, dropout, and of all that varies in training.
        in_slices: scans whose slices are trained on as bags of one, with their own labels. Validation scans
            are watched whole.
        start: a network of the same settings whose weights training starts from.

    Returns:
        The model of the epoch with the lowest validation loss, or of the last one with `fixed_epochs`,
        in evaluation mode.

    Raises:
        ConfigError: too few scans for as many ranks, or too many a step for the GPU.
        DataError: all bags have one label, a scan or the log in `out` cannot be read, no scan has room for
            the bleeds of a warm-up, or the disk is full.
        ModelError: the checkpoint in `out` does not fit or is damaged, or the loss is not finite.
    """
    keep_freed_memory()
    ranks = these_ranks()
    if ranks.first:
        out.mkdir(parents=True, exist_ok=True)
        remove_leftovers(out)
    torch.manual_seed(seed)
    model = AttentionCnn(encoder, cnn)
    if start is not None:
        model.load_state_dict(start.state_dict())
    parts = {split: splits[splits.split == split] for split in ("train", "validation")}
    scans = ScanDataset(prepared, parts["train"].scan.tolist(), crop=encoder.crop, in_slices=in_slices)
    watched = ScanDataset(prepared, parts["validation"].scan.tolist(), crop=encoder.crop)
    labels = scans.bag_labels
    weights, plain = class_weights(labels, bleeds=training.bleeds), class_weights(labels)
    pictures = model.pictures(slices=int(scans.sizes.sum() + watched.sizes.sum()))
    module = MilModule(model, training, weights, watched=plain, pictures=pictures, seed=seed)
    varied = VariedScans(
        scans, seed=seed, augmented=training.augment, bleeds=training.bleeds, controls=training.controls
    )
    steps, to_watch = _steps(scans, watched, training, seed, ranks)
    trainer, best = _trainer(out, training, ranks)
    last = out / "last.ckpt"
    if last.is_file():
        _read_checkpoint(last)  # Lightning would not say what to do about one that it cannot read
    if training.warmup_steps:
        if not last.is_file():
            with _within_memory():
                warm_up(model.to(device()), varied, pictures, steps=training.warmup_steps, seed=seed)
            ranks.agree(model)  # each has warmed up by itself
        module.keep_features()
    if ranks.size > 1:
        share_statistics(model, device())
    read = partial(loader, workers=training.workers, device=device())
    _run(trainer, module, read(varied, steps=steps), read(watched, steps=to_watch), last)
    state = _best_state(out, best, training)
    # without what ranks or a GPU have left in `model`; initial weights would be read only to be overwritten
    trained = AttentionCnn(replace(encoder, weights=None), cnn)
    trained.load_state_dict(state)
    return trained.eval()

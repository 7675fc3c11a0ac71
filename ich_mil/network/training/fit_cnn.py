"""Fit the attention CNN on prepared scans with Lightning, and keep the best epoch.

`log.csv` has one row per epoch. `last.ckpt` is the newest epoch that was the best so far (with
null `patience`, the newest epoch). A killed run resumes from it and ends at the same model.

On a GPU the computation is in bfloat16; weights and the pooling of slices stay float32. Several processes
(`ich_mil.ranks`) divide the scans of each step by Lightning's DDP. Their number changes the result of a step
in three ways: rounding (quantified in `ich_mil.network.shared_norm`), the dropout masks, and, for steps with
more than `CHUNK_SLICES` slices, the chunks that share batch statistics.
"""

import ctypes
import io
import logging
import os
import signal
import sys
import warnings
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pandas as pd
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from ich_mil.errors import ConfigError, ModelError
from ich_mil.files import remove_leftovers, write_bytes
from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.bags import Batch, ScanDataset, StepSampler
from ich_mil.network.loader import loader
from ich_mil.network.shared_norm import share_statistics
from ich_mil.network.slice_encoders import EncoderSettings
from ich_mil.network.training.augment import VariedScans
from ich_mil.network.training.epoch_log import EpochLog
from ich_mil.network.training.loggers import make_logger
from ich_mil.network.training.module import MilModule, class_weights
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.progress import say
from ich_mil.ranks import Ranks, device, these_ranks
from ich_mil.sets.store import PreparedSet


class _BestEpoch(ModelCheckpoint):
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "dirpath": self.dirpath})

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write no checkpoint at the end, unlike Lightning: a run resumed from it would train further."""


class _KeepSigterm(Callback):
    """Keep the SIGTERM handler that Lightning replaces.

    Lightning's handler ends a run with exit code 0 and can deadlock several ranks, and no option disables it.
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.before = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the handler; Lightning has set its own by now."""
        signal.signal(signal.SIGTERM, self.before)


class _WholeCheckpoints(TorchCheckpointIO):
    """Write checkpoints atomically; Lightning may copy a file from another disk over the old checkpoint."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write the checkpoint to `path`. `DataError` if the disk is full."""
        content = io.BytesIO()
        torch.save(checkpoint, content)  # torch.save to a file would hide the reason of a failed write
        write_bytes(Path(path), content.getvalue())


def keep_freed_memory() -> None:
    """Let glibc, where it is used, keep the memory of one training step for the next step.

    By default glibc returns blocks of this size to the kernel, which clears them again in each step. That
    took half of the time of a step on a CPU (research/RESULTS.md).
    """
    mmap_max, trim_threshold = -4, -1  # malloc.h: M_MMAP_MAX, M_TRIM_THRESHOLD
    with suppress(OSError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)


def _steps(
    scans: ScanDataset, watched: ScanDataset, training: TrainingSettings, seed: int, ranks: Ranks
) -> tuple[StepSampler, list[list[int]]]:
    """Training steps, and this rank's validation steps of one scan each. `ConfigError`: too few scans."""
    try:
        steps = StepSampler(scans.sizes, bags=training.bags, seed=seed, ranks=ranks)
    except ValueError as error:
        raise ConfigError(f"{error}; start fewer processes, or raise training.bags") from error
    if len(watched) < ranks.size:
        raise ConfigError(
            f"{len(watched)} validation scans cannot be shared among {ranks.size} processes; start fewer"
        )
    return steps, [[index] for index in ranks.share(watched.sizes).tolist()]


def _trainer(
    out: Path, training: TrainingSettings, ranks: Ranks, logger: Logger | None
) -> tuple[pl.Trainer, ModelCheckpoint]:
    monitor = None if training.patience is None else "val_loss"  # None: each epoch replaces the previous one
    best = _BestEpoch(out, filename="best", monitor=monitor, save_last=True, enable_version_counter=False)
    callbacks: list[Callback] = [best, EpochLog(out / "log.csv"), _KeepSigterm()]
    if training.patience is not None:
        callbacks.insert(0, EarlyStopping("val_loss", patience=training.patience, check_finite=True))
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # no tips and lists of devices
    terminal = sys.stderr.isatty()
    if terminal:
        callbacks.append(TQDMProgressBar())
    # otherwise Lightning would detect other launchers, such as SLURM, that did not start several processes
    processes: dict[str, Any] = {"devices": 1, "plugins": [LightningEnvironment()]}
    if ranks.size > 1:
        size = int(os.environ["LOCAL_WORLD_SIZE"])  # set by torchrun
        processes = {"devices": size, "num_nodes": ranks.size // size, "plugins": [TorchElasticEnvironment()]}
        # Ranks may have different numbers of validation scans, so a forward pass must not synchronise.
        processes["strategy"] = DDPStrategy(broadcast_buffers=False)
    processes["plugins"].append(_WholeCheckpoints())
    gpu = device().type == "cuda"
    trainer = pl.Trainer(
        max_epochs=training.max_epochs,
        precision="bf16-mixed" if gpu else "32-true",
        callbacks=callbacks,
        logger=logger or False,
        log_every_n_steps=1,
        enable_progress_bar=terminal,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=out,
        use_distributed_sampler=False,
        accelerator="gpu" if gpu else "cpu",
        **processes,
    )
    return trainer, best


def _run(
    trainer: pl.Trainer, module: MilModule, steps: DataLoader[Batch], to_watch: DataLoader[Batch], last: Path
) -> None:
    """Run Lightning's training loops, from the checkpoint `last` if it exists, and translate its errors."""
    start = last if last.is_file() else None
    with warnings.catch_warnings():
        for message in (
            "does not have many workers",  # a setting of the user
            "exists and is not empty",  # the checkpoint folder of a resumed run
            "in eval mode at the start",  # frozen blocks
            "broadcast_buffers.* is deprecated",  # the replacement does not exist in torch 2.11
        ):
            warnings.filterwarnings("ignore", message=f".*{message}")
        interrupted = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit(module, steps, to_watch, ckpt_path=start, weights_only=True)
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"a step does not fit into the GPU's memory ({reason}); lower training.bags"
            ) from error
        except (RuntimeError, KeyError) as error:
            if start and "state_dict" in str(error):
                reason = "belongs to another model; start the run in an empty folder"
                raise ModelError(f"{last}: {reason}") from error
            raise
        except SystemExit as error:
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            # Lightning turns Ctrl-C into SystemExit, which would end a notebook, and it then ignores SIGINT.
            signal.signal(signal.SIGINT, interrupted)
            raise KeyboardInterrupt from error


def _read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read the module's weights from a checkpoint, on the CPU. `ModelError` if it is no checkpoint."""
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
        state: dict[str, Tensor] = content["state_dict"]
        if "loops" not in content:
            raise ValueError("it does not hold the progress of training")
        return state
    except Exception as error:  # torch has no exception class for files that hold no checkpoint
        raise ModelError(
            f"{path}: cannot be read ({error!r:.200}); delete {path.parent} and go on with --resume"
        ) from error


def _best_state(out: Path, best: ModelCheckpoint, training: TrainingSettings) -> dict[str, Tensor]:
    """Weights of the kept epoch, on the CPU. `ModelError` if loss or weights are not finite."""
    score = best.best_model_score
    if training.patience is not None and (score is None or not torch.isfinite(score)):
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
    """Train the attention CNN on the split `train`, with early stopping on the split `validation`.

    `splits` has columns scan, label, split. `out` is the folder for checkpoints and the log; training resumes
    from a `last.ckpt` there. The training scans `in_slices` are used slice by slice. `start` is a network of
    the same settings, whose weights are the start of training.

    Returns:
        The model of the epoch with the lowest validation loss, or of the last epoch without `patience`, in
        evaluation mode.

    Raises:
        ConfigError: too few scans for the number of ranks, or a step that does not fit into GPU memory.
        DataError: bags of one label, a damaged scan or log, a full disk.
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
    ids = {split: splits.scan[splits.split == split].tolist() for split in ("train", "validation")}
    scans = ScanDataset(prepared, ids["train"], crop=encoder.crop, in_slices=in_slices, keep=True)
    watched = ScanDataset(prepared, ids["validation"], crop=encoder.crop, keep=True)
    # maps of frozen blocks are kept instead of pictures, unless pictures vary
    kept = model.frozen and not training.augment
    pictures = model.pictures(slices=0 if kept else int(scans.sizes.sum() + watched.sizes.sum()))
    module = MilModule(model, training, class_weights(scans.bag_labels), pictures=pictures, seed=seed)
    varied = VariedScans(scans, seed=seed, augmented=training.augment)
    steps, to_watch = _steps(scans, watched, training, seed, ranks)
    if ranks.first:
        epochs = f"{training.max_epochs} epochs{'' if training.patience is None else ' at most'}"
        slices = int(scans.sizes.sum())
        say(
            f"network {encoder.name} of {encoder.size} pixels, frozen: {encoder.freeze}; {len(scans)} scans "
            f"of {slices:,} slices, {len(watched)} validation scans; {epochs}, {device()}"
        )
    settings = {"encoder": asdict(encoder), "cnn": asdict(cnn), "training": asdict(training), "seed": seed}
    trainer, best = _trainer(out, training, ranks, make_logger(training.logger, out, settings))
    last = out / "last.ckpt"
    if last.is_file():
        _read_checkpoint(last)  # for a clear error if the checkpoint is damaged
    if ranks.size > 1:
        share_statistics(model, device())
    read = partial(loader, workers=training.workers, device=device())
    _run(trainer, module, read(varied, steps=steps), read(watched, steps=to_watch), last)
    state = _best_state(out, best, training)
    # a new model on the CPU, without synchronised batch norm and without initial weights
    trained = AttentionCnn(replace(encoder, weights=None), cnn)
    trained.load_state_dict(state)
    return trained.eval()

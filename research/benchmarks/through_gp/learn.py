"""Attention alone, and the course of a fit: best state kept, divergence told.

Shapes: B bags, N instances.
"""

import copy
import math
import warnings
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader

from ich_mil.kernels.segments import bag_index, bag_softmax, bag_sum
from research.benchmarks.through_gp.encoders import Encoder, parameter_groups
from research.benchmarks.through_gp.model import RATE, WEIGHT_DECAY, Bags, ThroughGp, pack

WIDTH, BATCH = 32, 16
M = TypeVar("M", "AttentionMil", ThroughGp)


class AttentionMil(pl.LightningModule):
    """The same encoder with gated attention and a linear classifier (Ilse et al. 2018)."""

    def __init__(self, encoder: Encoder) -> None:
        """Add attention and classifier."""
        super().__init__()
        self.encoder = encoder
        self.v, self.u = (nn.Linear(encoder.features, WIDTH) for _ in range(2))
        self.w, self.classifier = nn.Linear(WIDTH, 1), nn.Linear(encoder.features, 1)

    def forward(self, bags: Bags) -> tuple[Tensor, Tensor]:
        """Logits of bags (B,) and of instances (N,)."""
        index, n = bag_index(bags.offsets), len(bags.labels)
        features = self.encoder(bags.x)
        gate = torch.tanh(self.v(features)) * torch.sigmoid(self.u(features))
        attention = bag_softmax(self.w(gate).squeeze(-1), index, n)
        logit = self.classifier(features).squeeze(-1)
        return bag_sum(attention * logit, index, n), logit

    def training_step(self, bags: Bags, _: int) -> Tensor:
        """Cross entropy of a batch of bags."""
        return binary_cross_entropy_with_logits(self(bags)[0], bags.labels.float())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam for all weights."""
        return torch.optim.AdamW(parameter_groups(self), lr=RATE, weight_decay=WEIGHT_DECAY)

    @torch.no_grad()
    def scan_probability(self, bags: Bags) -> Tensor:
        """Probability (B,) of the bags."""
        self.eval()
        return torch.sigmoid(self(bags)[0])


def calibrated_loss(p: Tensor, labels: Tensor) -> float:
    """Log-loss of probabilities (B,) after a sigmoid that is fitted to these bags.

    The largest of 30 samples lies near 1 in every bag. Without calibration a fit that says nothing would be
    the best.
    """
    logit = torch.logit(p, 1e-6).numpy()[:, None]
    sigmoid = LogisticRegression().fit(logit, labels)
    if sigmoid.coef_[0, 0] < 0:
        return math.log(2)  # worse than no order at all
    return float(log_loss(labels, sigmoid.predict_proba(logit)[:, 1]))


class KeepBest(pl.Callback):
    """Keep the state with the smallest calibrated log-loss on validation bags; stop a fit that diverges.

    Attributes:
        best: the log-loss kept.
        diverged: the epoch in which a loss or a factorisation failed; None for a fit that ended by itself.
    """

    def __init__(self, watched: Bags, patience: int) -> None:
        self.watched, self.patience = watched, patience
        self.best, self.since = math.inf, 0
        self.diverged: int | None = None
        self.state: dict[str, Any] | None = None

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop at a loss that is not finite."""
        if not torch.isfinite(outputs["loss"]):
            self.stop(trainer)

    def stop(self, trainer: pl.Trainer) -> None:
        """End the fit."""
        if self.diverged is None:
            self.diverged = trainer.current_epoch
            warnings.warn(f"the fit diverged in epoch {self.diverged}; its best state is kept", stacklevel=2)
        trainer.should_stop = True

    def on_train_epoch_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Measure the validation bags."""
        if self.diverged is not None:
            return
        try:
            p = module.scan_probability(self.watched).double()
        except RuntimeError:  # a covariance that cannot be factorised
            self.stop(trainer)
            return
        module.train()
        if not torch.isfinite(p).all():
            self.stop(trainer)
            return
        loss = calibrated_loss(p, self.watched.labels)
        if loss < self.best:
            self.best, self.since, self.state = loss, 0, copy.deepcopy(module.state_dict())
        else:
            self.since += 1
            trainer.should_stop = trainer.should_stop or self.since >= self.patience


def fit(module: M, learn: Bags, watched: Bags, *, seed: int) -> tuple[M, KeepBest]:
    """Train on the bags `learn`, stopped by the bags `watched`; the best state is in the module."""
    keep = KeepBest(watched, module.encoder.patience)
    loader: DataLoader[int] = DataLoader(
        range(len(learn.labels)),  # type: ignore[arg-type]
        batch_size=BATCH,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        collate_fn=lambda bags: pack(learn.x, learn.offsets, learn.labels, bags),
    )
    torch.manual_seed(seed)
    trainer = pl.Trainer(
        max_epochs=module.encoder.epochs,
        accelerator="cpu",
        callbacks=[keep],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    keep.on_train_epoch_end(trainer, module)  # the start is a state too
    try:
        trainer.fit(module, loader)
    except torch.linalg.LinAlgError:
        keep.stop(trainer)
    if keep.state is not None:
        module.load_state_dict(keep.state)
    return module, keep

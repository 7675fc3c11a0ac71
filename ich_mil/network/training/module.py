"""Lightning module of the attention CNN: weighted loss, optimiser, logging.

The loss of a step is the mean of w_y · BCE(logit, y) over its bags on all ranks. The class weights
w_y = B / (2 B_y), from the training bags, give both classes equal weight. A bag is a scan, or a slice of a
scan that is used slice by slice; such a slice has the same weight as a scan.
"""

from collections.abc import Sequence

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ich_mil.errors import DataError
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.bags import KEEP_BYTES, Batch, Pictures
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.ranks import Ranks, these_ranks

WARM = 0.1
"""Share of the steps during which the schedule `one_cycle` raises the learning rate."""


def class_weights(labels: Sequence[int]) -> Tensor:
    """Class weights (2,) B / (2 B_y) for y = 0, 1 of the training bags. `DataError`: all labels are equal."""
    counts = torch.bincount(torch.tensor(labels), minlength=2).float()
    if not counts.all():
        raise DataError(
            f"all {len(labels)} scans and slices are labelled {labels[0]}; add some of the other label"
        )
    return len(labels) / (2 * counts)


class MilModule(pl.LightningModule):
    """Lightning module that trains an `AttentionCnn` on scan labels.

    Args:
        model: the CNN to train.
        settings: training settings.
        weights: (2,) class weights of the loss, from `class_weights`.
        pictures: preprocessing from HU to pictures.
        seed: seed of the dropout masks, together with step and rank.
    """

    weights: Tensor

    def __init__(
        self,
        model: AttentionCnn,
        settings: TrainingSettings,
        weights: Tensor,
        *,
        pictures: Pictures,
        seed: int,
    ) -> None:
        super().__init__()
        self.model, self.settings, self.pictures, self.seed = model, settings, pictures, seed
        self._kept: dict[str, Tensor] = {}
        self.register_buffer("weights", weights)
        # `log` would truncate a mean over ranks with different numbers of scans (Lightning 21859)
        self._losses: dict[str, list[Tensor]] = {"train_loss": [], "val_loss": []}  # (2,) sum and count
        self._scored: list[Tensor] = []  # (2, B) scan probabilities and labels

    def forward(self, batch: Batch) -> Tensor:
        """Bag logits (B,) of a packed batch."""
        return self.model.scan_logits(self._frozen_maps(batch), batch.offsets)

    def _frozen_maps(self, batch: Batch) -> Tensor:
        """Maps (N, F, h, w) after the frozen blocks of the encoder; cached for scans without augmentation."""
        if not batch.variations and all(scan in self._kept for scan in batch.scans):
            return torch.cat([self._kept[scan] for scan in batch.scans])
        # bfloat16 resolves positions near the border of a picture to about one pixel only
        with torch.autocast(self.device.type, enabled=False):
            pictures = self.pictures(batch)
        maps = self.model.frozen_maps(pictures)
        if self.model.frozen and not batch.variations:
            for scan, scan_maps in zip(batch.scans, maps.split([len(hu) for hu in batch.hu]), strict=True):
                if sum(kept.nbytes for kept in self._kept.values()) + scan_maps.nbytes <= KEEP_BYTES:
                    self._kept[scan] = scan_maps.clone()
        return maps

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean weighted loss () of bags with logits (B,) and labels (B,) in {0, 1}."""
        return binary_cross_entropy_with_logits(logits, labels, weight=self.weights[labels.long()])

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """Weighted loss of this rank's share of a step, scaled for the mean over ranks."""
        ranks = these_ranks()
        # a resumed run draws the same dropout masks as an uninterrupted run
        torch.manual_seed(self.seed * 1_000_003 + self.global_step + ranks.rank * 1_000_000_007)
        loss = self.loss(self(batch), batch.labels)
        self._add("train_loss", loss, batch)
        return loss * self._share(batch, ranks)

    def _share(self, batch: Batch, ranks: Ranks) -> float | Tensor:
        if ranks.size == 1:
            return 1.0
        count = torch.full((), float(len(batch.labels)), device=self.device)
        return count * ranks.size / ranks.total(count)

    def validation_step(self, batch: Batch, _index: int) -> None:
        """Weighted loss and AUC over the validation scans."""
        logits = self(batch)
        self._add("val_loss", self.loss(logits, batch.labels), batch)
        self._scored.append(torch.stack([logits.sigmoid(), batch.labels]))

    def _add(self, name: str, loss: Tensor, batch: Batch) -> None:
        """Add the loss of a batch to those of the epoch; each bag counts once."""
        each = loss.detach().expand(len(batch.labels))
        self._losses[name].append(torch.stack([each.sum(), torch.ones_like(each).sum()]))

    def on_validation_epoch_end(self) -> None:
        """Log the mean losses and the AUC of an epoch; validation ends it."""
        ranks = these_ranks()
        for name, losses in self._losses.items():
            if not losses:  # no training step yet: Lightning's check before the first epoch, or `validate`
                continue
            total, count = ranks.total(torch.stack(losses).sum(0))
            self._log(name, total / count)
            losses.clear()
        score, label = ranks.gathered(torch.cat(self._scored, 1).T).T
        above = score[label == 1, None] - score[label == 0]  # (positives, negatives)
        self._log("val_auc", ((above > 0).float() + 0.5 * (above == 0)).mean().nan_to_num())
        self._scored.clear()

    def _log(self, name: str, value: Tensor) -> None:
        self.log(name, value, sync_dist=True, reduce_fx="max")

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW and its schedule; without weight decay this is Adam, as in the papers."""
        trained = [value for value in self.parameters() if value.requires_grad]
        rate, decay = self.settings.learning_rate, self.settings.weight_decay
        optimiser = torch.optim.AdamW(trained, lr=rate, weight_decay=decay)
        if self.settings.schedule == "constant":
            return optimiser
        steps = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=WARM)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

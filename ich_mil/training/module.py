"""Lightning around the attention CNN: loss, optimiser, logging. No mathematics beyond the weighted loss.

The loss of a step is the mean over its bags, on all ranks together, of w_y · BCE(logit, y); the class
weights w_y = B / (2 B_y) of the training bags give both classes the same say. A bag is a scan, or a slice of
a scan that is used slice by slice: such a slice counts as much as a scan.
"""

from collections.abc import Sequence

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAUROC

from ich_mil.data.bags import KEEP_BYTES, Batch, Pictures
from ich_mil.errors import DataError
from ich_mil.models.attention_cnn import AttentionCnn, BagOutput
from ich_mil.ranks import Ranks, these_ranks
from ich_mil.training.settings import TrainingSettings

WARM = 0.1
"""Share of the steps in which the schedule `one_cycle` raises the learning rate."""


def class_weights(labels: Sequence[int], *, bleeds: float = 0.0) -> Tensor:
    """(2,) weights B / (2 B_y) for y = 0, 1, B_y as expected after bleeds.

    Args:
        labels: of the training bags.
        bleeds: share of the negative ones that become positive.

    Raises:
        DataError: all labels are equal.
    """
    counts = torch.bincount(torch.tensor(labels), minlength=2).float()
    if not counts.all():
        raise DataError(
            f"all {len(labels)} scans and slices are labelled {labels[0]}; add some of the other label"
        )
    moved = bleeds * counts[0]
    return len(labels) / (2 * (counts + torch.stack([-moved, moved])))


class MilModule(pl.LightningModule):
    """Trains an `AttentionCnn` on scan labels."""

    weights: Tensor
    watched: Tensor

    def __init__(
        self,
        model: AttentionCnn,
        settings: TrainingSettings,
        weights: Tensor,
        *,
        watched: Tensor,
        pictures: Pictures,
        seed: int,
    ) -> None:
        """Put the parts together.

        Args:
            model: that is trained.
            settings: how.
            weights: (2,) from `class_weights`, of training scans.
            watched: (2,) likewise, of validation scans: they get no bleeds.
            pictures: that makes those of a batch.
            seed: keys the dropout masks, with the step and the rank.
        """
        super().__init__()
        self.model = model
        self._kept: dict[str, Tensor] = {}
        self.pictures = pictures
        self.settings = settings
        self.seed = seed
        self.register_buffer("weights", weights)
        self.register_buffer("watched", watched, persistent=False)
        # `log` itself truncates a mean over ranks that have different numbers of scans (Lightning 21859)
        # NaN stays and ends the training: to look for it, or at labels, would make the host wait for a GPU
        self.train_loss = MeanMetric(nan_strategy="disable")
        self.val_loss = MeanMetric(nan_strategy="disable")
        self.val_auc = BinaryAUROC(validate_args=False)

    def keep_features(self) -> None:
        """Train no longer what makes features of slices: few scans would make it forget the warm-up."""
        self.model.encoder.requires_grad_(False)
        self.model.project.requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        """Kept features have the batch norm of evaluation; dropout behind the encoder goes on."""
        if not self.model.project.weight.requires_grad:
            self.model.encoder.eval()

    def forward(self, batch: Batch) -> BagOutput:
        """The model on a packed batch."""
        return self.model.classify(self._frozen_maps(batch), batch.offsets)

    def _frozen_maps(self, batch: Batch) -> Tensor:
        """(N, F, h, w) of the encoder's frozen blocks; of scans that do not vary they are computed once."""
        varies = batch.variations or any(len(changed) for changed in batch.changed)
        if not varies and all(scan in self._kept for scan in batch.scans):
            return torch.cat([self._kept[scan] for scan in batch.scans])
        # in bfloat16 places near the border of a picture would be told no better than a pixel apart
        with torch.autocast(self.device.type, enabled=False):
            pictures = self.pictures(batch)
        maps = self.model.frozen_maps(pictures)
        if self.model.frozen and not varies:
            for scan, own in zip(batch.scans, maps.split([len(hu) for hu in batch.hu]), strict=True):
                if sum(kept.nbytes for kept in self._kept.values()) + own.nbytes <= KEEP_BYTES:
                    self._kept[scan] = own.clone()
        return maps

    def loss(self, output: BagOutput, labels: Tensor, *, watched: bool = False) -> Tensor:
        """() mean loss of scans, weighted as in training or as `watched`; the labels (B,) are 0 or 1."""
        weights = self.watched if watched else self.weights
        return binary_cross_entropy_with_logits(output.scan_logit, labels, weight=weights[labels.long()])

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """Weighted loss of this rank's part of a step.

        Scaled such that the mean over ranks is that of the step, and that of the steps averaged is theirs.
        """
        ranks = these_ranks()
        # so that a resumed run draws the same dropout masks as one that was never stopped
        step = self.global_step * self.settings.accumulate + index % self.settings.accumulate
        torch.manual_seed(self.seed * 1_000_003 + step + ranks.rank * 1_000_000_007)
        loss = self.loss(self(batch), batch.labels)
        self.train_loss.update(loss.detach().expand(len(batch.labels)))  # each scan counts once
        self._log("train_loss")
        return loss * self._share(batch, ranks) * self._averaged(index)

    def _share(self, batch: Batch, ranks: Ranks) -> float | Tensor:
        """Scans here over the mean number of scans a rank has in this step: DDP averages over ranks."""
        if ranks.size == 1:
            return 1.0
        here = torch.full((), float(len(batch.labels)), device=self.device)
        return here * ranks.size / ranks.total(here)

    def _averaged(self, index: int) -> float:
        """Lightning divides each loss by `accumulate`, also where an epoch ends before so many steps."""
        accumulate = self.settings.accumulate
        if accumulate == 1:
            return 1.0
        first = index - index % accumulate
        return accumulate / min(accumulate, int(self.trainer.num_training_batches) - first)

    def validation_step(self, batch: Batch, _index: int) -> None:
        """Weighted loss and AUC over the validation scans."""
        output = self(batch)
        loss = self.loss(output, batch.labels, watched=True)
        self.val_loss.update(loss.expand(len(batch.labels)))
        self.val_auc.update(output.scan_logit.sigmoid(), batch.labels.long())
        self._log("val_loss")
        self._log("val_auc")

    def _log(self, name: str) -> None:
        """Log the metric `name` over the scans of an epoch, on all ranks."""
        self.log(name, getattr(self, name), on_step=False, on_epoch=True)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW, without weight decay the Adam of the papers, and its schedule."""
        trained = [value for value in self.parameters() if value.requires_grad]
        rate, decay = self.settings.learning_rate, self.settings.weight_decay
        optimiser = torch.optim.AdamW(trained, lr=rate, weight_decay=decay)
        if self.settings.schedule == "constant":
            return optimiser
        steps = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=WARM)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

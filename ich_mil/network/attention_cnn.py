"""Attention CNN: slice encoder and aggregator, trained on scan labels alone.

Slices are encoded separately and classified as one scan by an aggregator (`ich_mil.network.aggregators`),
gated attention unless the settings name another. Bags are packed.

    h_n = W vec(encoder(x_n))                     (D,)  features for the Gaussian process
    logit_b = aggregator(h_n, n in scan b)
    slice logit_n = aggregator(h_n alone)         its sigmoid is the CNN's slice probability

Shapes: B scans, N slices (packed), C channels, S pixels, D features, F channels of a feature map.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ich_mil.kernels.segments import bag_index
from ich_mil.network.aggregators import Attention, Transformer, build_aggregator, single_slices
from ich_mil.network.bags import Pictures
from ich_mil.network.settings import PAPER, CnnSettings, EncoderSettings
from ich_mil.network.shared_norm import right_statistics
from ich_mil.network.slice_encoders import build_encoder, frozen_blocks, map_shape
from ich_mil.ranks import these_ranks

DROPOUT = 0.3
"""Dropout probability of the pooled encoder output, in training."""
CHUNK_SLICES = 256
"""Largest number of slices encoded at once.

A larger batch is encoded in k chunks, each with every k-th slice. In training the activations of a chunk are
recomputed in the backward pass, and batch norm uses the statistics of the chunk.
"""


class BagOutput(NamedTuple):
    """Output of the CNN for packed scans."""

    scan_logit: Tensor  # (B,)
    slice_logit: Tensor  # (N,)
    attention: Tensor  # (N,) sums to 1 in each scan; NaN for aggregators without attention weights
    features: Tensor  # (N, D)


class AttentionCnn(nn.Module):
    """Slice encoder, dense features, aggregator. Usable without a Trainer.

    Attributes:
        aggregator: module that maps packed features to scan logits.
        encoder: sequence of blocks; the lowest `frozen` of them are not trained.
        encoder_settings: settings of the encoder and its input pictures.
        settings: settings of the layers after the encoder.
        channels: channels F of the encoder's feature map.
    """

    def __init__(self, encoder: EncoderSettings, settings: CnnSettings) -> None:
        """Build the network with initial weights. `ModelError`: encoder or aggregator cannot be built."""
        super().__init__()
        self.encoder_settings, self.settings = encoder, settings
        self.chunk_slices = CHUNK_SLICES
        # channels_last halves the time of a step on CPUs, and is the layout for tensor cores
        built = right_statistics(build_encoder(encoder)).to(memory_format=torch.channels_last)
        assert isinstance(built, nn.Sequential)
        self.encoder = built
        self.frozen = frozen_blocks(encoder, len(built))
        self.encoder[: self.frozen].requires_grad_(False)
        self.channels, height, width = map_shape(self.encoder, encoder)
        flatten = encoder.name == PAPER and settings.pool == "flatten"
        self.pool: nn.Module = (
            nn.Flatten() if flatten else nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        )
        self.dropout = nn.Dropout(DROPOUT)
        width_of_input = self.channels * (height * width if flatten else 1)
        self.project = nn.Linear(width_of_input, settings.features)
        self.aggregator = build_aggregator(settings.aggregator, settings.features)
        self.train()  # puts frozen blocks into evaluation mode; Lightning keeps the modes of all modules

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; frozen blocks, with their batch norms, stay in evaluation mode."""
        super().train(mode)
        self.encoder[: self.frozen].eval()
        return self

    def pictures(self, *, slices: int = 0) -> Pictures:
        """Preprocessing from HU to the encoder's input pictures; `slices` as in `Pictures`."""
        reads = self.encoder_settings
        return Pictures(reads.windows, reads.size, neighbours=reads.neighbours, slices=slices)

    @torch.no_grad()
    def frozen_maps(self, pictures: Tensor, *, blocks: int | None = None) -> Tensor:
        """Maps (n, F, h, w) of pictures (n, C, S, S) after the frozen blocks, or the lowest `blocks`."""
        blocks = self.frozen if blocks is None else blocks
        if not blocks:
            return pictures
        lower = self.encoder[:blocks]
        # maps of several slices do not fit the caches of a CPU, which is then 3 times slower
        most = 1 if pictures.device.type == "cpu" else self.chunk_slices
        chunks = pictures.contiguous(memory_format=torch.channels_last).split(most)
        return torch.cat([lower(chunk) for chunk in chunks])

    def features_of_maps(self, maps: Tensor) -> Tensor:
        """Features (n, D) of encoder maps (n, F, h, w)."""
        features: Tensor = self.project(self.dropout(self.pool(maps)))
        return features

    def _encode_chunk(self, maps: Tensor, blocks: int) -> Tensor:
        maps = self.encoder[blocks:](maps.contiguous(memory_format=torch.channels_last))
        return self.features_of_maps(maps)

    def encode(self, pictures: Tensor) -> Tensor:
        """Features (N, D) of pictures (N, C, S, S), computed `chunk_slices` at a time."""
        return self.encode_maps(self.frozen_maps(pictures))

    def encode_maps(self, maps: Tensor, *, blocks: int | None = None) -> Tensor:
        """Features (N, D) of `frozen_maps` (N, F, h, w), computed `chunk_slices` at a time."""
        blocks = self.frozen if blocks is None else blocks
        count = -(-len(maps) // self.chunk_slices)
        if self.encoder.training:
            # the same number of chunks on every rank, because batch norm synchronises in each chunk
            count = int(these_ranks().most(torch.tensor(float(count))))
        if count == 1:
            return self._encode_chunk(maps, blocks)
        # Each chunk takes every `count`-th slice, so that its batch statistics approximate those of the whole
        # batch. Contiguous chunks could consist of one scan, and their statistics would reveal its label.
        indices = torch.arange(len(maps), device=maps.device)
        back = torch.cat([indices[first::count] for first in range(count)]).argsort()  # (N,)
        # `torch.compile` fails on a checkpoint with `context_fn`; `disable` as a decorator would add a second
        # to the import
        again = torch.compiler.disable(self._encode_again)
        encode = again if torch.is_grad_enabled() else self._encode_chunk
        return torch.cat([encode(maps[first::count], blocks) for first in range(count)])[back]

    def _encode_again(self, maps: Tensor, blocks: int) -> Tensor:
        features: Tensor = checkpoint(
            self._encode_chunk,
            maps,
            blocks,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _kept_running_statistics(self.encoder)),
        )
        return features

    def forward(self, pictures: Tensor, offsets: Tensor) -> BagOutput:
        """Classify packed scans.

        Args:
            pictures: (N, C, S, S) in [0, 1].
            offsets: (B + 1,) int64; on the CPU they are checked without waiting for a GPU.

        Returns:
            `BagOutput` in float32, even if the encoder computes in bfloat16.

        Raises:
            ValueError: a scan without slices, or offsets that do not match the number of pictures.
        """
        return self.classify(self.frozen_maps(pictures), offsets)

    def classify(self, maps: Tensor, offsets: Tensor, *, blocks: int | None = None) -> BagOutput:
        """Classify packed scans from their `frozen_maps` (N, F, h, w) after the same number of `blocks`."""
        features, offsets = self._packed(maps, offsets, blocks)
        with torch.autocast(maps.device.type, enabled=False):
            scan_logit = self.aggregator(features, offsets)  # (B,)
            slice_logit = self.aggregator(features, single_slices(features))  # (N,)
            if isinstance(self.aggregator, Attention | Transformer):
                attention = self.aggregator.weights(features, offsets)  # (N,)
            else:
                attention = torch.full_like(slice_logit, torch.nan)
        return BagOutput(scan_logit, slice_logit, attention, features)

    def scan_logits(self, maps: Tensor, offsets: Tensor) -> Tensor:
        """Scan logits (B,) of `classify` alone, for training.

        An aggregator that keeps batch statistics or drops units at random sees each scan once a step.
        """
        features, offsets = self._packed(maps, offsets, None)
        with torch.autocast(maps.device.type, enabled=False):
            logits: Tensor = self.aggregator(features, offsets)
        return logits

    def _packed(self, maps: Tensor, offsets: Tensor, blocks: int | None) -> tuple[Tensor, Tensor]:
        """Features (N, D) of `encode_maps` in the type of the weights, and offsets (B + 1,) on the CPU."""
        if (count := len(bag_index(offsets))) != len(maps):
            raise ValueError(f"offsets of {count} slices do not fit {len(maps)} pictures")
        return self.encode_maps(maps, blocks=blocks).to(self.project.weight), offsets.cpu()


@contextmanager
def _kept_running_statistics(module: nn.Module) -> Iterator[None]:
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    counts = [norm.get_buffer("num_batches_tracked").clone() for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum, count in zip(norms, momenta, counts, strict=True):
            norm.momentum = momentum
            norm.get_buffer("num_batches_tracked").copy_(count)

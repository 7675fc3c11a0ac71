"""The attention CNN: windowed slices of scans to scan probabilities, trained on scan labels alone.

Slices are encoded one by one, pooled by gated attention within their scan (Ilse et al. 2018, as used in
Castro-Macías et al. 2024, section 6.3, and the authors' notebooks) and classified. Bags are packed, never
padded.

    h_n = W vec(encoder(x_n))                                    (D,)  the features the Gaussian process gets
    a_n = softmax over the scan of  wᵀ(tanh(V h_n) ∘ sigmoid(U h_n))
    logit_b = vᵀ Σ_n a_n h_n + c = Σ_n a_n (vᵀ h_n + c)

The last line holds because the weights of a scan sum to 1: so `vᵀ h_n + c` is what the CNN itself says of
slice n, and its sigmoid is the CNN's slice probability.

Shapes: B scans, N slices (packed), C channels, S pixels, D features, F channels of a map.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ich_mil.data.bags import Pictures
from ich_mil.kernels.segments import bag_index, bag_softmax, bag_sum
from ich_mil.models.encoders import PAPER, EncoderSettings, build_encoder, frozen_blocks, map_shape
from ich_mil.models.shared_norm import right_statistics
from ich_mil.ranks import these_ranks

ATTENTION_HIDDEN = 64
"""Hidden units of the gated attention, as in the authors' notebooks."""


@dataclass(frozen=True)
class CnnSettings:
    """What follows the slice encoder.

    Attributes:
        features: D.
        dropout: on the encoder's output, in [0, 1).
        pool: how the map of the `paper` encoder becomes a vector: `flatten`, as in the papers, or its `mean`,
            which knows a bleed in every place once it knows it in one: for few scans. The maps of all other
            encoders are always averaged.
        chunk_slices: slices encoded at a time. Longer batches are encoded in chunks, of k chunks each every
            k-th slice; in training each chunk's activations are recomputed in the backward pass, and batch
            norm uses the statistics of the chunk.
    """

    features: Literal[8, 32, 128] = 8
    dropout: float = 0.3
    pool: Literal["flatten", "mean"] = "flatten"
    chunk_slices: int = 256

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"cnn.dropout must lie in [0, 1), got {self.dropout}")
        if self.pool not in ("flatten", "mean"):
            raise ValueError(f"cnn.pool must be one of flatten, mean, got {self.pool!r}")
        if self.chunk_slices < 2:
            raise ValueError(f"cnn.chunk_slices must be at least 2, got {self.chunk_slices}")


class BagOutput(NamedTuple):
    """What the CNN says of packed scans."""

    scan_logit: Tensor  # (B,)
    slice_logit: Tensor  # (N,)
    attention: Tensor  # (N,) sums to 1 in each scan
    features: Tensor  # (N, D)


class AttentionCnn(nn.Module):
    """Encoder, dense features, gated attention, classifier. Usable without a Trainer.

    Attributes:
        encoder: a sequence of blocks; the lowest `frozen` of them are not trained.
        encoder_settings: of the encoder and the pictures it reads.
        settings: of what follows.
    """

    def __init__(self, encoder: EncoderSettings, settings: CnnSettings) -> None:
        """Build with initial weights. `ModelError` for an encoder that cannot be built."""
        super().__init__()
        self.encoder_settings, self.settings = encoder, settings
        # channels last halves the time of a step on CPUs, and is what tensor cores read
        built = right_statistics(build_encoder(encoder)).to(memory_format=torch.channels_last)
        assert isinstance(built, nn.Sequential)
        self.encoder = built
        self.frozen = frozen_blocks(encoder, len(built))
        self.encoder[: self.frozen].requires_grad_(False)
        channels, height, width = map_shape(self.encoder, encoder)
        flatten = encoder.name == PAPER and settings.pool == "flatten"
        self.pool: nn.Module = (
            nn.Flatten() if flatten else nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.project = nn.Linear(channels * height * width if flatten else channels, settings.features)
        self.attention_v = nn.Linear(settings.features, ATTENTION_HIDDEN)
        self.attention_u = nn.Linear(settings.features, ATTENTION_HIDDEN)
        self.attention_w = nn.Linear(ATTENTION_HIDDEN, 1)
        self.classifier = nn.Linear(settings.features, 1)
        self.train()  # of frozen blocks: evaluation; Lightning keeps the modes it finds

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation mode; frozen blocks, and their batch norms, stay in evaluation mode."""
        super().train(mode)
        self.encoder[: self.frozen].eval()
        return self

    def pictures(self, *, slices: int = 0) -> Pictures:
        """What makes the pictures that the encoder reads; `slices` as in `Pictures`."""
        reads = self.encoder_settings
        return Pictures(reads.windows, reads.size, neighbours=reads.neighbours, slices=slices)

    @torch.no_grad()
    def frozen_maps(self, pictures: Tensor, *, blocks: int | None = None) -> Tensor:
        """(n, C, S, S) pictures to the maps (n, F, h, w) of the frozen blocks, or of the lowest `blocks`.

        Of no block they are the pictures.
        """
        blocks = self.frozen if blocks is None else blocks
        if not blocks:
            return pictures
        lower = self.encoder[:blocks]
        chunks = pictures.contiguous(memory_format=torch.channels_last).split(self.settings.chunk_slices)
        return torch.cat([lower(chunk) for chunk in chunks])

    def features_of_maps(self, maps: Tensor) -> Tensor:
        """(n, F, h, w) encoder maps to (n, D) features."""
        features: Tensor = self.project(self.dropout(self.pool(maps)))
        return features

    def _encode_chunk(self, maps: Tensor, blocks: int) -> Tensor:
        upper = self.encoder[blocks:]
        return self.features_of_maps(upper(maps.contiguous(memory_format=torch.channels_last)))

    def encode(self, pictures: Tensor) -> Tensor:
        """(N, C, S, S) pictures to (N, D) features, `chunk_slices` at a time."""
        return self.encode_maps(self.frozen_maps(pictures))

    def encode_maps(self, maps: Tensor, *, blocks: int | None = None) -> Tensor:
        """(N, F, h, w) of `frozen_maps` to (N, D) features, `chunk_slices` at a time."""
        blocks = self.frozen if blocks is None else blocks
        count = -(-len(maps) // self.settings.chunk_slices)
        if self.encoder.training:
            # as many on every rank, because batch norm waits for the others in each
            count = int(these_ranks().most(torch.tensor(float(count))))
        if count == 1:
            return self._encode_chunk(maps, blocks)
        # each takes every `count`-th slice: its batch statistics are then about those of all, and not of one
        # scan, or in a warm-up of those with blood, which would tell the label
        places = torch.arange(len(maps), device=maps.device)
        back = torch.cat([places[first::count] for first in range(count)]).argsort()  # (N,)
        chunks = [maps[first::count] for first in range(count)]
        if not torch.is_grad_enabled():
            return torch.cat([self._encode_chunk(chunk, blocks) for chunk in chunks])[back]
        # `torch.compile` fails on a checkpoint with a context; a decorator would take a second to import
        again = torch.compiler.disable(self._encode_again)
        return torch.cat([again(chunk, blocks) for chunk in chunks])[back]

    def _encode_again(self, maps: Tensor, blocks: int) -> Tensor:
        """A chunk whose activations are recomputed in the backward pass."""
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
            offsets: (B + 1,) int64; kept on the CPU they are checked without waiting for a GPU.

        Returns:
            `BagOutput`, float32 also where the encoder computes in bfloat16.

        Raises:
            ValueError: a scan without slices, or offsets of another number of pictures.
        """
        return self.classify(self.frozen_maps(pictures), offsets)

    def classify(self, maps: Tensor, offsets: Tensor, *, blocks: int | None = None) -> BagOutput:
        """As `forward`, from the `frozen_maps` (N, F, h, w) of the pictures by as many `blocks`."""
        bags = bag_index(offsets).to(maps.device, non_blocking=True)
        if len(bags) != len(maps):
            raise ValueError(f"offsets of {len(bags)} slices do not fit {len(maps)} pictures")
        n_bags = len(offsets) - 1
        features = self.encode_maps(maps, blocks=blocks).to(self.classifier.weight)  # (N, D)
        with torch.autocast(maps.device.type, enabled=False):
            V, U = self.attention_v(features), self.attention_u(features)
            gate = torch.tanh(V) * torch.sigmoid(U)  # (N, 64)
            attention = bag_softmax(self.attention_w(gate).squeeze(-1), bags, n_bags)  # (N,)
            slice_logit = self.classifier(features).squeeze(-1)  # (N,)
            scan_logit = bag_sum(attention * slice_logit, bags, n_bags)  # (B,)
        return BagOutput(scan_logit, slice_logit, attention, features)


@contextmanager
def _kept_running_statistics(module: nn.Module) -> Iterator[None]:
    """Recomputing a chunk must not move the running means of batch norm, nor count, a second time."""
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

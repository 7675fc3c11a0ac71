"""The attention CNN: windowed slices of scans to scan probabilities, trained on scan labels alone.

Slices are encoded one by one, pooled by gated attention within their scan (Ilse et al. 2018, as used in
Castro-Macías et al. 2024, section 6.3, and the authors' notebooks) and classified. Bags are packed, never
padded.

    h_n = W vec(encoder(x_n))                                    (D,)  the features the Gaussian process gets
    a_n = softmax over the scan of  wᵀ(tanh(V h_n) ∘ sigmoid(U h_n))
    logit_b = vᵀ Σ_n a_n h_n + c = Σ_n a_n (vᵀ h_n + c)

The last line holds because the weights of a scan sum to 1: so `vᵀ h_n + c` is what the CNN itself says of
slice n, and its sigmoid is the CNN's slice probability.

Shapes: B scans, N slices (packed), C windows, S pixels, D features.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ich_mil.kernels.segments import bag_index, bag_softmax, bag_sum
from ich_mil.models.encoders import PAPER, build_encoder, map_channels
from ich_mil.models.shared_norm import right_statistics
from ich_mil.ranks import these_ranks

ATTENTION_HIDDEN = 64
"""Hidden units of the gated attention, as in the authors' notebooks."""


@dataclass(frozen=True)
class CnnSettings:
    """The CNN's shape.

    Attributes:
        backbone: `paper`, or a torchvision model such as `resnet18`.
        weights: local weight file of a torchvision backbone.
        image_size: side S of the input in pixels; the papers use 512.
        features: D.
        dropout: on the encoder's output, in [0, 1).
        pool: how the map of the `paper` encoder becomes a vector: `flatten`, as in the papers, or its `mean`,
            which knows a bleed in every place once it knows it in one: for few scans. The maps of
            torchvision's encoders are always averaged.
        chunk_slices: slices encoded at a time. Longer batches are encoded in chunks, of k chunks each every
            k-th slice; in training each chunk's activations are recomputed in the backward pass, and batch
            norm uses the statistics of the chunk.
    """

    backbone: str = PAPER
    weights: Path | None = None
    image_size: int = 512
    features: Literal[8, 32, 128] = 8
    dropout: float = 0.3
    pool: Literal["flatten", "mean"] = "flatten"
    chunk_slices: int = 256

    def __post_init__(self) -> None:
        if not 32 <= self.image_size <= 1024:
            raise ValueError(f"cnn.image_size must lie in 32..1024, got {self.image_size}")
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
    """Encoder, dense features, gated attention, classifier. Usable without a Trainer."""

    def __init__(self, settings: CnnSettings, *, windows: int) -> None:
        """Build with random weights; `windows` is C. `ModelError` for a backbone that cannot be built."""
        super().__init__()
        self.chunk_slices = settings.chunk_slices
        encoder = build_encoder(
            settings.backbone, windows=windows, image_size=settings.image_size, weights=settings.weights
        )
        # channels last halves the time of a step on CPUs, and is what tensor cores read
        self.encoder: nn.Module = right_statistics(encoder).to(memory_format=torch.channels_last)
        channels, height, width = map_channels(
            self.encoder, settings.backbone, windows=windows, image_size=settings.image_size
        )
        flatten = settings.backbone == PAPER and settings.pool == "flatten"
        self.pool: nn.Module = (
            nn.Flatten() if flatten else nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.project = nn.Linear(channels * height * width if flatten else channels, settings.features)
        self.attention_v = nn.Linear(settings.features, ATTENTION_HIDDEN)
        self.attention_u = nn.Linear(settings.features, ATTENTION_HIDDEN)
        self.attention_w = nn.Linear(ATTENTION_HIDDEN, 1)
        self.classifier = nn.Linear(settings.features, 1)

    def encode_maps(self, pictures: Tensor) -> Tensor:
        """(n, C, S, S) pictures to (n, F, h, w) encoder maps."""
        maps: Tensor = self.encoder(pictures.contiguous(memory_format=torch.channels_last))
        return maps

    def features_of_maps(self, maps: Tensor) -> Tensor:
        """(n, F, h, w) encoder maps to (n, D) features."""
        features: Tensor = self.project(self.dropout(self.pool(maps)))
        return features

    def _encode_chunk(self, pictures: Tensor) -> Tensor:
        return self.features_of_maps(self.encode_maps(pictures))

    def encode(self, pictures: Tensor) -> Tensor:
        """(N, C, S, S) pictures to (N, D) features, `chunk_slices` at a time."""
        count = -(-len(pictures) // self.chunk_slices)
        if self.encoder.training:
            # as many on every rank, because batch norm waits for the others in each
            count = int(these_ranks().most(torch.tensor(float(count))))
        if count == 1:
            return self._encode_chunk(pictures)
        # each takes every `count`-th slice: its batch statistics are then about those of all, and not of one
        # scan, or in a warm-up of those with blood, which would tell the label
        places = torch.arange(len(pictures), device=pictures.device)
        back = torch.cat([places[first::count] for first in range(count)]).argsort()  # (N,)
        chunks = [pictures[first::count] for first in range(count)]
        if not torch.is_grad_enabled():
            return torch.cat([self._encode_chunk(chunk) for chunk in chunks])[back]
        # `torch.compile` fails on a checkpoint with a context; a decorator would take a second to import
        again = torch.compiler.disable(self._encode_again)
        return torch.cat([again(chunk) for chunk in chunks])[back]

    def _encode_again(self, pictures: Tensor) -> Tensor:
        """A chunk whose activations are recomputed in the backward pass."""
        features: Tensor = checkpoint(
            self._encode_chunk,
            pictures,
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
        bags = bag_index(offsets).to(pictures.device, non_blocking=True)
        if len(bags) != len(pictures):
            raise ValueError(f"offsets of {len(bags)} slices do not fit {len(pictures)} pictures")
        n_bags = len(offsets) - 1
        features = self.encode(pictures).to(pictures)  # (N, D)
        with torch.autocast(pictures.device.type, enabled=False):
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

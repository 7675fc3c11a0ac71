"""Settings of the slice encoder and of the attention CNN; importable without torch."""

from dataclasses import dataclass
from typing import Literal

from ich_mil.window_presets import Windows, parse_windows

PAPER = "paper"


@dataclass(frozen=True)
class EncoderSettings:
    """Settings of the slice encoder and its input pictures.

    Blocks are the modules of the encoder's trunk in order: stem layers, then stages.

    Attributes:
        name: `paper`, or a timm or torchvision model with a convolutional trunk, such as
            `tf_efficientnet_lite0` or `resnet18`.
        weights: initial weights of a timm or torchvision model: a file (safetensors, or a state dict that
            `torch.load(weights_only=True)` reads), an installed package that holds one such file, or the name
            of a repository on the Hugging Face hub, `owner/name`. None: random values.
        size: side S of the pictures in pixels; the papers use 512.
        channels: display windows, one channel each: `papers`, `winners`, or a list of [level, width] in HU.
        neighbours: number of slices above and below whose windows are further channels (2.5D); 0 uses each
            slice alone.
        blocks: number of lower blocks to use; None: all. Fewer blocks have fewer weights and finer maps.
        crop: crop each scan to the head before resizing (`ich_mil.dicom.head_box`).
        freeze: blocks that keep their initial weights: `none`, `all`, or a number of lower blocks.
    """

    name: str = PAPER
    weights: str | None = None
    size: int = 512
    channels: str | list[list[float]] = "papers"
    neighbours: Literal[0, 1] = 0
    blocks: int | None = None
    crop: bool = False
    freeze: int | Literal["all", "none"] = "none"

    def __post_init__(self) -> None:
        parse_windows(self.channels)
        if not 32 <= self.size <= 1024:
            raise ValueError(f"encoder.size must lie in 32..1024, got {self.size}")
        if self.neighbours not in (0, 1):
            raise ValueError(f"encoder.neighbours must be 0 or 1, got {self.neighbours}")
        if self.blocks is not None and self.blocks < 1:
            raise ValueError(f"encoder.blocks must be at least 1, got {self.blocks}")
        number = isinstance(self.freeze, int) and not isinstance(self.freeze, bool) and self.freeze >= 0
        if not number and self.freeze not in ("all", "none"):
            raise ValueError(
                f"encoder.freeze must be all, none or a number of blocks from 0 up, got {self.freeze!r}"
            )

    @property
    def windows(self) -> Windows:
        """Display windows, (level, width) in HU."""
        return parse_windows(self.channels)

    @property
    def n_channels(self) -> int:
        """Number of channels C: windows of the slice and of its neighbours."""
        return len(self.windows) * (1 + 2 * self.neighbours)


@dataclass(frozen=True)
class CnnSettings:
    """Settings of the layers after the slice encoder.

    Attributes:
        features: number of features D.
        dropout: dropout probability of the pooled encoder output, in [0, 1).
        pool: pooling of the feature map of the `paper` encoder: `flatten`, as in the papers, or `mean`. The
            mean is invariant to the position of a bleed, which helps with few scans. The maps of all other
            encoders are always averaged.
        chunk_slices: largest number of slices encoded at once. Larger batches are encoded in k chunks, and
            each chunk takes every k-th slice. In training the activations of each chunk are recomputed in the
            backward pass, and batch norm uses the statistics of the chunk.
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

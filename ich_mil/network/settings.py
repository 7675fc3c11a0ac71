"""Settings of the slice encoder and of the attention CNN; importable without torch."""

import re
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ich_mil.study.window_presets import HIGHEST, LOWEST, Windows, parse_windows

PAPER = "paper"
AGGREGATORS = ("attention", "mean", "max", "transformer")
"""Aggregators of `ich_mil.network.aggregators`."""
FOREIGN = r"\w+(\.\w+)*:\w+"
"""Names of aggregators of other packages, `package.module:Class`."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class EncoderSettings:
    """Settings of the slice encoder and its input pictures.

    Blocks are the modules of the encoder's trunk in order: stem layers, then stages.

    Attributes:
        name: `paper`, or a timm model with a convolutional trunk, such as `tf_efficientnet_lite0`.
        weights: initial weights of a timm model: a file (safetensors, or a state dict that
            `torch.load(weights_only=True)` reads), an installed package that holds one such file, or the name
            of a repository on the Hugging Face hub, `owner/name`. None: random values.
        size: side S of the pictures in pixels; the papers use 512.
        channels: display windows, one channel each: `papers`, `winners`, or a list of [level, width] in HU.
        neighbours: number of slices above and below whose windows are further channels (2.5D); 0 uses each
            slice alone.
        blocks: number of lower blocks to use; None: all. Fewer blocks have fewer weights and finer maps.
        crop: crop each scan to the head before resizing (`ich_mil.study.head_box`).
        freeze: blocks that keep their initial weights: `none`, `all`, or a number of lower blocks.
    """

    name: str = PAPER
    weights: str | None = None
    size: Annotated[int, Field(ge=32, le=1024)] = 512
    channels: str | list[list[float]] = "papers"
    neighbours: Literal[0, 1] = 0
    blocks: Annotated[int, Field(ge=1)] | None = None
    crop: bool = False
    freeze: Annotated[int, Field(ge=0)] | Literal["all", "none"] = "none"

    def __post_init__(self) -> None:
        for level, width in parse_windows(self.channels):
            if level - width / 2 < LOWEST or level + width / 2 > HIGHEST:
                raise ValueError(
                    f"channels: [{level:g}, {width:g}] reaches beyond {LOWEST} to {HIGHEST} HU, which "
                    "prepared sets keep; choose a narrower window"
                )

    @property
    def windows(self) -> Windows:
        """Display windows, (level, width) in HU."""
        return parse_windows(self.channels)

    @property
    def n_channels(self) -> int:
        """Number of channels C: windows of the slice and of its neighbours."""
        return len(self.windows) * (1 + 2 * self.neighbours)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class CnnSettings:
    """Settings of the layers after the slice encoder.

    Attributes:
        features: number of features D.
        pool: pooling of the feature map of the `paper` encoder: `flatten`, as in the papers, or `mean`. The
            mean is invariant to the position of a bleed, which helps with few scans. The maps of all other
            encoders are always averaged.
        aggregator: aggregator of the slices of a scan: `attention`, `mean`, `max`, `transformer`, or
            `package.module:Class`, a `torch.nn.Module` with the contract of `ich_mil.network.aggregators`.
            Its module is imported where the network is trained or loaded.
    """

    features: Literal[8, 32, 128] = 8
    pool: Literal["flatten", "mean"] = "flatten"
    aggregator: str = "attention"

    def __post_init__(self) -> None:
        if self.aggregator not in AGGREGATORS and not re.fullmatch(FOREIGN, self.aggregator):
            known = ", ".join(AGGREGATORS)
            raise ValueError(f"aggregator: must be {known} or package.module:Class, got {self.aggregator!r}")

"""Slice encoders, pictures (n, C, S, S) to maps (n, F, h, w): the papers' CNN and models of timm.

The papers' CNN has one 5x5 convolution with 16 channels (same padding), then 3x3 convolutions with 32
channels (valid padding), each followed by ReLU, BatchNorm and 2x2 max pooling. At 512 pixels, six blocks
result in a 6x6 map. At other sizes the last map is the smallest with at least 6x6 cells.

A timm model is used up to its last feature map, as a sequence of blocks. The first block
standardises the pictures as expected by the weights of the model.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ich_mil.errors import ModelError
from ich_mil.network.settings import PAPER, EncoderSettings
from ich_mil.network.weights import adapt_channels, load_weights

SMALLEST_MAP = 6
"""Cells per side of the papers' last feature map."""


def paper_encoder(channels: int, size: int) -> nn.Sequential:
    """Build the papers' convolutional blocks, (n, C, S, S) to (n, 32, h, h) with h >= 6."""
    blocks = [_block(nn.Conv2d(channels, 16, 5, padding="same"))]
    side = size // 2
    width = 16
    while (side - 2) // 2 >= SMALLEST_MAP:
        blocks.append(_block(nn.Conv2d(width, 32, 3)))
        side, width = (side - 2) // 2, 32
    return nn.Sequential(*blocks)


def _block(convolution: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(convolution, nn.ReLU(), nn.BatchNorm2d(convolution.out_channels), nn.MaxPool2d(2))


class _Standardise(nn.Module):
    """Standardise pictures in [0, 1] per channel, with the mean and deviation of the pretraining data."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], channels: int) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            each = torch.tensor(values)
            if len(each) != channels:  # the channels do not correspond to red, green and blue
                each = each.mean().expand(channels)
            self.register_buffer(name, each.clone()[:, None, None], persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Standardise (n, C, S, S); same shape."""
        return (pictures - self.mean) / self.std


def build_encoder(settings: EncoderSettings) -> nn.Sequential:
    """Build the encoder, a sequence of blocks, with its initial weights.

    Raises:
        ModelError: an unknown name, a model without a convolutional trunk or with fewer blocks than
            requested, an unsupported number of channels or picture size, or weights that do not load.
    """
    encoder = _whole(settings)
    for name, blocks in (("blocks", settings.blocks), ("freeze", settings.freeze)):
        if isinstance(blocks, int) and blocks > len(encoder):
            raise ModelError(
                f"encoder {settings.name!r} has {len(encoder)} blocks; lower encoder.{name}, {blocks}"
            )
    return encoder[: settings.blocks]


def _whole(settings: EncoderSettings) -> nn.Sequential:
    if settings.name == PAPER:
        if settings.weights is not None:
            raise ModelError(
                f"{settings.weights}: the paper's CNN has no weight file; leave encoder.weights empty"
            )
        return paper_encoder(settings.n_channels, settings.size)
    import timm  # slow to import (seconds), so imported only if needed

    if settings.name not in timm.list_models():
        raise ModelError(f"encoder {settings.name!r} is neither {PAPER!r} nor a model of timm")
    channels = settings.n_channels
    pretrained = timm.models.get_pretrained_cfg(settings.name) or timm.models.PretrainedCfg()
    fixed: dict[str, Any] = {"img_size": settings.size} if pretrained.fixed_input_size else {}
    try:
        model: Any = timm.create_model(settings.name, num_classes=0, in_chans=channels, **fixed)
        if settings.weights is not None:
            donor = timm.create_model(settings.name, num_classes=0, **fixed)
            load_weights(donor, settings.weights)
            model.load_state_dict(adapt_channels(donor.state_dict(), pretrained.first_conv, channels))
    except (AssertionError, RuntimeError) as error:  # a transformer whose windows do not fit the picture size
        raise ModelError(
            f"encoder {settings.name!r} cannot be built for {settings.size} pixels ({error})"
        ) from error
    standardise = _Standardise(pretrained.mean, pretrained.std, channels)
    encoder = _blocks(model, standardise)
    side = settings.size if fixed else pretrained.input_size[-1]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()
            pictures = torch.rand(1, channels, side, side)
            maps = model.forward_features(standardise(pictures))
            is_map = maps.ndim == 4 and maps.shape[1] == model.num_features
            if is_map and torch.equal(maps, encoder(pictures)):
                return encoder
    except (RuntimeError, ValueError, TypeError, AssertionError, AttributeError):
        pass  # the model's forward is more than its modules in sequence
    finally:
        model.train()
    return nn.Sequential(_LastMap(model, standardise))


class _LastMap(nn.Module):
    def __init__(self, model: nn.Module, standardise: _Standardise) -> None:
        super().__init__()
        self.model: Any = model
        self.standardise = standardise

    def forward(self, pictures: Tensor) -> Tensor:
        """Last feature map (n, F, h, w) of pictures (n, C, S, S)."""
        maps: Tensor = self.model.forward_intermediates(
            self.standardise(pictures), indices=1, norm=True, output_fmt="NCHW", intermediates_only=True
        )[0]
        return maps


def _blocks(model: nn.Module, standardise: _Standardise) -> nn.Sequential:
    """Blocks of a timm model up to its last map: its modules in order, with `nn.Sequential`s unpacked."""
    blocks: list[nn.Module] = []
    for name, child in model.named_children():
        if name in ("global_pool", "pre_logits", "head"):
            break
        blocks += child if isinstance(child, nn.Sequential) else [child]
    first, *others = (block for block in blocks if not isinstance(block, nn.Identity))
    return nn.Sequential(nn.Sequential(standardise, first), *others)


def map_shape(encoder: nn.Module, settings: EncoderSettings) -> tuple[int, int, int]:
    """Shape (F, h, w) of an encoder's output map, from a forward pass on a blank slice.

    `ModelError` if the pictures are too small: a map is empty, or has one value per channel before a batch
    norm.
    """
    # A copy in training mode: batch norm then refuses a single value, but also updates its statistics.
    dry = copy.deepcopy(encoder).train()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # some models drop layers at random
            maps: Tensor = dry(torch.zeros(1, settings.n_channels, settings.size, settings.size))
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"encoder {settings.name!r} leaves too little of {settings.size} pixels ({error}); raise "
            "encoder.size, or take an encoder that shrinks pictures less"
        ) from error
    return maps.shape[1], maps.shape[2], maps.shape[3]


def frozen_blocks(settings: EncoderSettings, blocks: int) -> int:
    """Number of lower blocks that keep their initial weights, of `blocks` in total."""
    if isinstance(settings.freeze, int):
        return min(settings.freeze, blocks)
    return blocks if settings.freeze == "all" else 0

"""Slice encoders, (n, C, S, S) pictures to (n, F, h, w) maps: the papers' CNN, or a torchvision backbone.

The papers' CNN: one 5x5 convolution of 16 channels (same padding), then 3x3 convolutions of 32 (valid), each
followed by ReLU, BatchNorm and 2x2 max pooling. At 512 pixels six blocks end at 6x6. At other sizes as many
blocks are used as bring the map down to 6x6 or just above, so 128 pixels have four blocks and the same
flattened length of 1152.
"""

import copy
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ich_mil.errors import ModelError

PAPER = "paper"
SMALLEST_MAP = 6
"""The papers' last map is 6x6."""


class PaperEncoder(nn.Sequential):
    """The papers' convolutions, (n, C, S, S) to (n, 32, h, h) with h >= 6."""

    def __init__(self, windows: int, image_size: int) -> None:
        blocks = [_block(nn.Conv2d(windows, 16, 5, padding="same"))]
        side = image_size // 2
        channels = 16
        while (side - 2) // 2 >= SMALLEST_MAP:
            blocks.append(_block(nn.Conv2d(channels, 32, 3)))
            side, channels = (side - 2) // 2, 32
        super().__init__(*blocks)


def _block(convolution: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(convolution, nn.ReLU(), nn.BatchNorm2d(convolution.out_channels), nn.MaxPool2d(2))


def build_encoder(backbone: str, *, windows: int, image_size: int, weights: Path | None) -> nn.Module:
    """The encoder named `backbone`.

    Args:
        backbone: `paper`, or a torchvision classification model with a convolutional trunk, such as
            `resnet18`.
        windows: input channels C.
        image_size: S in pixels.
        weights: local state dict (safetensors or .pth) of the torchvision model; None starts from
            random values.

    Raises:
        ModelError: an unknown backbone, channels that do not fit it, or weights that do not load.
    """
    if backbone == PAPER:
        if weights is not None:
            raise ModelError(f"{weights}: the paper's CNN has no weight file; leave cnn.weights empty")
        return PaperEncoder(windows, image_size)
    import torchvision  # takes two seconds, which only its own backbones are worth

    if backbone not in torchvision.models.list_models(module=torchvision.models):
        raise ModelError(f"backbone {backbone!r} is neither {PAPER!r} nor a torchvision classification model")
    if windows != 3:
        raise ModelError(f"backbone {backbone!r} takes 3 windows, the configuration has {windows}")
    model = torchvision.models.get_model(backbone, weights=None)
    if weights is not None:
        _load_weights(model, weights)
    if isinstance(model, torchvision.models.DenseNet):
        model.features.append(nn.ReLU())  # its own forward applies one after them
    # Swin's features have their channels last
    if hasattr(model, "features") and not isinstance(model, torchvision.models.SwinTransformer):
        return model.features
    if hasattr(model, "layer4"):  # the ResNet family
        names = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
        return nn.Sequential(*(getattr(model, name) for name in names))
    raise ModelError(f"backbone {backbone!r} has no convolutional trunk that keeps a map; take resnet18, say")


def _load_weights(model: nn.Module, path: Path) -> None:
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, weights_only=True, map_location="cpu")  # it may be of a GPU
        model.load_state_dict(state)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"{path}: cannot be loaded as weights of {type(model).__name__} ({reason:.200}); name a state "
            "dict of this backbone, or leave cnn.weights empty"
        ) from error


def map_channels(encoder: nn.Module, backbone: str, *, windows: int, image_size: int) -> tuple[int, int, int]:
    """Shape (F, h, w) of the map of the encoder named `backbone`, found by one dry run on one slice.

    Raises:
        ModelError: nothing is left of pictures of that size, or one value for a batch norm.
    """
    dry = copy.deepcopy(encoder).train()  # in training a batch norm refuses a single value, and moves
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # some drop layers by chance
            maps: Tensor = dry(torch.zeros(1, windows, image_size, image_size))
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"backbone {backbone!r} leaves too little of {image_size} pixels ({error}); raise "
            "cnn.image_size, or take a backbone that shrinks pictures less"
        ) from error
    return maps.shape[1], maps.shape[2], maps.shape[3]


class EncoderParts(NamedTuple):
    """An encoder cut in two; what the first part gives, the rest takes.

    Attributes:
        first: pictures (n, C, S, S) to maps (n, F, h, h).
        rest: those maps to the encoder's last ones.
        left: upper and left edge of the first cell of the map between them, in pixels of the picture.
        pitch: side of a cell, in pixels.
    """

    first: nn.Sequential
    rest: nn.Sequential
    left: float
    pitch: float


def split_encoder(encoder: nn.Module, *, windows: int, image_size: int, side: int) -> EncoderParts:
    """Cut an encoder after the first of its modules whose map has at most `side` cells a side.

    Where no map is that small, `rest` is empty; `first` never is. A module that maps `before` cells to
    `after` is taken to join r = before / after of them, rounded, and to lose what is left over on both sides
    alike, one more on the right and below where their number is odd: so do valid convolutions with pooling.
    """
    assert isinstance(encoder, nn.Sequential)  # as all that `build_encoder` gives
    modules = list(encoder)
    training = encoder.training
    encoder.eval()
    maps = next(encoder.parameters()).new_zeros(1, windows, image_size, image_size)
    left, pitch, cut = 0.0, 1.0, 0
    with torch.no_grad():
        while cut == 0 or (cut < len(modules) and maps.shape[-1] > side):
            before = maps.shape[-1]
            maps = modules[cut](maps)
            joined = round(before / maps.shape[-1])
            left += pitch * int((before - joined * maps.shape[-1]) / 2)
            pitch *= joined
            cut += 1
    encoder.train(training)
    return EncoderParts(nn.Sequential(*modules[:cut]), nn.Sequential(*modules[cut:]), left, pitch)

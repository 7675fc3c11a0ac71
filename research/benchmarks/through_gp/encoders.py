"""Encoders of instances, trained below attention or below the Gaussian process.

Shapes: N instances, K inputs, D features; F channels of h x w cells.
"""

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.frozen import extract_features
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.store import joined, open_prepared

ROOT = Path(__file__).resolve().parents[3]
BUNDLED = ROOT / "checkpoints" / "headct-base" / "member_0"
"""Network of the bundled model, which learned from no label of the scans below."""
PREPARED = [ROOT / "data" / "headct_base" / name for name in ("train", "also_1")]
"""Prepared CT-ICH scans and RSNA studies of `configs/headct_base.yaml`."""


class Encoder(nn.Module):
    """Inputs (N, K) to features (N, D).

    Attributes:
        features: D.
        rate: learning rate.
        epochs, patience: longest fit, and the epochs without a gain that end it.
        standardise: whether inputs are standardised by the training bags.
    """

    features: int
    rate: ClassVar[float]
    epochs: ClassVar[int]
    patience: ClassVar[int]
    standardise: ClassVar[bool]

    def untrained(self, x: Tensor) -> Tensor:
        """Features (N, D) that take no training here."""
        raise NotImplementedError


class Perceptron(Encoder):
    """Two layers and a residual block."""

    rate, epochs, patience, standardise = 3e-3, 60, 15, True

    def __init__(self, inputs: int, *, hold: bool) -> None:
        """`hold`: bound the stretch of each layer by spectral normalisation."""
        super().__init__()
        wrap = spectral_norm if hold else (lambda layer: layer)
        self.features, width = 8, 32
        self.first = wrap(nn.Linear(inputs, width))
        self.block = wrap(nn.Linear(width, width))
        self.last = wrap(nn.Linear(width, self.features))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, D)."""
        h = self.first(x)
        h = h + self.dropout(torch.relu(self.block(h)))
        features: Tensor = self.last(h)
        return features

    def untrained(self, x: Tensor) -> Tensor:
        """The inputs themselves."""
        return x


class UpperBlock(Encoder):
    """Last block and projection of a trained network, on its flattened maps (N, F h w) below them."""

    rate, epochs, patience, standardise = 1e-3, 6, 3, False

    def __init__(self, network: AttentionCnn, shape: tuple[int, int, int], *, hold: bool) -> None:
        """Copy the weights of the network; `shape` (F, h, w) of the maps.

        `hold` changes nothing: spectral normalisation would overwrite the trained weights.
        """
        super().__init__()
        self.features, self.shape = network.settings.features, shape
        last = network.encoder[-1]
        assert isinstance(last, nn.Sequential)
        self.block, self.project = copy.deepcopy(last[-1]), copy.deepcopy(network.project)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; batch norms keep the statistics of the network's training."""
        super().train(mode)
        self.block.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, D)."""
        maps = x.unflatten(1, self.shape).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.project(self.block(maps).mean((2, 3)))
        return features

    def untrained(self, x: Tensor) -> Tensor:
        """Features of the network as it was."""
        return self(x)


def maps_below(network: AttentionCnn, folders: Iterable[Path] = PREPARED) -> tuple[FeatureSet, Any]:
    """Whole scans of prepared sets with flattened maps below the last block, and their shape (F, h, w)."""
    prepared = joined([open_prepared(folder) for folder in folders])
    scans = prepared.scans.index[prepared.scans.slices > 1].tolist()
    top, below = network.encoder[-1], []
    assert isinstance(top, nn.Sequential)
    with top[-1].register_forward_pre_hook(lambda _, inputs: below.append(inputs[0])):
        features = extract_features(network, prepared, scans)
    maps = torch.cat(below)
    return replace(features, x=maps.flatten(1)), maps.shape[1:]


def parameter_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Parameters to train, those of `module.encoder` with its own learning rate."""
    assert isinstance(module.encoder, Encoder)
    learned = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    own, others = ([p for name, p in learned if name.startswith("encoder.") is of] for of in (True, False))
    return [{"params": own, "lr": module.encoder.rate}, {"params": others}]

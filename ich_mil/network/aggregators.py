"""Aggregators: scan logits from the packed features of slices.

An aggregator is a `torch.nn.Module`, built from the number of features D and called with

    features: (N, D) float32 features of the slices, lowest slice of each scan first,
    offsets: (B + 1,) int64 offsets of the scans, on the CPU, checked (`kernels.segments.bag_index`),

that returns the scan logits (B,) float32. The slice logit of every aggregator is the scan logit of a scan
that consists of this slice alone. With l_n = vᵀ h_n + c:

    attention    Σ_n a_n l_n,  a_n = softmax over the scan of  wᵀ(tanh(V h_n) ∘ sigmoid(U h_n))
    mean         Σ_n l_n / n
    max          max_n l_n
    transformer  the attention formula for  h' = one pre-norm layer of self-attention over  h_n + p_n

Gated attention is that of Ilse et al. 2018 (as used in Castro-Macías et al. 2024, section 6.3, and the
authors' notebooks), p_n the sinusoidal position of Vaswani et al. 2017, pre-norm as in Xiong et al. 2020. The
slice logit of `attention`, `mean` and `max` is l_n.

Shapes: B scans, N slices (packed), D features, L slices of the longest scan.
"""

from importlib import import_module

import torch
from torch import Tensor, nn

from ich_mil.errors import ModelError
from ich_mil.kernels.segments import bag_index, bag_max, bag_softmax, bag_sum

ATTENTION_HIDDEN = 64
"""Hidden units of the gated attention, as in the authors' notebooks."""
HEAD_WIDTH = 8
"""Features of each head of the self-attention; D is a multiple of it."""
LONGEST_PERIOD = 10_000.0
"""Base of the periods of the sinusoidal positions (Vaswani et al. 2017, section 3.5)."""


def single_slices(features: Tensor) -> Tensor:
    """Offsets (N + 1,) that make each slice of features (N, D) a scan of its own."""
    return torch.arange(len(features) + 1)


class Mean(nn.Module):
    """Mean of the slice logits."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(features, 1)

    def forward(self, features: Tensor, offsets: Tensor) -> Tensor:
        """Scan logits (B,)."""
        bags = bag_index(offsets).to(features.device, non_blocking=True)
        sizes = offsets.diff().to(features.device, non_blocking=True)
        return bag_sum(self.classifier(features).squeeze(-1), bags, len(sizes)) / sizes


class Max(nn.Module):
    """Largest slice logit; the gradient reaches one slice of each scan."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(features, 1)

    def forward(self, features: Tensor, offsets: Tensor) -> Tensor:
        """Scan logits (B,)."""
        bags = bag_index(offsets).to(features.device, non_blocking=True)
        return bag_max(self.classifier(features).squeeze(-1), bags, len(offsets) - 1)


class Attention(nn.Module):
    """Gated attention: mean of the slice logits with learned weights."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.V = nn.Linear(features, ATTENTION_HIDDEN)
        self.U = nn.Linear(features, ATTENTION_HIDDEN)
        self.w = nn.Linear(ATTENTION_HIDDEN, 1)
        self.classifier = nn.Linear(features, 1)

    def weights(self, features: Tensor, offsets: Tensor) -> Tensor:
        """Attention weights (N,), which sum to 1 in each scan."""
        bags = bag_index(offsets).to(features.device, non_blocking=True)
        gate = torch.tanh(self.V(features)) * torch.sigmoid(self.U(features))  # (N, 64)
        return bag_softmax(self.w(gate).squeeze(-1), bags, len(offsets) - 1)

    def forward(self, features: Tensor, offsets: Tensor) -> Tensor:
        """Scan logits (B,)."""
        weights = self.weights(features, offsets)  # first: the order fixes the rounding of gradients
        bags = bag_index(offsets).to(features.device, non_blocking=True)
        return bag_sum(weights * self.classifier(features).squeeze(-1), bags, len(offsets) - 1)


class Transformer(nn.Module):
    """Self-attention among the slices of a scan, then gated attention.

    Scans are padded to the longest of the batch and masked. A slice knows its position from the lowest slice.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            features, features // HEAD_WIDTH, 4 * features, batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(features)
        self.encoder = nn.TransformerEncoder(layer, 1, norm, enable_nested_tensor=False)
        self.pool = Attention(features)

    def encode(self, features: Tensor, offsets: Tensor) -> Tensor:
        """Features (N, D) in the context of their scans."""
        steps = torch.arange(int(offsets.diff().max()))  # (L,)
        rows = offsets[:-1, None] + steps  # (B, L)
        within = rows < offsets[1:, None]
        back = within.flatten().nonzero().squeeze(1).to(features.device)  # (N,)
        padded = features[rows.clamp(max=len(features) - 1).to(features.device)]  # (B, L, D)
        padded = padded + _positions(len(steps), features.shape[1]).to(features)
        encoded: Tensor = self.encoder(padded, src_key_padding_mask=~within.to(features.device))
        return encoded.flatten(0, 1)[back]

    def weights(self, features: Tensor, offsets: Tensor) -> Tensor:
        """Attention weights (N,) of the pooling, which sum to 1 in each scan."""
        return self.pool.weights(self.encode(features, offsets), offsets)

    def forward(self, features: Tensor, offsets: Tensor) -> Tensor:
        """Scan logits (B,)."""
        logits: Tensor = self.pool(self.encode(features, offsets), offsets)
        return logits


def _positions(length: int, features: int) -> Tensor:
    """Sinusoidal positions (L, D) float64."""
    rates = LONGEST_PERIOD ** (-torch.arange(0, features, 2, dtype=torch.float64) / features)  # (D / 2,)
    angles = torch.arange(length)[:, None] * rates  # (L, D / 2)
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)


def build_aggregator(name: str, features: int) -> nn.Module:
    """Build the aggregator of `CnnSettings.aggregator` for D `features`.

    Raises:
        ModelError: a module of another package that cannot be imported or built, or that does not return the
            logits of two small scans.
    """
    if ":" in name:
        return _foreign(name, features)
    return {"attention": Attention, "mean": Mean, "max": Max, "transformer": Transformer}[name](features)


def _foreign(name: str, features: int) -> nn.Module:
    module, _, attribute = name.partition(":")
    what = f"cnn.aggregator {name}"
    try:
        kind = getattr(import_module(module), attribute)
    except Exception as error:  # whatever the code of the module raises
        raise ModelError(
            f"{what}: cannot be imported ({error!r:.200}); install it or add its folder to PYTHONPATH"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ModelError(f"{what}: is no class of torch.nn.Module; name one")
    contract = (
        "it must be built as Class(features) and map features (N, D) and offsets (B + 1,) to logits (B,)"
    )
    try:
        aggregator = kind(features).eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            x = torch.randn(4, features)
            outputs = [aggregator(x, offsets) for offsets in (torch.tensor([0, 3, 4]), single_slices(x))]
    except Exception as error:
        reason = f"fails on two scans of 3 and 1 slices ({error!r:.200})"
        raise ModelError(f"{what}: {reason}; {contract}") from error
    for logits, scans in zip(outputs, (2, 4), strict=True):
        if not isinstance(logits, Tensor):
            raise ModelError(f"{what}: returns {type(logits).__name__}, not a tensor; {contract}")
        if logits.shape != (scans,) or logits.dtype != x.dtype:
            returned = f"{logits.dtype} of shape {tuple(logits.shape)} for {scans} scans"
            raise ModelError(f"{what}: returns {returned}, not {x.dtype} ({scans},); {contract}")
    if others := [key for key, value in aggregator.state_dict().items() if not isinstance(value, Tensor)]:
        raise ModelError(f"{what}: its state {others[0]!r} is no tensor and could not be stored; remove it")
    return aggregator

"""Architectures of torchmil as modules of padded bags.

A module takes x (b, n, D), mask (b, n) and labels y (b,). It returns the logit of each bag
(b,), a score of each instance (b, n) as the model gives it (attention before the softmax, instance logit or
class activation), and the loss of each bag (b,). All share a first layer of `HIDDEN` units.

Shapes: b bags, n instances of a padded bag, D features, H units.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus
from torchmil.models import ABMIL, CLAM_SB, DSMIL, DTFDMIL, PatchGCN, SmABMIL, TransMIL

HIDDEN = 32
"""Number of units of the first layer and of the attention."""

NEAREST = 8
"""Number of instances at each end of the attention that CLAM clusters, as published."""

Outputs = tuple[Tensor, Tensor, Tensor]


def loss_of(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy (b,) of bag logits (b,)."""
    return binary_cross_entropy_with_logits(logits, y, reduction="none")


def first_layer(n_features: int) -> nn.Sequential:
    """First layer of all models."""
    return nn.Sequential(nn.Linear(n_features, HIDDEN), nn.ReLU())


def neighbours(mask: Tensor) -> Tensor:
    """Adjacency (b, n, n) of consecutive slices, D^-½ A D^-½ with the degrees D; 0 for one slice alone."""
    n = torch.arange(mask.shape[1])
    A = ((n[:, None] - n).abs() == 1) * mask[:, :, None] * mask[:, None]
    root = A.sum(2).clamp(min=1.0).rsqrt()
    return root[:, :, None] * A * root[:, None]


class Attention(nn.Module):
    """Gated attention MIL (Ilse et al. 2018)."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.model = ABMIL((n_features,), HIDDEN, gated=True, feat_ext=first_layer(n_features))

    def forward(self, x: Tensor, mask: Tensor, y: Tensor) -> Outputs:
        """Attention as score."""
        logits, attention = self.model(x, mask, return_att=True)
        return logits, attention, loss_of(logits, y)


class DualStream(nn.Module):
    """DSMIL (Li et al. 2021)."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.model = DSMIL((n_features,), HIDDEN, feat_ext=first_layer(n_features))

    def forward(self, x: Tensor, mask: Tensor, y: Tensor) -> Outputs:
        """Instance logit as score."""
        bag, instances = self.model(x, mask, return_inst_pred=True)
        largest = instances.amax(1)
        return (bag + largest) / 2, instances, loss_of(bag, y) + loss_of(largest, y)


class Clustered(nn.Module):
    """CLAM-SB (Lu et al. 2021), with its own instance loss.

    That of torchmil 1.0.2 broadcasts over pairs of instances: targets (n, 1) against classes (2,).
    """

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.model = CLAM_SB(
            (n_features,), HIDDEN, gated=True, k_sample=NEAREST, feat_ext=first_layer(n_features)
        )

    def forward(self, x: Tensor, mask: Tensor, y: Tensor) -> Outputs:
        """Attention as score."""
        logits, attention, h = self.model(x, mask, return_att=True, return_emb=True)
        return logits, attention, loss_of(logits, y) + self.clusters(attention, h, y)

    def clusters(self, attention: Tensor, h: Tensor, y: Tensor) -> Tensor:
        """Smooth SVM loss (b,) of the instances of largest and least attention; `h` (b, n, H)."""
        k = min(NEAREST, h.shape[1])
        ends = [(sign * attention).topk(k, 1).indices for sign in (1, -1)]
        top, low = (h.gather(1, place[:, :, None].expand(-1, -1, h.shape[2])) for place in ends)
        margins = []  # of class 1 over class 0, by the classifier of each class
        for classifier in self.model.inst_classifiers:
            of_top, of_low = (classifier(part).diff(dim=2)[:, :, 0] for part in (top, low))
            margins.append((of_top, of_low))
        of_class = []
        for own, other in ((0, 1), (1, 0)):
            inside = torch.cat([1 - margins[own][0], 1 + margins[own][1]], 1)
            of_class.append(softplus(inside).mean(1) + softplus(1 + margins[other][0]).mean(1))
        return torch.where(y > 0, of_class[1], of_class[0])


class Transformer(nn.Module):
    """TransMIL (Shao et al. 2021)."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.model = TransMIL((n_features,), HIDDEN, n_landmarks=16, feat_ext=first_layer(n_features))

    def forward(self, x: Tensor, mask: Tensor, y: Tensor) -> Outputs:
        """Attention of the class token as score."""
        logits, attention = self.model(x, return_att=True)
        return logits, attention, loss_of(logits, y)


class DoubleTier(nn.Module):
    """DTFD-MIL (Zhang et al. 2022)."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.model = DTFDMIL((n_features,), HIDDEN, feat_ext=first_layer(n_features))

    def forward(self, x: Tensor, mask: Tensor, y: Tensor) -> Outputs:
        """Class activation as score."""
        # a group whose instances are all masked would be NaN
        kept = torch.ones_like(mask)
        logits, groups, activation = self.model(x, kept, return_pseudo_pred=True, return_inst_cam=True)
        of_groups = loss_of(groups, y[:, None].expand_as(groups)).mean(1)
        return logits, activation, loss_of(logits, y) + of_groups


class Smooth(nn.Module):
    """SmABMIL (Castro-Macías et al. 2024): attention MIL with the smooth operator along the slices."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.model = SmABMIL((n_features,), HIDDEN, feat_ext=first_layer(n_features))

    def forward(self, x: Tensor, mask: Tensor, y: Tensor) -> Outputs:
        """Attention as score."""
        logits, attention = self.model(x, neighbours(mask), mask, return_att=True)
        return logits, attention, loss_of(logits, y)


class Graph(nn.Module):
    """PatchGCN (Chen et al. 2021) on the chain of slices."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.model = PatchGCN(
            (n_features,), hidden_dim=HIDDEN, att_dim=HIDDEN, feat_ext=first_layer(n_features)
        )

    def forward(self, x: Tensor, mask: Tensor, y: Tensor) -> Outputs:
        """Attention as score."""
        logits, attention = self.model(x, neighbours(mask), mask, return_att=True)
        logits = logits.reshape(-1)
        return logits, attention, loss_of(logits, y)

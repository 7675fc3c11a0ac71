"""Targets of the location layer (`CnnSettings.locate`): which part of a slice lies in a box around a bleed.

A slice with boxes has these; a slice of a negative scan, or labelled negative, has none anywhere. Where a
bleed of another slice is, is not known: NaN. The loss is the mean over cells of the binary cross-entropy with
the share of the cell that lies in a box. Within a slice, boxes differ from the rest by the bleed alone:
nothing about the source of a picture predicts them, unlike its label.

Shapes: N slices of all scans, n of one, b boxes of a slice, G x G parts of a target, h x w cells of a map.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import (
    adaptive_avg_pool2d,
    affine_grid,
    binary_cross_entropy_with_logits,
    grid_sample,
)

from ich_mil.network.pictures import Variation
from ich_mil.study.head_box import HeadBox

PARTS = 96
"""Parts G of a target along each side."""
WEIGHT = 2.0
"""Weight of this loss beside that of the labels."""


def box_target(boxes: np.ndarray, crop: HeadBox, shape: tuple[int, int]) -> Tensor:
    """Target (G, G) float32 of a slice of `shape` (H, W), 1 in `boxes` (b, 4), on the picture of `crop`.

    The picture is `crop`, padded to a square around its centre (`ich_mil.network.windows.resize`).
    """
    height, width = crop.bottom - crop.top, crop.right - crop.left
    side = max(height, width)
    left, top = crop.left - (side - width) // 2, crop.top - (side - height) // 2
    rows, columns = shape
    scale, start = np.array([columns, rows] * 2), np.array([left, top] * 2)
    edges = (boxes * scale - start) / side * PARTS  # (b, 4)
    low, high = np.floor(edges[:, :2]).astype(int), np.ceil(edges[:, 2:]).astype(int)
    target = torch.zeros(PARTS, PARTS)
    for (x, y), (right, bottom) in zip(low.clip(0).tolist(), high.clip(0).tolist(), strict=True):
        target[y:bottom, x:right] = 1
    return target


def moved(targets: Tensor, variation: Variation) -> Tensor:
    """Targets (n, G, G) of an augmented scan; outside the original picture there is no bleed."""
    known = ~targets.isnan().any(2).any(1)
    grid = affine_grid(variation.matrix[None], [1, 1, PARTS, PARTS], align_corners=False)
    grids = grid.expand(int(known.sum()), -1, -1, -1)
    targets = targets.clone()
    targets[known] = grid_sample(targets[known, None], grids, padding_mode="zeros", align_corners=False)[:, 0]
    return targets


def location_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Loss () of location logits (N, h, w) for targets (N, G, G); 0 where no target is known."""
    known = ~targets.isnan().any(2).any(1)
    if not known.any():
        return logits.sum() * 0
    height, width = logits.shape[1:]
    share = adaptive_avg_pool2d(targets[known], (height, width))
    return binary_cross_entropy_with_logits(logits[known].float(), share)

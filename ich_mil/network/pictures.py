"""CNN input images from HU scans: windowing, antialiased resize, and optional augmentation.

In: scans in HU, windows, image size and augmentation parameters. Out: packed images in [0, 1].

    shown   = clip((HU - level) / width + 1/2, 0, 1)        a slice that is not square is padded with 0
    picture = A shown Aᵀ                                    A (S, side): antialiased resize
    moved   = picture at (matrix · position), bilinear      0 outside
    varied  = clip(moved + (noise + brighter) / width, 0, 1)    where moved lies inside its window

Shapes: B scans, N slices of all, n of one, H x W stored pixels, C windows, S pixels per side of an image.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ich_mil.network.windows import to_pictures
from ich_mil.study.window_presets import Windows

EDGE = 1e-5
"""A value this close to 0 or 1 counts as equal to it: four bilinear weights do not sum to exactly 1."""


class Variation(NamedTuple):
    """Augmentation parameters of one scan.

    Attributes:
        matrix: (2, 3) affine map from positions in the new image to positions in the old, both in [-1, 1].
        brighter: brightness shift in HU.
        noise: standard deviation of the independent noise of each pixel, in HU.
        seed: seed of the noise.
    """

    matrix: Tensor
    brighter: float
    noise: float
    seed: int


@torch.no_grad()
def pictures_of(
    scans: Sequence[Tensor], windows: Windows, size: int, variations: Sequence[Variation] = ()
) -> Tensor:
    """Window, resize and augment scans into packed images (N, C, S, S) float32 in [0, 1].

    The host does not wait for a GPU.

    Args:
        scans: B tensors (n, H, W) int16 HU on one device; n, H and W may differ between scans.
        windows: C pairs (level, width) in HU.
        size: S in pixels.
        variations: augmentation of each of the B scans; empty: no augmentation.

    Raises:
        TypeError: HU that are not int16.
    """
    return vary([to_pictures(hu, windows, size) for hu in scans], variations, windows)


@torch.no_grad()
def vary(scans: Sequence[Tensor], variations: Sequence[Variation], windows: Windows) -> Tensor:
    """Augment and pack the images (n, C, S, S) of B scans into (N, C, S, S), all in [0, 1].

    Brightness and noise are in HU and are divided by the width of each window. A pixel at 0 or 1 lies outside
    the window by an unknown amount, so it is left unchanged. The host does not wait for a GPU.
    """
    if not variations:
        return torch.cat(list(scans))
    like, side = scans[0], scans[0].shape[-1]
    widths = torch.tensor([w for _, w in windows])[:, None, None]
    tensors = torch.stack([variation.matrix for variation in variations]), widths
    matrices, width = (tensor.to(like.device, like.dtype, non_blocking=True) for tensor in tensors)
    grids = affine_grid(matrices, [len(matrices), 1, side, side], align_corners=False)  # (B, S, S, 2)
    varied = []
    for scan, grid, variation in zip(scans, grids, variations, strict=True):
        # Zero padding: 0 is air in every window.
        moved = grid_sample(
            scan, grid.expand(len(scan), -1, -1, -1), padding_mode="zeros", align_corners=False
        )
        hu = _noise(variation, scan[:, :1]).mul_(variation.noise).add_(variation.brighter)  # (n, 1, S, S)
        within = (moved > EDGE) & (moved < 1 - EDGE)
        varied.append(torch.where(within, torch.addcdiv(moved, hu, width), moved).clamp_(0.0, 1.0))
    return torch.cat(varied)


def _noise(variation: Variation, like: Tensor) -> Tensor:
    """Standard normal noise in the shape of `like`; it differs between GPU and CPU for the same seed."""
    generator = torch.Generator(like.device).manual_seed(variation.seed)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)

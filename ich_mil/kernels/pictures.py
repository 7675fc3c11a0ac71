"""CNN input images from HU scans: windowing, antialiased resize, and optional augmentation.

In: scans in HU, windows, image size and augmentation parameters. Out: packed images in [0, 1].

    shown   = clip((HU - level) / width + 1/2, 0, 1)        a slice that is not square is padded with 0
    picture = A shown Aᵀ                                    A (S, side): antialiased resize
    moved   = picture at (matrix · position), bilinear      0 outside
    varied  = clip(moved + (noise + brighter) / width, 0, 1)    where moved lies inside its window

The PyTorch implementation computes these lines one by one; each reads and writes all images. The Triton
kernel computes them at once and writes only the noise and each final image, channels last, as the encoder
reads it.

Shapes: B scans, N slices of all, n of one, H x W stored pixels, C windows, S pixels per side of an image.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ich_mil.kernels.implementation import Impl, by_triton
from ich_mil.window_presets import Windows
from ich_mil.windows import to_pictures

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
    scans: Sequence[Tensor],
    windows: Windows,
    size: int,
    variations: Sequence[Variation] = (),
    *,
    impl: Impl = "auto",
) -> Tensor:
    """Window, resize and augment scans into packed images (N, C, S, S) float32 in [0, 1].

    The host does not wait for a GPU.

    Args:
        scans: B tensors (n, H, W) int16 HU on one device; n, H and W may differ between scans.
        windows: C pairs (level, width) in HU.
        size: S in pixels.
        variations: augmentation of each of the B scans; empty: no augmentation.
        impl: "torch" runs windowing, resize and augmentation in turn, "triton" is a single kernel; "auto" is
            "triton" on a GPU.

    Raises:
        TypeError: HU that are not int16.
    """
    if by_triton(impl, scans[0].device):
        return _by_kernel(scans, windows, size, variations)
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

    def beside(value: Tensor) -> Tensor:
        return value.to(like.device, like.dtype, non_blocking=True)

    matrices = beside(torch.stack([one.matrix for one in variations]))
    grids = affine_grid(matrices, [len(matrices), 1, side, side], align_corners=False)  # (B, S, S, 2)
    width = beside(torch.tensor([w for _, w in windows])[:, None, None])
    made = []
    for scan, grid, variation in zip(scans, grids, variations, strict=True):
        hu = _noise(variation, scan[:, :1]).mul_(variation.noise).add_(variation.brighter)
        made.append(shifted(scan, grid.expand(len(scan), -1, -1, -1), hu, width))
    return torch.cat(made)


def shifted(pictures: Tensor, grid: Tensor, hu: Tensor, width: Tensor) -> Tensor:
    """Resample images (n, C, S, S) on a grid from `affine_grid`, then add the shift `hu` (n, 1, S, S)."""
    # Zero padding: 0 is air in every window.
    moved = grid_sample(pictures, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    within = (moved > EDGE) & (moved < 1 - EDGE)
    return torch.where(within, torch.addcdiv(moved, hu, width), moved).clamp_(0.0, 1.0)


def _noise(variation: Variation, like: Tensor) -> Tensor:
    """Standard normal noise in the shape of `like`; it differs between GPU and CPU for the same seed."""
    generator = torch.Generator(like.device).manual_seed(variation.seed)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _by_kernel(
    scans: Sequence[Tensor], windows: Windows, size: int, variations: Sequence[Variation]
) -> Tensor:
    from ich_mil.kernels.triton.pictures import draw

    device = scans[0].device
    sizes = [len(hu) for hu in scans]
    shades = torch.tensor(windows, dtype=torch.float32).to(device, non_blocking=True)  # (C, 2)
    pictures = torch.empty(sum(sizes), size, size, len(windows), dtype=torch.float32, device=device)
    ways: Sequence[Variation | None] = variations or [None] * len(scans)
    for out, hu, way in zip(pictures.split(sizes), scans, ways, strict=True):
        if hu.dtype != torch.int16:
            raise TypeError(f"HU are int16 tensors, got {hu.dtype}")
        if way is None:
            draw(out, hu, shades, None, [0.0] * 6, 0.0, 0.0, EDGE)
        else:
            noise, matrix = _noise(way, out[..., 0]), way.matrix.flatten().tolist()
            draw(out, hu, shades, noise, matrix, way.brighter, way.noise, EDGE)
    return pictures.permute(0, 3, 1, 2)

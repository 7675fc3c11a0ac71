"""Pictures of packed scans, varied where wanted: what a CNN is fed, straight from HU.

    shown   = clip((HU - level) / width + 1/2, 0, 1)        0 around a slice that is not square
    picture = A shown Aᵀ                                    A (S, side): antialiased resize
    moved   = picture at (matrix · place), bilinear         0 outside
    varied  = clip(moved + (noise + brighter) / width, 0, 1)    where moved lies inside its window

The definition takes these lines one by one, each reading and writing all pictures. The Triton version goes
from HU to the last line and writes, but for the noise, each picture once, channels last, as the encoder
reads it.

Shapes: B scans, N slices of all, n of one, H x W pixels as stored, C windows, S pixels of a picture.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ich_mil.kernels.choice import Impl, by_triton
from ich_mil.windows import Windows, to_pictures

EDGE = 1e-5
"""A value as near to 0 or 1 as that is meant to be it: four weights do not sum to 1 to the last bit."""


class Variation(NamedTuple):
    """How the pictures of one scan differ from what is stored.

    Attributes:
        matrix: (2, 3) affine map from places in the new picture to those in the old, both from -1 to 1.
        brighter: shift of all values, HU.
        noise: standard deviation of each pixel's own noise, HU.
        seed: of that noise.
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
    """The pictures of scans, packed. The host does not wait for a GPU.

    Args:
        scans: B tensors (n, H, W) int16 HU on one device; scans may differ in all three.
        windows: C pairs (level, width) in HU.
        size: S in pixels.
        variations: of the B scans; none leaves all as they are.
        impl: "torch" windows, resizes and varies in turn, "triton" does all at once; "auto" is triton on a
            GPU.

    Returns:
        (N, C, S, S) float32 in [0, 1].

    Raises:
        TypeError: HU that are not int16.
    """
    if by_triton(impl, scans[0].device):
        return _by_kernel(scans, windows, size, variations)
    return vary([to_pictures(hu, windows, size) for hu in scans], variations, windows)


@torch.no_grad()
def vary(scans: Sequence[Tensor], variations: Sequence[Variation], windows: Windows) -> Tensor:
    """The pictures of scans, varied and packed.

    Brightness and noise are in HU and divided by each window's width. A pixel at 0 or 1 lies outside the
    window, nobody knows how far, and stays there. The host does not wait for a GPU.

    Args:
        scans: B tensors (n, C, S, S) in [0, 1].
        variations: of the B scans; none leaves all as they are.
        windows: the C windows they were made with.

    Returns:
        (N, C, S, S) in [0, 1].
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
    """Pictures moved in space, then in value.

    Args:
        pictures: (n, C, S, S) in [0, 1].
        grid: (n, S, S, 2) from `affine_grid`.
        hu: (n, 1, S, S), or of a shape that expands to it, shift in HU.
        width: (C, 1, 1) of the windows, HU.

    Returns:
        (n, C, S, S) in [0, 1].
    """
    # zeros outside: air, in every window
    moved = grid_sample(pictures, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    within = (moved > EDGE) & (moved < 1 - EDGE)
    return torch.where(within, torch.addcdiv(moved, hu, width), moved).clamp_(0.0, 1.0)


def _noise(variation: Variation, like: Tensor) -> Tensor:
    """Standard normal numbers; a GPU draws others than a CPU."""
    generator = torch.Generator(like.device).manual_seed(variation.seed)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _by_kernel(
    scans: Sequence[Tensor], windows: Windows, size: int, variations: Sequence[Variation]
) -> Tensor:
    from ich_mil.kernels.pictures_triton import draw

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

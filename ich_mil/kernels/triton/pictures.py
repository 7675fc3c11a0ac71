"""Images from HU as a Triton kernel; see `ich_mil.kernels.pictures`.

A program computes some pixels of an image in all windows. It finds the source position of each, and computes
the four pixels around it from HU: each a weighted sum of the few stored pixels that the resize joins. No
intermediate image is written; HU are read more than once, from the cache. Pixels are a column and windows a
row of each block, as a transposition would cost a barrier.

Shapes: n slices of one scan, H x W pixels as stored, C windows, S pixels of a picture, T taps of the resize.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ich_mil.windows import scaled

PIXELS = 256
"""Pixels of one program."""


@triton.jit
def _picture(hu, y, x, here, level, width, first, weights, height, across, top, left, TAPS: tl.constexpr):
    """Resized pixels (y, x), both (p, 1), in all windows (p, c); 0 where not `here`."""
    row = tl.load(first + y, mask=here, other=0) - top
    column = tl.load(first + x, mask=here, other=0) - left
    total = tl.zeros((y.shape[0], level.shape[1]), tl.float32)
    for a in range(TAPS):
        part = tl.zeros((y.shape[0], level.shape[1]), tl.float32)
        for b in range(TAPS):
            at_y, at_x = row + a, column + b
            there = here & (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < across)
            value = tl.load(hu + at_y * across + at_x, mask=there, other=0).to(tl.float32)
            shown = tl.div_rn(value - level, width) + 0.5
            weight = tl.load(weights + x * TAPS + b, mask=there, other=0.0)
            part += weight * tl.minimum(tl.maximum(shown, 0.0), 1.0)
        total += tl.load(weights + y * TAPS + a, mask=here, other=0.0) * part
    return total


@triton.jit
def _place(pixel, size):
    """Pixel 0 .. S - 1 to position -1 .. 1, the outer edges of the outer pixels."""
    return tl.div_rn((2 * pixel + 1).to(tl.float32), size.to(tl.float32)) - 1.0


@triton.jit
def _pixel(place, size):
    """Position to (fractional) pixel, the inverse of `_place`."""
    return ((place + 1.0) * size - 1.0) * 0.5


@triton.jit(do_not_specialize=["height", "across", "top", "left", "size"])
def _draw(
    out, hu, windows, first, weights, noise, xx, xy, x1, yx, yy, y1, brighter, deviation, edge,
    height, across, top, left, size, VARIED: tl.constexpr, C: tl.constexpr, CHANNELS: tl.constexpr,
    TAPS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    area = size * size
    blocks = tl.cdiv(area, PIXELS)
    of = (tl.program_id(0) // blocks).to(tl.int64)  # the slice
    hu += of * height * across
    pixel = tl.program_id(0) % blocks * PIXELS + tl.arange(0, PIXELS)[:, None]
    here = pixel < area
    y, x = pixel // size, pixel % size
    channel = tl.arange(0, CHANNELS)[None, :]
    level = tl.load(windows + 2 * channel, mask=channel < C, other=0.0)
    width = tl.load(windows + 2 * channel + 1, mask=channel < C, other=1.0)
    if VARIED:
        u, v = _place(x, size), _place(y, size)
        from_x, from_y = _pixel(xx * u + xy * v + x1, size), _pixel(yx * u + yy * v + y1, size)
        low_x, low_y = tl.floor(from_x), tl.floor(from_y)
        value = tl.zeros((PIXELS, CHANNELS), tl.float32)
        for down in tl.static_range(2):
            for right in tl.static_range(2):
                at_x, at_y = low_x.to(tl.int32) + right, low_y.to(tl.int32) + down
                there = here & (at_x >= 0) & (at_x < size) & (at_y >= 0) & (at_y < size)
                near_x = from_x - low_x if right else 1.0 - (from_x - low_x)
                near_y = from_y - low_y if down else 1.0 - (from_y - low_y)
                value += near_x * near_y * _picture(
                    hu, at_y, at_x, there, level, width, first, weights, height, across, top, left, TAPS
                )  # fmt: skip
        own = tl.load(noise + of * area + pixel, mask=here, other=0.0)
        changed = value + tl.div_rn(own * deviation + brighter, width)
        value = tl.where((value > edge) & (value < 1.0 - edge), changed, value)
        value = tl.minimum(tl.maximum(value, 0.0), 1.0)
    else:
        value = _picture(hu, y, x, here, level, width, first, weights, height, across, top, left, TAPS)
    tl.store(out + of * area * C + pixel * C + channel, value, mask=here & (channel < C))


@lru_cache(maxsize=4096)  # heads cropped to their rectangle have hundreds of sides
def _taps(side: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Taps of `ich_mil.windows.resize` from `side` to S pixels, from its result for unit vectors.

    Returns the first pixel (S,) int32 of each new pixel, and the weights (S, T) float32 from there on.
    """
    matrix = scaled(torch.eye(side, dtype=torch.float32)[None, None], size, side)[0, 0]  # (S, side)
    used = matrix != 0
    first = used.int().argmax(1)
    taps = int((side - used.flip(1).int().argmax(1) - first).max())
    padded = torch.cat([matrix, matrix.new_zeros(size, taps)], 1)
    weights = padded.gather(1, first[:, None] + torch.arange(taps))
    return first.int().to(device, non_blocking=True), weights.to(device, non_blocking=True)


@torch.library.custom_op("ich_mil::draw_pictures", mutates_args={"out"})
def draw(
    out: Tensor, hu: Tensor, windows: Tensor, noise: Tensor | None, matrix: list[float],
    brighter: float, deviation: float, edge: float,
) -> None:  # fmt: skip
    """Fill `out` (n, S, S, C) float32, contiguous, with the images of one scan `hu` (n, H, W) int16.

    `windows` (C, 2) are level and width in HU. `noise` (n, S, S) is standard normal; None: no augmentation.
    `matrix` has the six numbers of the affine map by row, `brighter` and `deviation` are in HU. A value is
    inside its window from `edge` to 1 - `edge`.
    """
    n, height, across = hu.shape
    size, channels = out.shape[2:]
    side = max(height, across)
    first, weights = _taps(side, size, hu.device)
    with torch.cuda.device_of(hu):
        _draw[(n * triton.cdiv(size * size, PIXELS),)](
            *(out, hu.contiguous(), windows, first, weights, out if noise is None else noise),
            *(*matrix, brighter, deviation, edge),
            *(height, across, (side - height) // 2, (side - across) // 2, size),
            VARIED=noise is not None,
            C=channels,
            CHANNELS=triton.next_power_of_2(channels),
            TAPS=weights.shape[1],
            PIXELS=PIXELS,
            num_warps=4,
            enable_fp_fusion=False,
        )


@draw.register_fake
def _(*_: object) -> None:
    return None

"""Slices and heatmaps of a scan as `data:` URIs.

A slice is a grey JPEG for each window; a heatmap is a PNG with a palette of colours and opacities, which a
browser can lay over any window. At quality 80 a slice of 512² takes about 18 kB, with a root mean square
error of 1.7 of 255. WebP takes half the space, but four times the time, and has only 219 grey levels. The
picture size is the largest of `SIDES` at which all pictures together stay within `BUDGET` bytes, else the
smallest.

Shapes: n slices of H, W pixels, k maps of h, w cells.
"""

import base64
import io
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap
from PIL import Image

from ich_mil.model.maps import ScanMaps
from ich_mil.network.windows import apply_windows
from ich_mil.study.head_box import HeadBox
from ich_mil.study.window_presets import Windows

WINDOWS = {
    "brain": (40.0, 80.0),
    "blood": (80.0, 200.0),
    "soft tissue": (40.0, 380.0),
    "bone": (600.0, 2800.0),
}
"""Windows of the viewer, (level, width) in HU: preset `winners` of `study.window_presets`, and bone."""
SIDES = (512, 384, 256, 192, 128, 96)
"""Candidates for the longest side of a picture, pixels; no picture is enlarged."""
BUDGET = 3_100_000
"""Bytes of all slices in all windows: 4.1 MB in base64, which leaves 0.9 MB of a 5 MB page for the rest."""
QUALITY = 80
OVERLAY_SIDE = 128
"""Longest side of a heatmap, pixels: a multiple of its cells, and the browser interpolates further."""
OVERVIEW_SIDE = 256
"""Longest side of a coronal or sagittal overview, pixels."""
LEVELS = 256

FAINT, FULL = 0.1, 0.4
"""Probability up to which a location is transparent, and from which it has its full opacity."""


@dataclass(frozen=True)
class Shades:
    """Colours and opacities of a heatmap by value, as a fraction of `top`.

    Attributes:
        colours: colour map, lighter for larger values.
        top: value of the last colour.
        clear: largest value that is transparent.
        full: smallest value of full opacity.
        ticks: values named on the colour bar.
    """

    colours: LinearSegmentedColormap
    top: float
    ticks: tuple[float, ...]
    clear: float = 0.0
    full: float = 1.0

    def opacity(self, values: np.ndarray) -> np.ndarray:
        """Opacity in [0, 1] of each value."""
        return ((values - self.clear) / (self.full - self.clear)).clip(0, 1)


LOCATION = Shades(
    LinearSegmentedColormap.from_list("location", ["#e8341c", "#ff9a00", "#ffe65c"]),
    1.0,
    (0, FAINT, FULL, 1),
    FAINT,
    FULL,
)
"""Warm colours for the probability of a bleed at a location."""
UNCERTAINTY = Shades(
    LinearSegmentedColormap.from_list("uncertainty", ["#2a5fd0", "#56b4e9", "#e2f6ff"]),
    0.5,
    (0, 0.1, 0.2, 0.3, 0.4, 0.5),
)
"""Cold colours for its standard deviation, at most 0.5, distinct from `LOCATION` for the colour-blind."""


@dataclass(frozen=True)
class Overlay:
    """Heatmaps as `data:` URIs.

    Attributes:
        pictures: heatmaps by slice index.
        clear: indices of the slices whose heatmap is transparent everywhere.
        shades: colours of the heatmaps.
        key: colour bar from 0 to `shades.top`.
    """

    pictures: dict[int, str]
    clear: list[int]
    shades: Shades
    key: str


def slice_pictures(hu: np.ndarray) -> dict[str, list[str]]:
    """Encode every slice of `hu` (n, H, W) in every window: n `data:` URIs by window name."""
    windowed = _windowed(hu, tuple(WINDOWS.values()))
    for side in SIDES:
        pictures: list[list[str]] = []
        left = BUDGET
        for of_slice in windowed:
            files = [_jpeg(_shrunk(picture, side)) for picture in of_slice]
            left -= sum(map(len, files))
            if left < 0 and side != SIDES[-1]:
                break
            pictures.append([_data_uri(file, "jpeg") for file in files])
        else:
            break
    return {name: [uris[c] for uris in pictures] for c, name in enumerate(WINDOWS)}


def overlay(maps: ScanMaps, of: str, shape: tuple[int, int]) -> Overlay:
    """Encode the maps `of` (`mean` or `std`) for slices of `shape` (H, W).

    NaN is transparent.
    """
    scale = min(1.0, OVERLAY_SIDE / max(shape))
    rows, columns = (max(1, round(scale * size)) for size in shape)
    fine = getattr(maps.scaled(scale).on_grid(rows, columns), of)  # (k, rows, columns)
    shades = LOCATION if of == "mean" else UNCERTAINTY
    shares = np.nan_to_num(fine / shades.top, nan=0.0, posinf=0.0, neginf=0.0).clip(0, 1)
    pictures = {
        int(index): _data_uri(_coloured(share, shades), "png")
        for index, share in zip(maps.slices, shares, strict=True)
    }
    drawn = (shares > shades.clear).any((1, 2))
    ramp = np.repeat(np.linspace(0, 1, LEVELS)[None], 12, axis=0)
    return Overlay(pictures, maps.slices[~drawn].tolist(), shades, _data_uri(_coloured(ramp, shades), "png"))


def overview(hu: np.ndarray, box: HeadBox, spacing_mm: tuple[float, float, float]) -> dict[str, str]:
    """Encode the coronal and the sagittal section through the middle of the head, brain window, top up.

    Args:
        hu: (n, H, W) HU, lowest slice first, evenly spaced.
        box: rectangle around the head.
        spacing_mm: distance of slices, rows and columns, mm.

    Returns:
        `data:` URIs by `coronal` and `sagittal`; the pictures show the rectangle and have square pixels.
    """
    middle = ((box.top + box.bottom) // 2, (box.left + box.right) // 2)
    sections = {
        "coronal": (hu[::-1, middle[0], box.left : box.right], spacing_mm[2]),
        "sagittal": (hu[::-1, box.top : box.bottom, middle[1]], spacing_mm[1]),
    }
    pictures = {}
    for name, (section, across_mm) in sections.items():
        image = Image.fromarray(_windowed(section[None], (WINDOWS["brain"],))[0][0])
        height = max(1, round(len(section) * spacing_mm[0] / across_mm))
        scale = min(1.0, OVERVIEW_SIDE / max(height, image.width))
        size = (max(1, round(scale * image.width)), max(1, round(scale * height)))
        pictures[name] = _data_uri(_jpeg(image.resize(size, Image.Resampling.BICUBIC)), "jpeg")
    return pictures


def _data_uri(file: bytes, kind: str) -> str:
    """Base64 `data:` URI of a picture file; `kind` is the subtype of its MIME type."""
    return f"data:image/{kind};base64,{base64.b64encode(file).decode('ascii')}"


def _jpeg(picture: Image.Image) -> bytes:
    """Encode a grey picture as JPEG."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return buffer.getvalue()


def _windowed(hu: np.ndarray, windows: Windows) -> list[np.ndarray]:
    """Apply C windows to each slice; returns n arrays (C, H, W) uint8."""
    copies = (torch.from_numpy(np.array(slice_[None])) for slice_ in hu)  # torch warns about read-only maps
    return [apply_windows(copy, windows)[0].mul_(255).round_().byte().numpy() for copy in copies]


def _shrunk(picture: np.ndarray, side: int) -> Image.Image:
    """Convert (H, W) uint8 to a picture, downsampled where its longest side exceeds `side`."""
    image = Image.fromarray(picture)
    if max(image.size) <= side:
        return image
    width, height = (max(1, round(size * side / max(image.size))) for size in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _coloured(strength: np.ndarray, shades: Shades) -> bytes:
    """Encode (rows, columns) in [0, 1] as a palette PNG: level i has the colour and opacity of i / 255."""
    image = Image.fromarray(np.rint(strength * (LEVELS - 1)).astype(np.uint8)).convert("L")
    image = Image.frombytes("P", image.size, image.tobytes())
    levels = np.linspace(0, 1, LEVELS)
    palette = shades.colours(levels, bytes=True)[:, :3]
    image.putpalette(palette.tobytes())
    buffer = io.BytesIO()
    image.save(
        buffer,
        "PNG",
        transparency=bytes(np.rint(255 * shades.opacity(levels)).astype(np.uint8)),
        optimize=True,
    )
    return buffer.getvalue()

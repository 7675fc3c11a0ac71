"""Pictures of a scan as addresses that hold the picture itself.

In: Hounsfield units and heatmaps. Out: `data:` addresses: slices as grey JPEG, one for each window, and
heatmaps as PNG with a palette of colours and opacities, so that a browser lays any map over any window.

Grey JPEG is read by every browser, and at quality 80 a slice of 512² takes about 18 kB where its windowed
values come back within 1.7 of 255 (root mean square): WebP is half as large, takes four times as long and
has only 219 grey levels. The picture size is the largest of `SIDES` with which all pictures together keep
within `BUDGET` bytes.

Shapes: n slices of H, W pixels, k maps of h, w cells.
"""

import base64
import io
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap
from PIL import Image

from ich_mil.report.maps import ScanMaps
from ich_mil.windows import Windows, apply_windows

WINDOWS = {"brain": (40.0, 80.0), "blood": (80.0, 200.0), "soft tissue": (40.0, 380.0)}
"""Windows of the viewer, (level, width) in HU: the preset `winners` of `ich_mil.windows`."""
SIDES = (512, 384, 256, 192, 128, 96)
"""Longest side of a picture in pixels; no picture is enlarged."""
BUDGET = 3_100_000
"""Bytes of all slices in all windows: 4.1 MB as text, which leaves 0.9 MB of a page of 5 MB for the rest."""
QUALITY = 80
OVERLAY_SIDE = 128
"""Longest side of a heatmap: many times its cells, and the browser smooths it further."""
LEVELS = 256

EVIDENCE = LinearSegmentedColormap.from_list("evidence", ["#d55e00", "#ffb000", "#fff3c4"])
"""Colours of the evidence for blood: warm, lighter where it is stronger."""
UNCERTAINTY = LinearSegmentedColormap.from_list("uncertainty", ["#2a5fd0", "#56b4e9", "#e2f6ff"])
"""Colours of its uncertainty: cold, lighter where it is larger. The colour-blind tell the two apart."""


@dataclass(frozen=True)
class Overlay:
    """Heatmaps of some slices in one scale.

    Attributes:
        pictures: address of the picture of each slice that has a map.
        top: value of the map at full strength.
        key: address of a bar of its colours from 0 to `top`.
    """

    pictures: dict[int, str]
    top: float
    key: str


def slice_pictures(hu: np.ndarray) -> dict[str, list[str]]:
    """Every slice in every window of `WINDOWS`.

    Args:
        hu: (n, H, W) int16 Hounsfield units.

    Returns:
        The addresses of the n pictures of each window.
    """
    windowed = _windowed(hu, tuple(WINDOWS.values()))
    for side in SIDES:
        pictures: list[list[str]] = []
        left = BUDGET
        for of_slice in windowed:
            files = [jpeg(_shrunk(picture, side)) for picture in of_slice]
            left -= sum(map(len, files))
            if left < 0 and side != SIDES[-1]:
                break
            pictures.append([data_uri(file, "jpeg") for file in files])
        else:
            break
    return {name: [one[c] for one in pictures] for c, name in enumerate(WINDOWS)}


def overlay(maps: ScanMaps, of: str, shape: tuple[int, int]) -> Overlay:
    """The maps as pictures whose opacity grows with the value; 0, negative and NaN stay clear.

    Args:
        maps: of k slices.
        of: `mean` or `std`.
        shape: (H, W) of a slice in pixels.
    """
    scale = min(1.0, OVERLAY_SIDE / max(shape))
    rows, columns = (max(1, round(scale * size)) for size in shape)
    fine = getattr(maps.scaled(scale).on_grid(rows, columns), of)  # (k, rows, columns)
    clean = np.nan_to_num(fine, nan=0.0, posinf=0.0, neginf=0.0).clip(0)
    top = float(clean.max(initial=0.0))
    colours = EVIDENCE if of == "mean" else UNCERTAINTY
    pictures = {
        int(place): data_uri(_coloured(values / top if top > 0 else values, colours), "png")
        for place, values in zip(maps.slices, clean, strict=True)
    }
    ramp = np.repeat(np.linspace(0, 1, LEVELS)[None], 12, axis=0)
    return Overlay(pictures, top, data_uri(_coloured(ramp, colours), "png"))


def data_uri(file: bytes, kind: str) -> str:
    """The bytes of a picture file as an address that holds the picture itself."""
    return f"data:image/{kind};base64,{base64.b64encode(file).decode('ascii')}"


def jpeg(picture: Image.Image) -> bytes:
    """A grey picture as a JPEG file."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return buffer.getvalue()


def _windowed(hu: np.ndarray, windows: Windows) -> list[np.ndarray]:
    """(C, H, W) uint8 of each slice."""
    copies = (torch.from_numpy(np.array(one[None])) for one in hu)  # a file mapped to memory is read-only
    return [apply_windows(one, windows)[0].mul_(255).round_().byte().numpy() for one in copies]


def _shrunk(picture: np.ndarray, side: int) -> Image.Image:
    """(H, W) uint8 as a picture whose longest side is at most `side`."""
    image = Image.fromarray(picture)
    if max(image.size) <= side:
        return image
    width, height = (max(1, round(size * side / max(image.size))) for size in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _coloured(strength: np.ndarray, colours: LinearSegmentedColormap) -> bytes:
    """(rows, columns) in [0, 1] as a PNG: level i of the palette has colour and opacity i / 255."""
    image = Image.fromarray(np.rint(strength * (LEVELS - 1)).astype(np.uint8)).convert("L")
    image = Image.frombytes("P", image.size, image.tobytes())
    palette = colours(np.linspace(0, 1, LEVELS), bytes=True)[:, :3]
    image.putpalette(palette.tobytes())
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=bytes(range(LEVELS)), optimize=True)
    return buffer.getvalue()

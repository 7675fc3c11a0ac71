"""The heatmaps of a scan as a file, so that pages and DICOM results can be made again without the model.

In: maps of the chosen slices (`ich_mil.report.heatmap`). Out: `maps/<scan>.safetensors` beside
`predictions.json`, and the maps laid on the pixel grid of the slices.

Shapes: k slices with maps, h, w cells of a map, H, W pixels of a slice.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch.nn.functional import interpolate

from ich_mil.data.store import PreparedSet, scan_file
from ich_mil.errors import DataError
from ich_mil.files import whole_file
from ich_mil.gp.predict import draw_weights
from ich_mil.model import TrainedModel
from ich_mil.predictions import ScanResult
from ich_mil.report.heatmap import slice_maps
from ich_mil.windows import apply_windows, resize

MAPPED = 8
"""Slices of a scan that get heatmaps: the most probable ones."""
MAP_SAMPLES = 64
"""Posterior samples behind a map: its spread is shown as colours, for which 64 are enough."""


@dataclass(frozen=True)
class ScanMaps:
    """Heatmaps of one scan.

    Attributes:
        slices: (k,) int64 places in the scan, rising, 0 = lowest.
        mean: (k, h, w) float32 evidence for blood, on the scale of the latent function; its cells cover the
            slice, padded to a square around its centre (`ich_mil.windows.resize`).
        std: (k, h, w) float32 its standard deviation over posterior samples.
    """

    slices: np.ndarray
    mean: np.ndarray
    std: np.ndarray

    def __post_init__(self) -> None:
        if self.mean.shape != self.std.shape or self.mean.shape[:1] != self.slices.shape:
            raise ValueError(f"shapes {self.slices.shape}, {self.mean.shape}, {self.std.shape} do not fit")

    def on_grid(self, rows: int, columns: int) -> Self:
        """The same maps with a value for each pixel (k, H, W): interpolated, the padding cut away."""
        side = max(rows, columns)
        top, left = (side - rows) // 2, (side - columns) // 2
        both = torch.from_numpy(np.stack([self.mean, self.std], axis=1))  # (k, 2, h, w)
        fine = interpolate(both, size=(side, side), mode="bilinear", align_corners=False)
        mean, std = fine[:, :, top : top + rows, left : left + columns].unbind(1)
        return type(self)(self.slices, mean.numpy(), std.numpy())


def maps_file(folder: Path, scan: str) -> Path:
    """Where the maps of a scan lie, `folder` being that of `predictions.json`."""
    return folder / "maps" / scan_file(folder, scan).with_suffix(".safetensors").name


def write_maps(maps: ScanMaps, folder: Path, scan: str) -> None:
    """Write the maps of one scan."""
    path = maps_file(folder, scan)
    tensors = {name: np.ascontiguousarray(getattr(maps, name)) for name in ("slices", "mean", "std")}
    with whole_file(path) as temporary:
        save_file(tensors, temporary)


def read_maps(folder: Path, scan: str) -> ScanMaps | None:
    """The maps of one scan; None where there are none.

    Raises:
        DataError: a file that cannot be read as maps.
    """
    path = maps_file(folder, scan)
    if not path.is_file():
        return None
    try:
        return ScanMaps(**load_file(path))
    except (OSError, TypeError, ValueError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read as heatmaps ({error}); predict again") from error


def make_maps(model: TrainedModel, prepared: PreparedSet, scan: ScanResult) -> ScanMaps:
    """Heatmaps of the `MAPPED` most probable slices of a scan, by a model with a CNN."""
    assert model.cnn is not None  # maps are for runs with pictures
    chosen = sorted(sorted(range(len(scan.slices)), key=lambda n: -scan.slices[n].probability)[:MAPPED])
    hu = torch.from_numpy(prepared.hu(scan.scan).copy())
    device = next(model.cnn.model.parameters()).device
    pictures = resize(apply_windows(hu, model.cnn.windows), model.cnn.settings.image_size).to(device)
    weights = draw_weights(model.head, MAP_SAMPLES, model.seed)
    mean, std = slice_maps(model.cnn.model, model.head, pictures, chosen, weights)
    return ScanMaps(np.array(chosen), mean.float().cpu().numpy(), std.float().cpu().numpy())

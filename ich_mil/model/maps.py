"""Computation and storage of the heatmaps of a scan, `maps/<scan>.safetensors` beside `predictions.json`.

A map is the probability that a part of a slice lies in a box around a bleed: the probability of the slice
times that of the part in a slice with a bleed (`ich_mil.network.location`); mean and standard deviation over
the members. How often its maximum lies in a box stands in the model card. Members without a location have no
maps: what their slice probability depends on does not point to the bleed (research/RESULTS.md, "Where the
bleed is").

Pages and DICOM results are rendered from the file, without the model.

Shapes: L members, k slices with maps, h, w parts of a map, H, W pixels of a slice.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch.nn.functional import interpolate

from ich_mil.errors import DataError
from ich_mil.files import digest, whole_file
from ich_mil.model.model import TrainedModel
from ich_mil.model.predictions import Provenance, ScanPrediction
from ich_mil.sets.store import scan_file
from ich_mil.study.head_box import HeadBox, head_box

MAPPED = 8
"""Number of slices of a scan with a heatmap: the most probable ones."""


@dataclass(frozen=True)
class ScanMaps:
    """Heatmaps of one scan.

    Attributes:
        slices: (k,) int64 slice indices in the scan, increasing, 0 = lowest.
        mean: (k, h, w) float32 probability that a part lies in a box around a bleed: mean over members. The
            parts cover `box`, padded to a square around its centre (`ich_mil.network.windows.resize`).
        std: (k, h, w) float32 standard deviation over members; 0 for a single one.
        box: (4,) int64 region of the slices that the maps cover, pixels, as in `HeadBox`; None: the whole
            slice.
    """

    slices: np.ndarray
    mean: np.ndarray = field(repr=False)
    std: np.ndarray = field(repr=False)
    box: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.mean.shape != self.std.shape or self.mean.shape[:1] != self.slices.shape:
            raise ValueError(f"shapes {self.slices.shape}, {self.mean.shape}, {self.std.shape} do not fit")

    def scaled(self, factor: float) -> Self:
        """The same maps for slices resized by `factor`."""
        return self if self.box is None else replace(self, box=np.rint(self.box * factor).astype(np.int64))

    def on_grid(self, rows: int, columns: int) -> Self:
        """Interpolate the maps to the pixel grid of the slices (k, H, W), without the padding.

        Pixels outside of `box` are 0.
        """
        if self.box is not None:
            top, left, bottom, right = self.box.tolist()
            inside = replace(self, box=None).on_grid(bottom - top, right - left)
            around = ((0, 0), (top, rows - bottom), (left, columns - right))
            return type(self)(self.slices, np.pad(inside.mean, around), np.pad(inside.std, around))
        side = max(rows, columns)
        top, left = (side - rows) // 2, (side - columns) // 2
        both = torch.from_numpy(np.stack([self.mean, self.std], axis=1))  # (k, 2, h, w)
        fine = interpolate(both, size=(side, side), mode="bilinear", align_corners=False)
        mean, std = fine[:, :, top : top + rows, left : left + columns].unbind(1)
        return type(self)(self.slices, mean.numpy(), std.numpy())


def maps_file(folder: Path, scan: str) -> Path:
    """Path of the maps of a scan; `folder` is the folder of `predictions.json`."""
    return folder / "maps" / scan_file(folder, scan).with_suffix(".safetensors").name


def _source(scan: ScanPrediction, model: Provenance) -> str:
    """Digest of what the maps were computed from: the model's weights and the scan's slices."""
    return digest(model.weights.encode(), *(slice_.name.encode() for slice_ in scan.slices))


def write_maps(maps: ScanMaps | None, folder: Path, scan: ScanPrediction, model: Provenance) -> None:
    """Write the maps of one scan; None deletes the file of an earlier call."""
    path = maps_file(folder, scan.scan)
    if maps is None:
        path.unlink(missing_ok=True)
        return
    tensors = {name: np.ascontiguousarray(value) for name, value in vars(maps).items() if value is not None}
    with whole_file(path) as temporary:
        save_file(tensors, temporary, metadata={"source": _source(scan, model)})


def read_maps(folder: Path, scan: ScanPrediction, model: Provenance) -> ScanMaps | None:
    """Read the maps of one scan; None if there is no file, or its maps are of another model or other slices.

    Raises:
        DataError: the file is not a valid file of heatmaps.
    """
    path = maps_file(folder, scan.scan)
    if not path.is_file():
        return None
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("source") != _source(scan, model):
            return None
        return ScanMaps(**tensors)
    except (OSError, TypeError, ValueError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read as heatmaps ({error}); predict again") from error


def make_maps(model: TrainedModel, hu: np.ndarray, scan: ScanPrediction) -> ScanMaps | None:
    """Heatmaps of the `MAPPED` most probable slices of a scan (n, H, W); None if no member has a location."""
    pairs = [(member.cnn, member.location) for member in model.members if member.cnn and member.location]
    if not pairs:
        return None
    probability = np.array([slice_.probability for slice_ in scan.slices])
    chosen = np.sort((-probability).argsort(kind="stable")[:MAPPED])
    cropped = pairs[0][0].encoder_settings.crop  # maps of whole slices and of heads cannot be averaged
    box = head_box(hu) if cropped else HeadBox.whole(hu)
    shown = torch.from_numpy(box.crop(hu))
    each = [
        location.maps(cnn, shown, chosen.tolist())
        for cnn, location in pairs
        if cnn.encoder_settings.crop == cropped
    ]
    maps = probability[chosen, None, None] * np.stack(each)  # (L, k, h, w)
    mean, std = (values.astype(np.float32) for values in (maps.mean(0), maps.std(0)))
    return ScanMaps(chosen, mean, std, np.array(box) if cropped else None)

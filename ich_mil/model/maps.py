"""Computation and storage of the heatmaps of a scan, `maps/<scan>.safetensors` beside `predictions.json`.

Pages and DICOM results are rendered from the file, without the model.

Shapes: k slices with maps, h, w cells of a map, H, W pixels of a slice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor
from torch.nn.functional import interpolate

from ich_mil.errors import DataError
from ich_mil.files import digest, whole_file
from ich_mil.model.heatmap import slice_maps
from ich_mil.model.model import Member, TrainedModel
from ich_mil.model.predictions import Provenance, ScanPrediction
from ich_mil.sets.store import scan_file
from ich_mil.study.head_box import HeadBox, head_box

MAPPED = 8
"""Number of slices of a scan with a heatmap: the most probable ones."""
MAP_SAMPLES = 12
"""Posterior samples behind the standard deviation of a map, in total over the members of an ensemble. Each
sample costs a backward pass. The map is shown in colours, for which a relative error of a fifth does not
matter."""


@dataclass(frozen=True)
class ScanMaps:
    """Heatmaps of one scan.

    Attributes:
        slices: (k,) int64 slice indices in the scan, increasing, 0 = lowest.
        mean: (k, h, w) float32 evidence for blood, on the scale of the latent function. The cells cover
            `box`, padded to a square around its centre (`ich_mil.network.windows.resize`).
        std: (k, h, w) float32 standard deviation of the evidence over posterior samples.
        box: (4,) int64 region of the slices that the maps cover, pixels, as in `HeadBox`; None: the whole
            slice.
    """

    slices: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    box: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.mean.shape != self.std.shape or self.mean.shape[:1] != self.slices.shape:
            raise ValueError(f"shapes {self.slices.shape}, {self.mean.shape}, {self.std.shape} do not fit")

    def scaled(self, factor: float) -> Self:
        """The same maps for slices resized by `factor`."""
        return self if self.box is None else replace(self, box=np.rint(self.box * factor).astype(np.int64))

    def on_grid(self, rows: int, columns: int) -> Self:
        """Interpolate the maps to the pixel grid of the slices (k, H, W), without the padding.

        Pixels outside of `box` have no evidence: 0.
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
    return digest(model.weights.encode(), *(one.name.encode() for one in scan.slices))


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
    """Compute heatmaps of the `MAPPED` most probable slices of a scan (n, H, W); the model must have a CNN.

    For an ensemble, the maps are the moments of its mixture. A scan of one slice has none: a map shows how a
    slice differs from the mean slice of its scan.
    """
    if len(scan.slices) == 1:
        return None
    chosen = sorted(sorted(range(len(scan.slices)), key=lambda n: -scan.slices[n].probability)[:MAPPED])
    samples = max(MAP_SAMPLES // len(model.members), 2)
    box = head_box(hu)
    maps = [_member_maps(member, hu, box, chosen, samples, model.seed) for member in model.members]
    return maps[0] if len(maps) == 1 else _mixture(maps)


def _member_maps(
    member: Member, hu: np.ndarray, head: HeadBox, chosen: list[int], samples: int, seed: int
) -> ScanMaps:
    cnn = member.cnn
    assert cnn is not None  # maps are for runs with pictures
    box = head if cnn.encoder_settings.crop else None
    shown = torch.from_numpy(hu if box is None else box.crop(hu))
    pictures = cnn.pictures().scan(shown.to(next(cnn.parameters()).device))
    weights = member.head.evidence_draws(samples, seed)
    mean, std = slice_maps(cnn, member.head, pictures, chosen, weights)
    edges = None if box is None else np.array(box)
    return ScanMaps(np.array(chosen), mean.float().cpu().numpy(), std.float().cpu().numpy(), edges)


def _mixture(members: Sequence[ScanMaps]) -> ScanMaps:
    """Moments of the mixture on the finest grid, of the members that crop as the first does."""
    members = [maps for maps in members if (maps.box is None) == (members[0].box is None)]
    side = max(maps.mean.shape[-1] for maps in members)
    means, stds = (
        torch.stack([_on_side(torch.from_numpy(getattr(maps, name)), side) for maps in members])
        for name in ("mean", "std")
    )
    # variance of the mixture: mean of the variances plus variance of the means
    std = torch.sqrt(stds.square().mean(0) + means.var(0, correction=0))
    return replace(members[0], mean=means.mean(0).numpy(), std=std.numpy())


def _on_side(maps: Tensor, side: int) -> Tensor:
    """Resample maps (k, g, g) to (k, side, side); the evidence of a cell scales with its area."""
    if maps.shape[-1] == side:
        return maps
    fine = interpolate(maps[None], size=(side, side), mode="bilinear", align_corners=False)[0]
    return fine * (maps.shape[-1] / side) ** 2

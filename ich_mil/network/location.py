"""Location of a bleed within a slice, fitted to boxes on the feature maps of a frozen CNN.

    s = wᵀ a + c                           logit that a cell with the channels a lies in a box
    P(part in a box) = sigmoid(α (s + BRIGHT · HU) + β)

s is interpolated from the cells of the map to the parts of the slice, HU is the smoothed density of a part.
The cells know what kind of tissue to expect, and fresh blood is dense; a part is smaller than a cell. Both
regressions are fitted to slices with boxes, so the probability is that of a slice with a bleed. Only parts
inside the skull count. The network learns nothing from the boxes: nothing about the source of a picture
predicts which part of it lies in a box, unlike its label.

Shapes: n slices, H, W pixels, b boxes, F channels and h x w cells of a feature map, G x G parts of a slice.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from safetensors.numpy import save_file
from scipy import ndimage
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from ich_mil.errors import DataError, ModelError
from ich_mil.files import whole_file
from ich_mil.model_files import read_tensors
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.windows import resize
from ich_mil.sets.boxes import Boxes
from ich_mil.sets.store import PreparedSet
from ich_mil.study.head_box import HeadBox, head_box

PARTS = 96
"""Parts G of a slice along each side."""
BRIGHT = 0.2
"""Weight of 1 HU beside the logit of a cell (research/RESULTS.md, "Where the bleed is")."""
BONE = 80
"""Smallest HU of bone; also the largest value of a picture in the brain window."""
BLUR = 1.5
"""Standard deviation of the smoothing of the density [parts]."""
PENALTY = 1e-3
"""Inverse strength C of the penalty on w."""
LOCATION = "location.safetensors"
"""Name of the file in the folder of a run."""


def box_target(boxes: np.ndarray, crop: HeadBox, shape: tuple[int, int]) -> np.ndarray:
    """Parts (G, G) bool that lie in `boxes` (b, 4) of a slice of `shape` (H, W), on the picture of `crop`.

    The picture is `crop`, padded to a square around its centre (`ich_mil.network.windows.resize`).
    """
    height, width = crop.bottom - crop.top, crop.right - crop.left
    side = max(height, width)
    left, top = crop.left - (side - width) // 2, crop.top - (side - height) // 2
    rows, columns = shape
    scale, start = np.array([columns, rows] * 2), np.array([left, top] * 2)
    edges = (boxes * scale - start) / side * PARTS  # (b, 4)
    low, high = np.floor(edges[:, :2]).astype(int), np.ceil(edges[:, 2:]).astype(int)
    target = np.zeros((PARTS, PARTS), dtype=bool)
    for (x, y), (right, bottom) in zip(low.clip(0).tolist(), high.clip(0).tolist(), strict=True):
        target[y:bottom, x:right] = True
    return target


class Anatomy(NamedTuple):
    """Skull interior and smoothed density of slices."""

    inside: np.ndarray  # (n, G, G) bool, parts inside the skull
    density: np.ndarray  # (n, G, G) float32 smoothed HU of soft tissue and blood; bone counts as 0


def anatomy(hu: Tensor) -> Anatomy:
    """Anatomy of slices (n, H, W) int16 HU. Where bone encloses nothing, all that is no bone is inside."""
    pictures = resize(hu[:, None].float(), 4 * PARTS)
    bone = adaptive_avg_pool2d((pictures >= BONE).float(), PARTS)[:, 0].cpu().numpy() > 0.5
    soft = torch.where(pictures < BONE, pictures, torch.zeros(())).clamp(0)
    density = adaptive_avg_pool2d(soft, PARTS)[:, 0].cpu().numpy()
    inside = [_enclosed(mask) for mask in bone]
    return Anatomy(np.stack(inside), ndimage.gaussian_filter(density, (0, BLUR, BLUR)))


def _enclosed(bone: np.ndarray) -> np.ndarray:
    inside = ndimage.binary_fill_holes(ndimage.binary_closing(bone, iterations=2)) & ~bone
    inside = ndimage.binary_opening(inside)
    return inside if inside.any() else ~bone


@dataclass(frozen=True)
class Location:
    """Fitted location.

    Attributes:
        weight: (F,) w.
        offset: c.
        slope: α.
        intercept: β.
    """

    weight: np.ndarray
    offset: float
    slope: float
    intercept: float

    @classmethod
    def fit(cls, cnn: AttentionCnn, prepared: PreparedSet, scans: Collection[str], boxes: Boxes) -> Self:
        """Fit to the slices of the prepared scans `scans` that have `boxes`."""
        from sklearn.linear_model import LogisticRegression  # slow to import, and predictions do without
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        table = prepared.table[prepared.table.scan.isin({*scans}) & prepared.table.sop.isin({*boxes})]
        if table.empty:
            raise DataError("no slice with a box is in the split train; add boxes, or leave out boxes.csv")
        maps, shares, targets, seen = [], [], [], []
        for scan, rows in table.groupby("scan"):
            hu, names = prepared.hu(str(scan)), prepared.slices(str(scan)).sop.tolist()
            crop = head_box(hu) if cnn.encoder_settings.crop else HeadBox.whole(hu)
            at = [names.index(name) for name in rows.sop]
            target = np.stack([box_target(boxes[name], crop, hu.shape[1:]) for name in rows.sop])
            shown = torch.from_numpy(crop.crop(hu))
            maps.append(_maps(cnn, shown, at))
            share = torch.from_numpy(target[:, None]).float()
            height, width = maps[-1].shape[2:]
            shares.append(adaptive_avg_pool2d(share, (height, width))[:, 0].numpy())
            targets.append(target)
            seen.append(anatomy(shown[at]))
        cells = torch.cat(maps)  # (n, F, h, w)
        x, y = cells.movedim(1, -1).flatten(0, 2).numpy(), np.concatenate(shares).ravel()
        regression = make_pipeline(StandardScaler(), LogisticRegression(C=PENALTY, max_iter=500))
        weights = np.concatenate([y, 1 - y])  # a cell counts as in a box by its share in it
        regression.fit(
            np.tile(x, (2, 1)), np.arange(len(weights)) < len(y), logisticregression__sample_weight=weights
        )
        scaler, linear = regression[0], regression[1]
        weight = linear.coef_[0] / scaler.scale_
        location = cls(weight, float(linear.intercept_[0] - weight @ scaler.mean_), 1.0, 0.0)
        inside, density = (np.concatenate(arrays) for arrays in zip(*seen, strict=True))
        score = location._score(cells, density)[inside]
        last = LogisticRegression(C=np.inf).fit(score[:, None], np.concatenate(targets)[inside])
        return cls(location.weight, location.offset, float(last.coef_[0, 0]), float(last.intercept_[0]))

    def _score(self, maps: Tensor, density: np.ndarray) -> np.ndarray:
        """S + BRIGHT · HU of the parts (n, G, G), from maps (n, F, h, w)."""
        cells = torch.einsum("nfyx,f->nyx", maps, torch.from_numpy(self.weight).to(maps)) + self.offset
        fine = interpolate(cells[:, None], (PARTS, PARTS), mode="bilinear", align_corners=False)[:, 0]
        score: np.ndarray = fine.cpu().numpy() + BRIGHT * density
        return score

    def maps(self, cnn: AttentionCnn, hu: Tensor, chosen: list[int]) -> np.ndarray:
        """Probabilities (k, G, G) float32 of the `chosen` slices of a scan (n, H, W) that a part is in a box.

        For slices with a bleed. `hu` is cropped as the CNN's pictures are. Outside the skull it is 0.
        """
        inside, density = anatomy(hu[chosen])
        score = self.slope * self._score(_maps(cnn, hu, chosen), density) + self.intercept
        return np.where(inside, 1 / (1 + np.exp(-score)), 0).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write `location.safetensors` into the folder of a run."""
        line = np.array([self.offset, self.slope, self.intercept])
        with whole_file(folder / LOCATION) as temporary:
            save_file({"weight": self.weight, "line": line}, temporary)

    @classmethod
    def load(cls, folder: Path, channels: int) -> Self | None:
        """Read the file of `save`; None if it does not exist. `ModelError`: damaged, or of other channels."""
        path = folder / LOCATION
        if not path.is_file():
            return None
        tensors, _ = read_tensors(path)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != {"weight": (channels,), "line": (3,)}:
            raise ModelError(f"{path}: does not fit the CNN; train again")
        return cls(tensors["weight"].numpy(), *tensors["line"].tolist())


@torch.inference_mode()
def _maps(cnn: AttentionCnn, hu: Tensor, chosen: list[int]) -> Tensor:
    """Feature maps (k, F, h, w) of the `chosen` slices of a scan (n, H, W), on the CPU."""
    pictures = cnn.pictures().scan(hu.to(next(cnn.parameters()).device))[chosen]
    return cnn.frozen_maps(pictures, blocks=len(cnn.encoder)).cpu()

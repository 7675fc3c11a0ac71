"""Does the largest value of a heatmap lie in a box around a bleed? Pointing game on boxes of single slices.

    python -m research.benchmarks.pointing --run RUN --prepared data/headct_base/also_2 --held BOXES.csv

In: a run or ensemble whose networks locate bleeds, a prepared set of single slices, and a `boxes.csv` of
slices that the networks were not trained on. Out: localisation (`localise`), with intervals over slices, of
the heatmaps, and beside them of the middle of the brain, the brightest place in it (blood is bright) and
Grad-CAM of the slice logit of each network. All maps are 0 outside the brain.

Shapes: k slices, G x G parts of a map.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from ich_mil.model.storage import load_model
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.training.box_targets import PARTS, box_target
from ich_mil.network.windows import resize
from ich_mil.sets.boxes import read_boxes
from ich_mil.sets.store import open_prepared
from ich_mil.study.head_box import head_box
from research.benchmarks.localise import localise
from research.benchmarks.record import command_line, record, table, with_interval

BONE = 80
"""Smallest HU that counts as bone: pictures of a brain window end here."""
BLUR = 1.5
"""Standard deviation in parts of the smoothing of the brightness."""
METRICS = {"strict": "maximum in a box", "energy": "share inside", "gain": "gain over chance"}


def brain(bone: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Parts (G, G) enclosed by bone; everything if it encloses nothing."""
    inside = ndimage.binary_fill_holes(ndimage.binary_closing(bone, iterations=2)) & ~bone
    inside = ndimage.binary_opening(inside)
    return inside if inside.any() else ~bone


def middle(inside: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Map (G, G) with its maximum at the middle of the brain, 0 elsewhere."""
    found = np.zeros(inside.shape)
    found[tuple(np.rint(ndimage.center_of_mass(inside)).astype(int))] = 1
    return found


@torch.inference_mode()
def grad_cam(cnn: AttentionCnn, pictures: Tensor) -> Tensor:
    """Map (1, h, w) of the slice logit, a linear function of the averaged feature map, from 0 up."""
    weights = (cnn.classifier.weight @ cnn.project.weight)[0]
    found = torch.einsum("nfyx,f->nyx", cnn.encoder(pictures), weights)
    return found - found.min()


def on_parts(maps: Tensor) -> NDArray[np.float64]:
    """A map (1, h, w) on the parts of a target (G, G)."""
    fine = interpolate(maps[None], (PARTS, PARTS), mode="bilinear", align_corners=False)
    return fine[0, 0].double().numpy()


def compared(run: Path, prepared: Path, held: Path) -> str:
    """Table of all methods."""
    networks = [member.cnn for member in load_model(run).members if member.cnn]
    slices, boxes = open_prepared(prepared), read_boxes(held.parent)
    maps: dict[str, list[NDArray[np.float64]]] = {}
    masks, insides = [], []
    for name, edges in boxes.items():
        hu = slices.hu(name)
        crop = head_box(hu)
        masks.append(box_target(edges, crop, hu.shape[1:]).numpy() > 0)
        shown = torch.from_numpy(crop.crop(hu))
        picture = resize(shown[:, None].float(), 4 * PARTS)
        inside = brain(adaptive_avg_pool2d((picture >= BONE).float(), PARTS)[0, 0].numpy() > 0.5)
        insides.append(inside)
        soft = torch.where(picture < BONE, picture, torch.zeros(())).clamp(0)
        bright = ndimage.gaussian_filter(adaptive_avg_pool2d(soft, PARTS)[0, 0].double().numpy(), BLUR)
        inputs = [cnn.pictures().scan(shown) for cnn in networks]
        located = [
            on_parts(cnn.locations(own))
            for cnn, own in zip(networks, inputs, strict=True)
            if cnn.settings.locate
        ]
        found = {
            "heatmap": np.mean(located, axis=0),
            "middle of the brain": middle(inside),
            "brightest": bright,
        }
        for k, (cnn, own) in enumerate(zip(networks, inputs, strict=True)):
            found[f"Grad-CAM, network {k}"] = on_parts(grad_cam(cnn, own))
        for method, one in found.items():
            maps.setdefault(method, []).append(one * inside)
    rows = []
    for method, each in maps.items():
        result = localise(
            torch.from_numpy(np.stack(each)), np.stack(masks), np.stack(insides), list(boxes), seed=0
        )
        ends = result.intervals
        cells = [with_interval(result.means[name], (ends[name].low, ends[name].high)) for name in METRICS]
        rows.append([method, *cells])
    chance = float(np.mean([mask[inside].mean() for mask, inside in zip(masks, insides, strict=True)]))
    rows.append(["chance", f"{chance:.3f}", "", ""])
    return table([f"{len(boxes)} slices", *METRICS.values()], rows)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--held", type=Path, required=True, help="boxes.csv of slices not trained on")
    chosen = parser.parse_args()
    record("Where the bleed is", compared(chosen.run, chosen.prepared, chosen.held))


if __name__ == "__main__":
    main()

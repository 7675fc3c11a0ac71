"""Does the largest value of a heatmap lie in a box around a bleed? Pointing game on boxes of single slices.

    python -m research.benchmarks.pointing --networks checkpoints/headct_base

In: a finished ensemble with locations, and its configuration; the boxed slices of its validation split, to
which no location was fitted. Out: localisation (`localise`), with intervals over slices, of the heatmap (mean
over members), and beside it of the middle of the brain, its densest place (blood is dense) and Grad-CAM of
the slice logit of each member. All maps are 0 outside the brain.

Shapes: k slices, G x G parts of a map.
"""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor
from torch.nn.functional import interpolate

from ich_mil.config import RunConfig, read_config
from ich_mil.model.storage import load_model
from ich_mil.model.training.training_sets import open_training, training_boxes
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.location import PARTS, anatomy, box_target
from ich_mil.sets.splits import load_splits
from ich_mil.study.head_box import head_box
from research.benchmarks.localise import localise
from research.benchmarks.record import command_line, record, table, with_interval

METRICS = {"strict": "maximum in a box", "energy": "share inside", "gain": "gain over chance"}


def middle(inside: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Map (G, G) with its maximum at the middle of the brain, 0 elsewhere."""
    found = np.zeros(inside.shape)
    found[tuple(np.rint(ndimage.center_of_mass(inside)).astype(int))] = 1
    return found


@torch.inference_mode()
def grad_cam(cnn: AttentionCnn, pictures: Tensor) -> Tensor:
    """Map (1, h, w) of the slice logit, a linear function of the averaged feature map, from 0 up."""
    weights = (cnn.aggregator.get_parameter("classifier.weight") @ cnn.project.weight)[0]
    found = torch.einsum("nfyx,f->nyx", cnn.encoder(pictures), weights)
    return found - found.min()


def on_parts(maps: Tensor) -> NDArray[np.float64]:
    """A map (1, h, w) on the parts of a target (G, G)."""
    fine = interpolate(maps[None], (PARTS, PARTS), mode="bilinear", align_corners=False)
    return fine[0, 0].double().numpy()


def compared(config: RunConfig) -> str:
    """Table of all methods."""
    prepared, boxes = open_training(config), training_boxes(config)
    maps: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
    splits = load_splits(config.out / "splits.csv")
    names = splits.scan[(splits.split == "validation") & splits.scan.isin({*boxes})].tolist()
    pairs = [(one.cnn, one.location) for one in load_model(config.out).members if one.cnn and one.location]
    masks, insides = [], []
    for name in names:
        hu = prepared.hu(name)
        crop = head_box(hu)
        shown = torch.from_numpy(crop.crop(hu))
        seen = anatomy(shown)
        inside = seen.inside[0]
        found = {
            "heatmap": np.mean([location.maps(cnn, shown, [0])[0] for cnn, location in pairs], axis=0),
            "middle of the brain": middle(inside),
            "densest place": seen.density[0],
        }
        for k, (cnn, _) in enumerate(pairs):
            found[f"Grad-CAM, member {k}"] = on_parts(grad_cam(cnn, cnn.pictures().scan(shown)))
        for method, one in found.items():
            maps[method].append(one.astype(np.float64) * inside)
        masks.append(box_target(boxes[name], crop, hu.shape[1:]))
        insides.append(inside)
    rows = []
    for method, each in maps.items():
        result = localise(torch.from_numpy(np.stack(each)), np.stack(masks), np.stack(insides), names, seed=0)
        ends = result.intervals
        cells = [with_interval(result.means[name], (ends[name].low, ends[name].high)) for name in METRICS]
        rows.append([method, *cells])
    chance = float(np.mean([mask[inside].mean() for mask, inside in zip(masks, insides, strict=True)]))
    rows.append(["chance", f"{chance:.3f}", "", ""])
    return table([f"{len(names)} slices", *METRICS.values()], rows)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path("configs/headct_base.yaml"))
    chosen, rest = parser.parse_known_args()
    config = read_config(["--config", str(chosen.config), *rest])
    record("Where the bleed is", compared(replace(config, out=chosen.networks)))


if __name__ == "__main__":
    main()

"""Occlusion maps: drop of the latent mean when a square of a slice is covered.

In: the windowed slices of a scan, the frozen CNN, the Gaussian process. Out: for each chosen slice, the drop
of the latent mean when a square is replaced by the scan's mean slice (Zeiler & Fergus 2014, arXiv 1311.2901,
who used grey). A heatmap that agrees with it is not an artefact of gradients, as no gradient is used. The
cost is a pass through the CNN per square. Squares are covered one at a time, so two bleeds, each sufficient
for the prediction, hide each other.

    drop(i, j) = f(h(x)) - f(h(x with square (i, j) replaced))

Shapes: n slices of the scan, k chosen slices, C channels, S pixels, g cells per side, M inducing points.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ich_mil.encoders.attention_cnn import AttentionCnn
from ich_mil.gp.predict import latent_samples
from ich_mil.gp.sparse_gp import SparseGP

PATCHES = 8
"""Number of adjacent squares across the image; 29 mm each for a field of view of 230 mm."""
STEPS = 2
"""Positions of squares per side of a square: the stride is half of the side."""


@torch.no_grad()
def occlusion_map(cnn: AttentionCnn, head: SparseGP, pictures: Tensor, chosen: Sequence[int]) -> Tensor:
    """Occlusion maps (k, g, g) of the chosen slices, g = `PATCHES` * `STEPS`, from all pictures (n, C, S, S).

    The value of a cell is the mean drop of the squares that contain it: `STEPS`², fewer at the border.
    """
    g = PATCHES * STEPS
    size = pictures.shape[-1]
    edges = torch.linspace(0, size, g + 1).round().int().tolist()
    spans = [(edges[i], edges[i + STEPS]) for i in range(g - STEPS + 1)]
    mean_slice = pictures.mean(0)
    maps = []
    for n in chosen:
        falls = []
        for top, bottom in spans:
            covered = pictures[n].repeat(len(spans) + 1, 1, 1, 1)  # the last image stays uncovered
            for one, (left, right) in zip(covered, spans, strict=False):
                one[:, top:bottom, left:right] = mean_slice[:, top:bottom, left:right]
            features = cnn.encode(covered).to(head.x_mean.device, torch.float64)
            f = latent_samples(head, features, head.q_mean)  # (len(spans) + 1,)
            falls.append(f[-1] - f[:-1])
        maps.append(_spread(torch.stack(falls)))
    return torch.stack(maps)


def _spread(fall: Tensor) -> Tensor:
    """Drops of squares (m, m) to cells (m + STEPS - 1, m + STEPS - 1): mean over the squares on a cell."""
    kernel = torch.ones(1, 1, STEPS, STEPS).to(fall)
    both = torch.stack([fall, torch.ones_like(fall)])[:, None]  # (2, 1, m, m)
    total, count = torch.nn.functional.conv_transpose2d(both, kernel)[:, 0]
    return total / count

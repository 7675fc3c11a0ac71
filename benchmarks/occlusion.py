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
    """Compute occlusion maps of slices.

    Args:
        cnn: frozen CNN, in evaluation mode.
        head: fitted head.
        pictures: (n, C, S, S) in [0, 1], all slices of the scan; S is at least `PATCHES` * `STEPS`.
        chosen: k indices of slices.

    Returns:
        (k, g, g) float64, g = `PATCHES` * `STEPS`, over the whole image. The value of a cell is the mean drop
        of the squares that contain it: `STEPS`² squares, fewer at the border.
    """
    g = PATCHES * STEPS
    size = pictures.shape[-1]
    edges = torch.linspace(0, size, g + 1).round().int().tolist()
    spans = [(edges[i], edges[i + STEPS]) for i in range(g - STEPS + 1)]
    mean_slice = pictures.mean(0)
    maps = []
    for n in chosen:
        fall = torch.stack([_row(cnn, head, pictures[n], mean_slice, rows, spans) for rows in spans])
        maps.append(_spread(fall))
    return torch.stack(maps)


def _row(
    cnn: AttentionCnn,
    head: SparseGP,
    picture: Tensor,
    mean_slice: Tensor,
    rows: tuple[int, int],
    columns: list[tuple[int, int]],
) -> Tensor:
    """Drop of the latent mean for each square of a row of squares, (len(columns),) float64."""
    covered = picture.repeat(len(columns) + 1, 1, 1, 1)  # the last image stays uncovered
    for one, (left, right) in zip(covered, columns, strict=False):
        one[:, slice(*rows), left:right] = mean_slice[:, slice(*rows), left:right]
    features = cnn.encode(covered).to(head.x_mean.device, torch.float64)
    f = latent_samples(head, features, head.q_mean)  # (len(columns) + 1,)
    return f[-1] - f[:-1]


def _spread(fall: Tensor) -> Tensor:
    """Drops of squares (m, m) to cells (m + STEPS - 1, m + STEPS - 1): mean over the squares on a cell."""
    kernel = torch.ones(1, 1, STEPS, STEPS).to(fall)
    both = torch.stack([fall, torch.ones_like(fall)])[:, None]  # (2, 1, m, m)
    total, count = torch.nn.functional.conv_transpose2d(both, kernel)[:, 0]
    return total / count

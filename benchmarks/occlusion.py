"""The slow check of a heat map: cover a place, ask the whole model again, see what the answer loses.

In: the windowed slices of a scan, the frozen CNN, the Gaussian process. Out: for each slice asked for, how
far the latent mean falls when a square of it is replaced by the scan's mean slice (Zeiler & Fergus 2014,
arXiv 1311.2901, who used grey). No gradient takes part, so a map that agrees with it is not an artefact of
gradients; but it costs a pass through the CNN for each place, and sees one square at a time: two bleeds of
which one would do hide each other.

    drop(i, j) = f(h(x)) - f(h(x with square (i, j) replaced))

Shapes: n slices of the scan, k slices asked for, C channels, S pixels, g places a side, M inducing points.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ich_mil.gp.predict import latent_samples
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.models.attention_cnn import AttentionCnn

PATCHES = 8
"""Squares side by side across the picture: 29 mm each where the field of view is 230 mm."""
STEPS = 2
"""Neighbouring squares are a half of their side apart."""


@torch.no_grad()
def occlusion_map(cnn: AttentionCnn, head: SparseGP, pictures: Tensor, chosen: Sequence[int]) -> Tensor:
    """How far the latent mean falls when a place is covered.

    Args:
        cnn: frozen, in evaluation mode.
        head: fitted.
        pictures: (n, C, S, S) in [0, 1], all slices of the scan; S is at least `PATCHES` * `STEPS`.
        chosen: k indices of slices.

    Returns:
        (k, g, g) float64, g = `PATCHES` * `STEPS`, covering the picture: each cell has the mean of the
        squares that it lies in, as many as `STEPS`² away from the border.
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
    """What is lost by covering each square of one row of squares, (len(columns),) float64."""
    covered = picture.repeat(len(columns) + 1, 1, 1, 1)  # the last one stays as it is
    for one, (left, right) in zip(covered, columns, strict=False):
        one[:, slice(*rows), left:right] = mean_slice[:, slice(*rows), left:right]
    features = cnn.encode(covered).to(head.x_mean.device, torch.float64)
    f = latent_samples(head, features, head.q_mean)  # (len(columns) + 1,)
    return f[-1] - f[:-1]


def _spread(fall: Tensor) -> Tensor:
    """(m, m) falls of squares to (m + STEPS - 1, m + STEPS - 1) cells: the mean over squares on a cell."""
    kernel = torch.ones(1, 1, STEPS, STEPS).to(fall)
    both = torch.stack([fall, torch.ones_like(fall)])[:, None]  # (2, 1, m, m)
    total, count = torch.nn.functional.conv_transpose2d(both, kernel)[:, 0]
    return total / count

"""Where in a slice the evidence for blood lies, and how unsure the model is about that.

In: the windowed slices of a scan, the frozen CNN, the Gaussian process and posterior samples. Out: two maps
for each slice asked for: mean and standard deviation, over posterior samples, of the evidence at each place.

The encoder is cut at the first map of at most `MAP_SIDE` cells a side: fine enough to show a bleed's shape,
where the last map has 6 x 6. With A (F, h, w) that map of the slice and Ā that of the reference, the way from
one to the other, A(t) = Ā + t (A - Ā), leads through the rest of the CNN to features h(t), and through a
posterior sample f_l of the latent function to its value. Integrated gradients (Sundararajan et al. 2017,
Eq. 1, taken at an inner layer and summed over channels) give each place its share:

    map_l(y, x) = Σ_F (A_F - Ā_F)(y, x) · mean over t of ∂f_l(h(t)) / ∂A_F(y, x)
    Σ_{y,x} map_l = f_l(h(1)) - f_l(h(0))

The integral over t is a mean over midpoints: `PATH_POINTS` of them for the mean map, with which the sum
holds within a few percent, and `SPREAD_POINTS` for each sample. The reference is the mean slice of the scan:
what the slices have in common is no evidence. Along the way f does what it does between a slice without a
finding and this one; its slope at h alone says nothing, since f flattens far from the training slices.

f is linear in w, so the mean map is that of the posterior mean of w: one backward pass through the CNN. The
standard deviation is that of a few samples, one pass each. At last each map is smoothed by a cell, which
keeps its sum.

A sample is f_l = Φᵀ w_l, the part that follows from the inducing points: what these leave open far from all
training slices belongs to no place, and is in the slice's probability only. So is smoothing along z: the
maps are of what the slice shows by itself.

Shapes: n slices of the scan, k slices asked for, C channels, S pixels, D features, F channels, L samples,
T points, g = S / 2 cells of the maps returned.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ich_mil.gp.predict import latent_samples
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.models.attention_cnn import AttentionCnn
from ich_mil.models.encoder_parts import EncoderParts, split_encoder

MAP_SIDE = 48
"""Most cells a side: 5 mm where the field of view is 230 mm. Of pictures of 96 pixels coarser maps point
worse, of 256 pixels finer ones no better (benchmarks/RESULTS.md)."""
SMOOTH = 1.0
"""Standard deviation of the smoothing, in cells: single cells stand out for no reason a reader could see."""
PATH_POINTS = 8
"""Points on the way from the mean slice to the slice, for the mean map."""
SPREAD_POINTS = 2
"""The same for each sample: a standard deviation of few samples is no more exact than this."""


@torch.inference_mode(False)
@torch.enable_grad()
def slice_maps(
    cnn: AttentionCnn, head: SparseGP, pictures: Tensor, chosen: Sequence[int], weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the evidence for blood at each place of the chosen slices.

    Args:
        cnn: frozen, in evaluation mode.
        head: fitted.
        pictures: (n, C, S, S) in [0, 1], all slices of the scan.
        chosen: k indices of slices, at least one.
        weights: (L, M) whitened posterior samples (`ich_mil.gp.predict.draw_weights`), at least two.

    Returns:
        Two (k, g, g) float64 tensors on the scale of the latent function f: the map of the posterior mean,
        and the standard deviation of the maps of `weights`. They cover the picture; a cell is two pixels
        wide.

    Raises:
        IndexError: an index that is none of a slice.
        ValueError: a CNN in training mode.
    """
    if cnn.training:
        raise ValueError("maps are of a CNN in evaluation mode; call its eval()")
    weights = weights.clone()  # autograd refuses those that were drawn in inference mode
    size = pictures.shape[-1]
    parts = split_encoder(cnn.encoder, channels=pictures.shape[1], size=size, side=MAP_SIDE)
    start = _first_map(parts, pictures.mean(0, keepdim=True))  # (1, F, h, w)
    means, stds = [], []
    for n in chosen:
        end = _first_map(parts, pictures[n][None])
        mean = _evidence(cnn, parts, head, start, end, head.q_mean[None], PATH_POINTS)
        samples = _evidence(cnn, parts, head, start, end, weights, SPREAD_POINTS)
        place = _placed(parts, mean.shape[-1], size).to(mean)  # (g, h)
        means.append(place @ mean[0] @ place.mT)
        stds.append((place @ samples @ place.mT).std(0))
    return torch.stack(means), torch.stack(stds)


@torch.no_grad()
def _first_map(parts: EncoderParts, picture: Tensor) -> Tensor:
    """(1, F, h, w) of one picture: slice by slice, so that memory does not grow with the scan."""
    maps: Tensor = parts.first(picture.contiguous(memory_format=torch.channels_last))
    return maps


def _evidence(
    cnn: AttentionCnn,
    parts: EncoderParts,
    head: SparseGP,
    start: Tensor,
    end: Tensor,
    weights: Tensor,
    points: int,
) -> Tensor:
    """map_l of one slice, (L, h, w) float64 on the head's device."""
    t = (torch.arange(points).to(start) + 0.5) / points
    way = (start + t[:, None, None, None] * (end - start)).requires_grad_()  # (T, F, h, w)
    # the rest may work in place, which a leaf does not allow
    features = cnn.features_of_maps(parts.rest(way.clone()))  # (T, D)
    maps = []
    for slopes in _slopes(head, features, weights):
        (gradient,) = torch.autograd.grad(features, way, slopes.to(features), retain_graph=True)
        maps.append(((end - start)[0] * gradient.mean(0)).sum(0))  # (h, w)
    return torch.stack(maps).to(weights)


def _slopes(head: SparseGP, features: Tensor, weights: Tensor) -> Tensor:
    """∂f_l/∂h at each of T features, (L, T, D) float64."""
    # the head may lie elsewhere than the CNN
    x = features.detach().to(head.x_mean.device, torch.float64).requires_grad_()  # (T, D)
    f = latent_samples(head, x, weights)  # (L, T)
    rows = [torch.autograd.grad(sample.sum(), x, retain_graph=True)[0] for sample in f]
    return torch.stack(rows)


def _placed(parts: EncoderParts, cells: int, size: int) -> Tensor:
    """Along one side, where in cells of two pixels an encoder's cell goes: (g, cells), columns sum to 1."""
    g = size // 2
    edges = torch.linspace(0, size, g + 1, dtype=torch.float64)
    low = parts.left + parts.pitch * torch.arange(cells, dtype=torch.float64)
    upper, lower = edges[1:, None].minimum(low + parts.pitch), edges[:-1, None].maximum(low)
    overlap = (upper - lower).clamp(min=0)  # (g, cells)
    middles = (edges[1:] + edges[:-1]) / 2
    away = (middles[:, None] - middles) / (SMOOTH * parts.pitch)  # (g, g)
    smoothed = torch.softmax(-away.square() / 2, dim=0) @ overlap
    return smoothed / smoothed.sum(0)

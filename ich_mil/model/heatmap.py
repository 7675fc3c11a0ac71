"""Heatmaps of the evidence for blood in a slice, with their posterior standard deviation.

Integrated gradients (Sundararajan et al. 2017, Eq. 1) at an inner layer of the encoder, summed over channels:
the first layer whose map has at most `MAP_SIDE` cells a side, fine enough to show the shape of a bleed. Let
A (F, h, w) be the map of the slice at that layer and Ā that of the mean slice of the scan, since features
common to all slices are no evidence. The straight path A(t) = Ā + t (A - Ā) gives features h(t) after the
remaining layers, and a posterior sample f_l = Φᵀ w_l of the latent function gives f_l(h(t)):

    map_l(y, x) = Σ_F (A_F - Ā_F)(y, x) · mean over t of ∂f_l(h(t)) / ∂A_F(y, x)
    Σ_{y,x} map_l = f_l(h(1)) - f_l(h(0))

The midpoint rule approximates the integral over t. f is linear in w, so the mean map is the map of the
posterior mean of w; the standard deviation is that of a few samples. Each map is then smoothed by one cell,
which preserves its sum. The residual GP variance far from the training slices, and smoothing along z, have no
location in a slice and enter the slice probability only.

Shapes: n slices of the scan, k requested slices, C channels, S pixels, D features, F channels of the inner
layer, L samples, T points of the path, g = S / 2 cells of the returned maps.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ich_mil.heads.scan_head import ScanHead
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.encoder_parts import EncoderParts, split_encoder

MAP_SIDE = 48
"""Largest number of cells a side: 5 mm where the field of view is 230 mm. In pictures of 96 pixels coarser
maps localise worse; in pictures of 256 pixels finer maps are no better (research/RESULTS.md)."""
SMOOTH = 1.0
"""Standard deviation of the smoothing, cells; without it single cells stand out as noise."""
PATH_POINTS = 8
"""Points T on the path from the mean slice to the slice, for the mean map."""
SPREAD_POINTS = 2
"""Points T for each sample; more would be lost in the sampling error of the standard deviation."""


@torch.inference_mode(False)
@torch.enable_grad()
def slice_maps(
    cnn: AttentionCnn, head: ScanHead, pictures: Tensor, chosen: Sequence[int], weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the evidence for blood at each location of the chosen slices.

    Args:
        cnn: frozen CNN in evaluation mode.
        head: fitted head.
        pictures: (n, C, S, S) in [0, 1], all slices of the scan.
        chosen: k indices of slices, at least one.
        weights: (L, M) posterior samples from `ScanHead.evidence_draws`, at least two.

    Returns:
        Two (k, g, g) float64 tensors on the scale of the latent function f: the map of the posterior mean,
            and the standard deviation of the maps of `weights`. A cell is two pixels wide.

    Raises:
        IndexError: an index is out of range.
        ValueError: the CNN is in training mode.
    """
    if cnn.training:
        raise ValueError("maps are of a CNN in evaluation mode; call its eval()")
    weights = weights.clone()  # autograd rejects tensors created in inference mode
    size = pictures.shape[-1]
    parts = split_encoder(cnn.encoder, channels=pictures.shape[1], size=size, side=MAP_SIDE)
    start = _first_map(parts, pictures.mean(0, keepdim=True))  # (1, F, h, w)
    parts = parts._replace(rest=_without_norms(parts.rest, start))
    means, stds = [], []
    for n in chosen:
        end = _first_map(parts, pictures[n][None])
        mean = _evidence(cnn, parts, head, start, end, head.evidence_mean[None], PATH_POINTS)
        samples = _evidence(cnn, parts, head, start, end, weights, SPREAD_POINTS)
        place = _placed(parts, mean.shape[-1], size).to(mean)  # (g, h)
        means.append(place @ mean[0] @ place.mT)
        stds.append((place @ samples @ place.mT).std(0))
    return torch.stack(means), torch.stack(stds)


@torch.no_grad()
def _without_norms(layers: nn.Sequential, maps: Tensor) -> nn.Sequential:
    """Copy of layers in evaluation mode with each batch norm folded into the convolution before it.

    The outputs are the same to rounding; passes in both directions take a quarter less time.
    """
    layers = deepcopy(layers).requires_grad_(False)
    convs: list[tuple[nn.Conv2d, Tensor]] = []  # with their outputs, in the order of calls
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []

    def called(conv: nn.Conv2d, _: object, output: Tensor) -> None:
        convs.append((conv, output))

    def follows(norm: nn.BatchNorm2d, inputs: tuple[Tensor]) -> None:
        if convs and convs[-1][1] is inputs[0]:
            pairs.append((convs[-1][0], norm))

    hooks = [
        module.register_forward_hook(called) for module in layers.modules() if isinstance(module, nn.Conv2d)
    ]
    hooks += [
        module.register_forward_pre_hook(follows)
        for module in layers.modules()
        if isinstance(module, nn.BatchNorm2d)
    ]
    layers(maps)
    for hook in hooks:
        hook.remove()
    names = {module: name for name, module in layers.named_modules()}
    for conv, norm in pairs:
        folded = fuse_conv_bn_eval(conv, norm)
        conv.weight, conv.bias = folded.weight, folded.bias
        layers.set_submodule(names[norm], nn.Identity())
    return layers


@torch.no_grad()
def _first_map(parts: EncoderParts, picture: Tensor) -> Tensor:
    """Inner-layer map (1, F, h, w) of one picture; memory does not grow with the scan."""
    maps: Tensor = parts.first(picture.contiguous(memory_format=torch.channels_last))
    return maps


def _evidence(
    cnn: AttentionCnn,
    parts: EncoderParts,
    head: ScanHead,
    start: Tensor,
    end: Tensor,
    weights: Tensor,
    points: int,
) -> Tensor:
    """Maps map_l of one slice, (L, h, w) float64 on the device of the head."""
    t = (torch.arange(points).to(start) + 0.5) / points
    way = (start + t[:, None, None, None] * (end - start)).requires_grad_()  # (T, F, h, w)
    # clone: later layers may modify their input in place, which autograd forbids for a leaf
    features = cnn.features_of_maps(parts.rest(way.clone()))  # (T, D)
    maps = []
    for slopes in _slopes(head, features, weights):
        (gradient,) = torch.autograd.grad(features, way, slopes.to(features), retain_graph=True)
        maps.append(((end - start)[0] * gradient.mean(0)).sum(0))  # (h, w)
    return torch.stack(maps).to(weights)


def _slopes(head: ScanHead, features: Tensor, weights: Tensor) -> Tensor:
    """Gradients ∂f_l/∂h at each of T features, (L, T, D) float64."""
    # the head may be on another device than the CNN
    x = features.detach().to(head.x_mean.device, torch.float64).requires_grad_()  # (T, D)
    samples = head.evidence(x, weights)  # (L, T)
    return torch.stack([torch.autograd.grad(own.sum(), x, retain_graph=True)[0] for own in samples])


def _placed(parts: EncoderParts, cells: int, size: int) -> Tensor:
    """Resampling matrix (g, cells) along one side, from encoder cells to two-pixel cells, smoothed.

    Columns sum to 1, so that the sum of a map is preserved.
    """
    g = size // 2
    edges = torch.linspace(0, size, g + 1, dtype=torch.float64)
    low = parts.left + parts.pitch * torch.arange(cells, dtype=torch.float64)
    upper, lower = edges[1:, None].minimum(low + parts.pitch), edges[:-1, None].maximum(low)
    overlap = (upper - lower).clamp(min=0)  # (g, cells)
    middles = (edges[1:] + edges[:-1]) / 2
    away = (middles[:, None] - middles) / (SMOOTH * parts.pitch)  # (g, g)
    smoothed = torch.softmax(-away.square() / 2, dim=0) @ overlap
    return smoothed / smoothed.sum(0)

"""Where in a slice the model looks, and how unsure it is about that.

In: the windowed slices of a scan, the frozen CNN, the Gaussian process and posterior samples. Out: two maps
for each slice asked for: mean and standard deviation, over posterior samples, of the evidence at each place.

The reference is the mean slice of the scan: what the slices have in common is no evidence. The last map A
(F, h, w) of the encoder enters the features h through linear layers, so the place (y, x) contributes to
feature d

    C_d(y, x) = Σ_F (A_F(y, x) - Ā_F(y, x)) ∂h_d/∂A_F(y, x),        Σ_{y,x} C_d(y, x) = h_d - h̄_d

(gradient times activation, summed over channels only: Draelos & Carin 2020, arXiv 2011.08891). The latent
function f flattens far from the training slices, so its slope at h alone would say nothing there; the slope
is averaged on the way from h̄ to h (integrated gradients: Sundararajan et al. 2017, Eq. 1). For a posterior
sample f_l

    map_l(y, x) = Σ_d C_d(y, x) · mean over t of ∂f_l/∂h_d (h̄ + t (h - h̄))
    Σ_{y,x} map_l = f_l(h) - f_l(h̄)

Shapes: n slices of the scan, k slices asked for, C windows, S pixels, D features, F channels, L samples.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ich_mil.gp.predict import latent_samples
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.models.attention_cnn import AttentionCnn

PATH_POINTS = 16
"""Points on the way from the mean slice to the slice; with 16 a map sums up to within about 1 %."""


def slice_maps(
    cnn: AttentionCnn, head: SparseGP, pictures: Tensor, chosen: Sequence[int], weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the evidence for blood at each place of the chosen slices.

    Args:
        cnn: frozen, in evaluation mode.
        head: fitted.
        pictures: (n, C, S, S) in [0, 1], all slices of the scan.
        chosen: k indices of slices.
        weights: (L, M) whitened posterior samples (`ich_mil.gp.predict.draw_weights`).

    Returns:
        Two (k, h, w) float64 tensors on the scale of the latent function f.
    """
    with torch.no_grad():
        every = cnn.encode_maps(pictures)  # (n, F, h, w)
    mean_map = every.mean(0, keepdim=True)
    maps = every[list(chosen)].requires_grad_()  # (k, F, h, w)
    features = cnn.features_of_maps(maps)  # (k, D)
    places = []
    for d in range(features.shape[1]):
        (gradient,) = torch.autograd.grad(features[:, d].sum(), maps, retain_graph=True)
        places.append(((maps.detach() - mean_map) * gradient).sum(1))  # (k, h, w)
    device = head.x_mean.device  # the head may lie elsewhere than the CNN
    contributions = torch.stack(places, dim=1).to(device, torch.float64)  # (k, D, h, w)

    with torch.no_grad():
        start = cnn.features_of_maps(mean_map).to(device, torch.float64)  # (1, D)
    end = features.detach().to(device, torch.float64)  # (k, D)
    t = (torch.arange(PATH_POINTS, dtype=torch.float64, device=end.device) + 0.5) / PATH_POINTS
    path = (start + t[:, None, None] * (end - start)).flatten(0, 1).requires_grad_()  # (PATH_POINTS · k, D)
    f = latent_samples(head, path, weights)  # (L, PATH_POINTS · k)
    slopes = torch.stack([torch.autograd.grad(sample.sum(), path, retain_graph=True)[0] for sample in f])
    slopes = slopes.unflatten(1, (PATH_POINTS, len(end))).mean(1)  # (L, k, D)
    evidence = torch.einsum("lkd,kdyx->lkyx", slopes, contributions)
    return evidence.mean(0), evidence.std(0)

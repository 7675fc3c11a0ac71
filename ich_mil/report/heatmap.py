"""Where in a slice the model looks, and how unsure it is about that.

In: windowed slices, the frozen CNN, the Gaussian process and posterior samples. Out: two maps a slice.

The last map A (F, h, w) of the encoder enters a feature h_d through an almost linear layer, so its place (y,
x) contributes  C_d(y, x) = Σ_F A_F(y, x) ∂h_d/∂A_F(y, x)  (gradient times activation, summed over channels
only, so
the place is kept: Draelos & Carin 2020, arXiv 2011.08891). A posterior sample f_l of the latent function
then gives the map Σ_d (∂f_l/∂h_d) C_d(y, x). Mean and standard deviation over samples are the two maps. Their
resolution is that of the encoder's last map (6x6 for the papers' CNN).

Shapes: n slices, C windows, S pixels, D features, F channels, L samples.
"""

import torch
from torch import Tensor

from ich_mil.gp.model import VGPMIL
from ich_mil.gp.predict import latent_samples
from ich_mil.models.attention_cnn import AttentionCnn


def slice_maps(cnn: AttentionCnn, head: VGPMIL, pictures: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the evidence for blood at each place.

    Args:
        cnn: frozen, in evaluation mode.
        head: fitted.
        pictures: (n, C, S, S) in [0, 1].
        weights: (L, M) whitened posterior samples (`ich_mil.gp.predict.draw_weights`).

    Returns:
        Two (n, h, w) tensors, on the scale of the latent function f.
    """
    with torch.no_grad():
        maps = cnn.encoder(pictures)  # (n, F, h, w)
    maps.requires_grad_()
    features = cnn.features_of_maps(maps)  # (n, D)
    contributions = []
    for d in range(features.shape[1]):
        (gradient,) = torch.autograd.grad(features[:, d].sum(), maps, retain_graph=True)
        contributions.append((maps.detach() * gradient).sum(1))  # (n, h, w)
    places = torch.stack(contributions, dim=1)  # (n, D, h, w)

    x = features.detach().double().requires_grad_()
    f = latent_samples(head, x, weights)  # (L, n)
    slopes = [torch.autograd.grad(sample.sum(), x, retain_graph=True)[0] for sample in f]  # L times (n, D)
    evidence = torch.einsum("lnd,ndyx->lnyx", torch.stack(slopes), places.double())
    return evidence.mean(0), evidence.std(0)

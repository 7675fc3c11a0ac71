"""Laplace approximation of the coefficients with primary instances summed out: a correction of mean field.

In: a `Model` and starts from variational inference. Out: normal posteriors of all coefficients together.

Mean field factorises y*, δ and the coefficients: the bag tier shrinks to 0, and intervals are far too narrow.
Here no latent variable is left. Given the coefficients, Σ_j δ_j h_j β of a bag is a sum of independent terms;
with the normal distribution of its mean and variance in its place

    P(y = 1) ≈ Φ( (α + Σ p c) / √(1 + Σ p (1 - p) c²) ),        p = Φ(h b),    c = h β

which is exact where every p is 0 or 1, and good where a bag has several uncertain instances. Its product with
the prior is climbed by L-BFGS; the curvature at the top gives the covariance, across tiers too.

Shapes: R modes, C coefficients: b of each modality, then θ.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtr

from ich_mil.multimodal.inference.coefficients import Coefficients
from ich_mil.multimodal.inference.restarts import Fit
from ich_mil.multimodal.inference.variational import Model
from ich_mil.multimodal.layout import Chunk

STEPS = 300
"""Most iterations of L-BFGS."""


def log_likelihood(model: Model, inner: Sequence[Tensor], outer: Tensor) -> Tensor:
    """Approximate log-probability () of all labels given b (P,) of each modality and θ (Q,)."""
    return torch.stack([_of_chunk(model, chunk, inner, outer) for chunk in model.chunks]).sum()


def _of_chunk(model: Model, chunk: Chunk, inner: Sequence[Tensor], outer: Tensor) -> Tensor:
    """Its part that belongs to the bags of a chunk."""
    n_bags = chunk.bags.stop - chunk.bags.start
    mean, variance = outer[0].expand(n_bags), outer.new_ones(n_bags)
    for b, at, block in zip(inner, model.columns.places, chunk.blocks, strict=True):
        if block is not None:
            p, c = ndtr(block.h @ b), block.x @ outer[at]
            mean = mean.index_add(0, block.bags, p * c)
            variance = variance.index_add(0, block.bags, p * (1 - p) * c.square())
    return log_ndtr(model.signs[chunk.bags] * mean / variance.sqrt()).sum()


def laplace(model: Model, fit: Fit) -> tuple[Coefficients, Tensor]:
    """Modes near the optima of `fit`.

    Returns:
        Normal posteriors of R modes, and the logarithm (R,) of the evidence that each approximates.
    """
    precision = torch.cat([*model.inner_precision, model.outer_precision])  # (C,)
    widths = [len(one) for one in model.inner_precision]

    def part(chunk: Chunk, theta: Tensor) -> Tensor:
        *inner, outer = theta.split([*widths, model.columns.size])
        return -_of_chunk(model, chunk, inner, outer)

    def penalty(theta: Tensor) -> Tensor:
        return (precision * theta.square()).sum() / 2

    modes, covariances, log_dets, evidence = [], [], [], []
    for k in range(len(fit.outer.mean)):
        theta = torch.cat([one.mean[k] for one in (*fit.inner, fit.outer)]).clone().requires_grad_()
        optimiser = torch.optim.LBFGS(
            [theta], max_iter=STEPS, history_size=30, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
        )

        def closure(theta: Tensor = theta, optimiser: torch.optim.Optimizer = optimiser) -> Tensor:
            optimiser.zero_grad()
            total = torch.zeros_like(theta[0])
            for chunk in model.chunks:  # one after another: the graph of one chunk is held at a time
                value = part(chunk, theta)
                value.backward()
                total = total + value.detach()
            value = penalty(theta)
            value.backward()
            return total + value.detach()

        optimiser.step(closure)
        mode = theta.detach()
        curvature = precision.diag()
        for chunk in model.chunks:
            own = torch.autograd.functional.hessian(partial(part, chunk), mode)
            assert isinstance(own, Tensor)
            curvature = curvature + own
        values, vectors = torch.linalg.eigh((curvature + curvature.mT) / 2)
        # the likelihood is not concave everywhere: no direction is held less than by the weakest prior
        values = values.clamp(min=float(precision.min()))
        modes.append(mode)
        covariances.append((vectors / values) @ vectors.mT)
        log_dets.append(-values.log().sum())
        prior = (precision.log().sum() - len(mode) * math.log(2 * math.pi)) / 2
        spread = (log_dets[-1] + len(mode) * math.log(2 * math.pi)) / 2
        likelihood = -torch.stack([part(chunk, mode) for chunk in model.chunks]).sum()
        evidence.append(prior + likelihood - penalty(mode) + spread)
    q = Coefficients(torch.stack(modes), torch.stack(covariances), torch.stack(log_dets))
    return q, torch.stack(evidence)

"""Scan probabilities from independent samples of the slices, given q.

Mean and standard deviation of the probability of each scan (Castro-Macías et al. 2024, Eq. 36-37), from
samples

    f_l = μ + σ z_l        z_l ~ N(0, I)

The distribution of a slice is the same as with the joint samples of `ich_mil.gp.predict`, that of a scan is
not: the maximum over independent slices grows with their number. The noise is a function of (seed, scan id).

Shapes: B scans, N slices of all scans, D features, L samples.
"""

import torch
from torch import Tensor

from ich_mil.gp.aggregation import latent_logit, scan_logit
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.predict import standardised_scans
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.counter import normals


@torch.no_grad()
def independent_scans(
    model: SparseGP,
    bags: Bags,
    *,
    samples: int = 1000,
    seed: int = 0,
    calibration: Calibration | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (B,) of the scan probabilities, from independent samples of the slices.

    Args:
        model: the head.
        bags: B scans.
        samples: L, at least 2.
        seed: seed of the samples.
        calibration: applied to each sample; None gives uncalibrated probabilities.
    """
    rule = model.settings.variant.rule
    if calibration is not None:
        calibration.check(rule)
    if samples < 2:
        raise ValueError(f"samples must be at least 2 (one has no spread), got {samples}")
    root = model.prior_root()
    moments = []
    for rows, key in standardised_scans(model, bags):
        phi, residual = model.project(rows, root)
        mu, sigma = model.q_mean @ phi, ((model.q_root.mT @ phi).square().sum(0) + residual).sqrt()  # (n,)
        f = mu + sigma * normals(seed, key, len(mu), samples=samples, device=mu.device)  # (L, n)
        logit = scan_logit(latent_logit(f, model.settings.link), torch.tensor([0, len(mu)]), rule).cpu()
        p = torch.sigmoid(logit) if calibration is None else calibration.scan(logit)
        moments.append(torch.cat([p.mean(0), p.std(0, correction=0)]))
    mean, std = torch.stack(moments, 1)
    return mean, std

"""Scan probabilities from independent samples of the slices, given q.

In: as in `ich_mil.gp.predict`. Out: mean and standard deviation of the probability of each scan
(Castro-Macías et al. 2024, Eq. 36-37), from samples

    f_l = μ + σ z_l        z_l ~ N(0, I)

The distribution of a slice is the same as with joint samples, that of a scan is not: the maximum over
independent slices grows with their number, so a scan of 400 slices has 400 chances of a high value. The noise
is that of `ich_mil.gp.predict`, a function of (seed, scan id). The result for a scan is bitwise independent
of the other scans of the batch.

Shapes: B scans, N slices of all scans, D features, L samples.
"""

import torch
from torch import Tensor

from ich_mil.gp.aggregation import Link, Rule, latent_logit, scan_logit
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.predict import standardised_scans
from ich_mil.gp.smoothing import blocks_of, make_smoother
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.bag_samples import bag_samples
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
    """Scan probabilities by the rule of the head, from independent samples of the slices.

    Arguments and errors are those of `ich_mil.gp.predict.predict`.

    Returns:
        Mean and standard deviation of the probability of each scan, (B,) each, float64 on the CPU.
    """
    rule = model.settings.variant.rule
    if calibration is not None:
        calibration.check(rule)
    if samples < 2:
        raise ValueError(f"samples must be at least 2 (one has no spread), got {samples}")
    smoother = make_smoother(model.settings, bags)
    root = model.prior_root()
    means, deviations, keys = [], [], []
    for (rows, key), block in zip(standardised_scans(model, bags), blocks_of(bags.offsets), strict=True):
        smooth = None if smoother is None else smoother.weights(block).to(root)
        phi, residual = model.project(rows, root, smooth=smooth)
        means.append(model.q_mean @ phi)
        deviations.append(((model.q_root.mT @ phi).square().sum(0) + residual).sqrt())
        keys.append(key)
    drawn = _logits(means, deviations, keys, rule, model.settings.link, samples=samples, seed=seed)
    said = []
    for logit in drawn.cpu().split(1, 1):  # scan by scan, so that sums do not depend on the number of scans
        p = torch.sigmoid(logit) if calibration is None else calibration.scan(logit)
        said.append(torch.cat([p.mean(0), p.std(0, correction=0)]))
    mean, std = torch.stack(said, 1)
    return mean, std


def _logits(
    means: list[Tensor],
    deviations: list[Tensor],
    keys: list[int],
    rule: Rule,
    link: Link,
    *,
    samples: int,
    seed: int,
) -> Tensor:
    """Sampled scan logits (L, B) from μ and σ of the slices of each scan."""
    if rule == "max" or (rule == "noisy_or" and link == "logistic"):
        sizes = torch.tensor([0, *map(len, means)])
        drawn = bag_samples(
            torch.cat(means)[None],
            torch.cat(deviations)[None],
            sizes.cumsum(0),
            torch.tensor(keys),
            samples=samples,
            seed=seed,
            rule="max" if rule == "max" else "noisy_or",
        )
        # the probit link is monotonic, so the largest latent value gives the largest probability
        return latent_logit(drawn.scan_logit[0], link)
    found = []
    for mu, sigma, key in zip(means, deviations, keys, strict=True):
        f = mu + sigma * normals(seed, key, len(mu), samples=samples, device=mu.device)  # (L, n)
        found.append(scan_logit(latent_logit(f, link), torch.tensor([0, len(mu)]), rule))
    return torch.cat(found, 1)

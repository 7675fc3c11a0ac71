"""What the head says of new scans if their slices are independent given q.

In: as in `ich_mil.gp.predict`. Out: mean and standard deviation of the probability of each scan
(Castro-Macías et al. 2024, Eq. 36-37), from samples

    f_l = μ + σ z_l        z_l ~ N(0, I)

A slice has the same distribution as in samples of the whole function; a scan has not: one of 400 slices has
400 chances to be high, and its maximum grows with their number. The noise is that of `ich_mil.gp.predict`, a
function of (seed, scan id), and a scan's numbers depend, to the bit, on nothing else of its batch.

Shapes: B scans, N slices of all, D features, L samples.
"""

import torch
from torch import Tensor

from ich_mil.gp.calibration import Calibration
from ich_mil.gp.predict import rows_and_keys
from ich_mil.gp.rules import Link, Rule, latent_logit, scan_logit
from ich_mil.gp.smoothing import blocks_of, make_smoother
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.bag_samples import bag_samples
from ich_mil.kernels.counter import normals


@torch.no_grad()
def independent_scans(
    model: SparseGP,
    x: Tensor,
    offsets: Tensor,
    scans: list[str] | None,
    *,
    positions: Tensor | None = None,
    samples: int = 1000,
    seed: int = 0,
    calibration: Calibration | None = None,
) -> tuple[Tensor, Tensor]:
    """Scan probabilities by the head's rule, from independent samples of its slices.

    Args:
        model: the head.
        x: (N, D) raw features.
        offsets: (B + 1,).
        scans: B ids; they key the noise. None: the scan's features do.
        positions: (N,) mm along the scan; needed where the head smooths along z.
        samples: L.
        seed: of the samples.
        calibration: applied to each sample, usually `model.calibration`; None reports the rule's own.

    Returns:
        Mean and standard deviation of each scan's probability, (B,) each, float64 on the CPU.

    Raises:
        DataError: input that does not fit, see `ich_mil.gp.predict.sample_scans`.
        ValueError: a calibration that was fitted to another rule than the head's; fewer than 2 samples.
    """
    rule = model.settings.variant.rule
    if calibration is not None:
        calibration.check(rule)
    if samples < 2:
        raise ValueError(f"samples must be at least 2 (one has no spread), got {samples}")
    smoother = make_smoother(model.settings, positions, offsets, scans=scans)
    root = model.prior_root()
    means, deviations, keys = [], [], []
    for (rows, key), block in zip(rows_and_keys(model, x, offsets, scans), blocks_of(offsets), strict=True):
        smooth = None if smoother is None else smoother.weights(block).to(root)
        phi, residual = model.project(rows, root, smooth=smooth)
        means.append(model.q_mean @ phi)
        deviations.append(((model.q_root.mT @ phi).square().sum(0) + residual).sqrt())
        keys.append(key)
    drawn = _logits(means, deviations, keys, rule, model.settings.link, samples=samples, seed=seed)
    said = []
    for logit in drawn.cpu().split(1, 1):  # scan by scan, so that no sum depends on how many there are
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
        # with a probit link the largest latent value still is that of the largest probability
        return latent_logit(drawn.scan_logit[0], link)
    found = []
    for mu, sigma, key in zip(means, deviations, keys, strict=True):
        f = mu + sigma * normals(seed, key, len(mu), samples=samples, device=mu.device)  # (L, n)
        found.append(scan_logit(latent_logit(f, link), torch.tensor([0, len(mu)]), rule))
    return torch.cat(found, 1)

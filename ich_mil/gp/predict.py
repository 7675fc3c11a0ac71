"""What the head says of new scans: probability and spread of every slice and every scan.

In: a fitted head, packed raw features and scan ids. Out: mean, standard deviation and 95 % interval of the
probability of each slice and each scan (Castro-Macías et al. 2024, Eq. 30-37), from samples of the whole
function:

    w_l ~ N(m, S)        f_l = Φᵀ w_l + √(k(x,x) + ε - ΣΦ²) ε_l

The same w_l serve all slices of all scans, so the correlation between slices, which Eq. 36 drops, is kept.
Scans are processed one by one and their noise is keyed by (seed, scan id): a scan's numbers depend, to the
bit, on nothing but the scan, the head, the seed and the number of samples; and memory is bounded by the
longest scan.

Shapes: B scans, N slices of all, n slices of one scan, D features, M inducing points, L samples.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.gp.calibration import ScanCalibration
from ich_mil.gp.model import VGPMIL
from ich_mil.gp.rules import Rule, scan_logit
from ich_mil.kernels.segments import bag_index

INTERVAL = (0.025, 0.975)
"""Quantiles that bound the reported interval."""


@dataclass(frozen=True)
class Predictions:
    """Probabilities of N slices and B scans; all tensors float64 on the CPU.

    Attributes:
        slice_mean, slice_std, slice_low, slice_high: (N,) of sigmoid(f): mean, deviation, 95 % interval.
        scan_mean, scan_std, scan_low, scan_high: (B,) of the scan probability, calibrated if asked for.
        scan_raw: (B,) mean scan probability before calibration.
        rule: that made the scan probabilities.
    """

    slice_mean: Tensor
    slice_std: Tensor
    slice_low: Tensor
    slice_high: Tensor
    scan_mean: Tensor
    scan_std: Tensor
    scan_low: Tensor
    scan_high: Tensor
    scan_raw: Tensor
    rule: Rule


def quadrature_mean(mu: Tensor, sigma: Tensor, *, nodes: int = 64) -> Tensor:
    """E[sigmoid(f)] for f ~ N(μ, σ²) by Gauss-Hermite quadrature (Eq. 31), elementwise.

    Args:
        mu: any shape.
        sigma: standard deviation, same shape.
        nodes: 64 are good to 1e-10 for σ ≤ 2 and to 1e-6 for σ ≤ 5.

    Returns:
        Same shape.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    z, w = torch.as_tensor(points).to(mu), torch.as_tensor(weights / weights.sum()).to(mu)
    return (torch.sigmoid(mu[..., None] + sigma[..., None] * z) * w).sum(-1)


def draw_weights(model: VGPMIL, samples: int, seed: int) -> Tensor:
    """Whitened inducing values w_l ~ N(m, S), (L, M); the same for every scan of one seed."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(samples, len(model.q_mean), generator=generator, dtype=torch.float64).to(model.q_mean)
    return model.q_mean + z @ model.q_root.mT


def latent_samples(model: VGPMIL, x: Tensor, w: Tensor) -> Tensor:
    """Sampled latent function without the independent residual: f_l = Φ(x)ᵀ w_l. Differentiable in `x`.

    Args:
        model: the head.
        x: (n, D) raw features.
        w: (L, M) whitened inducing values, from `draw_weights`, or m for the mean.

    Returns:
        (L, n).
    """
    return w @ model.project(x, model.prior_root())[0]


def _noise(seed: int, scan: str, samples: int, n: int) -> Tensor:
    """Standard normal (L, n) from a generator of its own for each (seed, scan id)."""
    key = hashlib.sha256(f"{seed}\n{scan}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8]) >> 1)
    return torch.randn(samples, n, generator=generator, dtype=torch.float64)


def sample_scans(
    model: VGPMIL, x: Tensor, offsets: Tensor, scans: list[str], *, samples: int = 1000, seed: int = 0
) -> Iterator[Tensor]:
    """The sampled latent values (L, n) of one scan after the other.

    Args:
        model: the head.
        x: (N, D) raw features.
        offsets: (B + 1,).
        scans: B ids; they key the noise.
        samples: L.
        seed: of the samples.

    Yields:
        (L, n) float64 for each scan.

    Raises:
        DataError: features of another width than the head's, or not finite; offsets or ids that do not fit.
    """
    bag_index(offsets)
    n_features = len(model.x_mean)
    if x.ndim != 2 or x.shape[1] != n_features:
        raise DataError(f"the head takes {n_features} features a slice, got features {tuple(x.shape)}")
    if len(x) != int(offsets[-1]) or len(scans) != len(offsets) - 1:
        raise DataError(
            f"{len(x)} slices and {len(scans)} scan ids do not fit offsets of {len(offsets) - 1} scans and "
            f"{int(offsets[-1])} slices"
        )
    if samples < 2:
        raise ValueError(f"samples must be at least 2 (one has no spread), got {samples}")
    w = draw_weights(model, samples, seed)  # (L, M)
    root = model.prior_root()
    for scan, rows in zip(scans, x.to(model.x_mean.device).split(offsets.diff().tolist()), strict=True):
        if not bool(torch.isfinite(rows).all()):
            raise DataError(f"scan {scan!r}: a feature is NaN or infinite")
        phi, residual = model.project(rows, root)
        noise = _noise(seed, scan, samples, len(rows)).to(phi)
        yield w @ phi + residual.sqrt() * noise  # (L, n)


def _summary(p: Tensor) -> Tensor:
    """Mean, standard deviation (Eq. 32-33) and interval of samples (L, k): (4, k)."""
    low, high = torch.quantile(p, torch.tensor(INTERVAL, dtype=p.dtype, device=p.device), dim=0)
    return torch.stack([p.mean(0), p.std(0, correction=0), low, high])


@torch.no_grad()
def predict(
    model: VGPMIL,
    x: Tensor,
    offsets: Tensor,
    scans: list[str],
    *,
    samples: int = 1000,
    seed: int = 0,
    rule: Rule | None = None,
    calibration: ScanCalibration | None = None,
) -> Predictions:
    """Slice and scan probabilities with their uncertainty.

    Args:
        model: the head.
        x: (N, D) raw features.
        offsets: (B + 1,).
        scans: B ids; they key the noise.
        samples: L.
        seed: of the samples.
        rule: how slices make a scan; None is that of the head's settings.
        calibration: applied to each sample of a scan, usually `model.calibration`; None reports the rule's
            own.

    Returns:
        The predictions.

    Raises:
        DataError: input that does not fit, see `sample_scans`.
        ValueError: a calibration that was fitted to another rule.
    """
    rule = rule or model.settings.rule
    if calibration is not None and calibration.rule != rule:
        raise ValueError(f"the calibration was fitted to the rule {calibration.rule!r}, not to {rule!r}")
    slices, bags, raw = [], [], []
    for f in sample_scans(model, x, offsets, scans, samples=samples, seed=seed):
        slices.append(_summary(torch.sigmoid(f)).cpu())
        logit = scan_logit(f, rule)[:, None]  # (L, 1)
        bags.append(_summary((calibration or ScanCalibration(rule=rule)).apply_logit(logit)).cpu())
        raw.append(torch.sigmoid(logit).mean(0).cpu())
    slice_mean, slice_std, slice_low, slice_high = torch.cat(slices, 1)  # each (N,)
    scan_mean, scan_std, scan_low, scan_high = torch.cat(bags, 1)  # each (B,)
    return Predictions(
        slice_mean=slice_mean,
        slice_std=slice_std,
        slice_low=slice_low,
        slice_high=slice_high,
        scan_mean=scan_mean,
        scan_std=scan_std,
        scan_low=scan_low,
        scan_high=scan_high,
        scan_raw=torch.cat(raw),
        rule=rule,
    )


@torch.no_grad()
def fit_calibration(
    model: VGPMIL,
    x: Tensor,
    offsets: Tensor,
    scans: list[str],
    labels: Tensor,
    *,
    samples: int = 1000,
    seed: int = 0,
    rule: Rule | None = None,
) -> ScanCalibration:
    """Calibrate scan probabilities on validation scans; the caller keeps it in `model.calibration`.

    Args:
        model: the head.
        x: (N, D) raw features of the validation scans.
        offsets: (B + 1,).
        scans: B ids.
        labels: (B,) in {0, 1}.
        samples: L.
        seed: of the samples.
        rule: how slices make a scan; None is that of the head's settings.

    Returns:
        The calibration; the identity, with a warning, where none can be fitted.
    """
    rule = rule or model.settings.rule
    logits = [scan_logit(f, rule) for f in sample_scans(model, x, offsets, scans, samples=samples, seed=seed)]
    return ScanCalibration.fit(torch.stack(logits, 1), labels, rule=rule)

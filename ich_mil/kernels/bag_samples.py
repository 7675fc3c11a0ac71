"""Moments of slice and scan probabilities over samples of f that are independent between slices.

In: mean μ and standard deviation σ of the latent value of every slice. Out: over L samples of f = μ + σ z,
with the z of `ich_mil.kernels.counter` (Castro-Macías et al. 2024, Eq. 31-37),

    mean and variance of sigmoid(f_n)                                        for every slice (Eq. 31-33)
    mean and variance of p_b = 1 - Π_{n∈b} (1 - sigmoid(f_n))                for every scan (Eq. 34-37)

and the samples of logit p_b = log(exp(s) - 1) with s = Σ log(1 + exp f), the input of a calibration. With the
rule `max`, p_b is max_n sigmoid(f_n) instead.

All replicates share the same z. No (L, N) array is allocated: the PyTorch implementation runs scan by scan.
The result for a scan depends, bit for bit, only on the scan, its key and the seed. Variances are computed
from differences to the mean, so they are 0 if all samples are 1.

Shapes: R replicates, B bags (scans), N instances (slices) of all, n of one, L samples.
"""

from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ich_mil.kernels.counter import normals, signed
from ich_mil.kernels.implementation import Impl, by_triton
from ich_mil.kernels.segments import bag_index, noisy_or_logit


class Sampled(NamedTuple):
    """Moments over samples, and samples of the scan logits; all float64.

    Attributes:
        slice_mean, slice_variance: (R, N) mean and variance of sigmoid(f).
        scan_mean, scan_variance: (R, B) mean and variance of p.
        scan_logit: (R, L, B) samples of logit p.
    """

    slice_mean: Tensor
    slice_variance: Tensor
    scan_mean: Tensor
    scan_variance: Tensor
    scan_logit: Tensor


def bag_samples(
    mu: Tensor,
    sigma: Tensor,
    offsets: Tensor,
    keys: Tensor,
    *,
    samples: int,
    seed: int,
    rule: Literal["noisy_or", "max"] = "noisy_or",
    impl: Impl = "auto",
) -> Sampled:
    """Moments of slice and scan probabilities (divisor L) over L independent samples, and scan logits.

    Args:
        mu: (R, N) float64 means of f.
        sigma: (R, N) float64 standard deviations.
        offsets: (B + 1,).
        keys: (B,) int64, from `ich_mil.kernels.counter.scan_key`.
        samples: L.
        seed: seed of the samples.
        rule: aggregation rule from slices to scan.
        impl: "torch" runs scan by scan, "triton" is a single kernel; "auto" is "triton" on a GPU.

    Raises:
        ValueError: an empty bag; shapes that do not fit; another dtype; an unknown rule; no sample.
    """
    n, n_bags = len(bag_index(offsets)), len(offsets) - 1
    if mu.shape != sigma.shape or mu.shape[1:] != (n,) or keys.shape != (n_bags,):
        raise ValueError(
            f"mu {tuple(mu.shape)} and sigma {tuple(sigma.shape)} must be (R, {n}), as the offsets say, "
            f"and keys {tuple(keys.shape)} must be ({n_bags},)"
        )
    if mu.dtype != torch.float64 or sigma.dtype != torch.float64:
        raise ValueError(f"mu and sigma must be float64, got {mu.dtype} and {sigma.dtype}")
    if samples < 1 or rule not in ("noisy_or", "max"):
        raise ValueError(f"needs at least one sample and a rule noisy_or or max, got {samples} and {rule!r}")
    if by_triton(impl, mu.device):
        from ich_mil.kernels.triton.bag_samples import sample

        offsets, keys = (value.to(mu.device, non_blocking=True) for value in (offsets, keys))
        mean, variance, logit = sample(mu, sigma, offsets, keys, samples, signed(seed), rule == "max")
        return Sampled(mean[:, :n], variance[:, :n], mean[:, n:], variance[:, n:], logit.mT)
    replicates = len(mu)
    slice_mean, slice_variance = mu.new_empty(2, *mu.shape)
    scan_mean, scan_variance = mu.new_empty(2, replicates, n_bags)
    logits = mu.new_empty(replicates, samples, n_bags)
    for b, (start, end) in enumerate(pairwise(offsets.tolist())):
        z = normals(seed, int(keys[b]), end - start, samples=samples, device=mu.device)  # (L, n)
        for r in range(replicates):
            f = mu[r, start:end] + sigma[r, start:end] * z  # (L, n)
            logit = _scan_logit(f, rule)  # (L,)
            logits[r, :, b] = logit
            p, rows = torch.sigmoid(f), slice(start, end)
            slice_variance[r, rows], slice_mean[r, rows] = torch.var_mean(p, 0, correction=0)
            scan_variance[r, b], scan_mean[r, b] = torch.var_mean(torch.sigmoid(logit), 0, correction=0)
    return Sampled(slice_mean, slice_variance, scan_mean, scan_variance, logits)


def _scan_logit(f: Tensor, rule: str) -> Tensor:
    """Logit of p (L,) from slice logits f (L, n)."""
    if rule == "max":
        return f.amax(1)
    return noisy_or_logit(-logsigmoid(-f).sum(1))  # Σ log(1 + exp f), exact in both tails

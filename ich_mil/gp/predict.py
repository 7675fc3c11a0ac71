"""Predict slice and scan probabilities with uncertainty, by sampling from the posterior of a head.

In: a fitted head, packed raw features and scan ids. Out: mean, standard deviation and 95 % interval of the
probability of each slice and each scan (Castro-Macías et al. 2024, Eq. 30-37), from joint samples of f over
the slices of a scan:

    w_l ~ q(w)        f_l = Φᵀ w_l + e_l        e_l ~ N(0, K_XX + εI - ΦᵀΦ)

f_l has the mean and the covariance of q(f) (Eq. 30), so the correlation between slices is kept
(`ich_mil.reproduce.statistics.independent` drops it, as in Eq. 36). All scans share the samples w_l. For a
head fitted by Gibbs sampling, w_l are its posterior draws.

Scans are processed one by one, so memory is bounded by the longest scan. The noise e_l is a function of
(seed, scan id), on a GPU as on a CPU. The result for a scan therefore depends only on the scan, the head, the
seed and the number of samples; on a CPU bit for bit. A head that smooths along z uses f~_l = W f_l
(`ich_mil.gp.smoothing`) and needs the positions of the slices.

Shapes: B scans, N slices of all, n slices of one scan, D features, M inducing points, L samples.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ich_mil.errors import DataError, ScanError
from ich_mil.gp.aggregation import latent_logit, mean_logit, sampled_scan_logit
from ich_mil.gp.calibration import SLICE_RULE, Calibration
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.smoothing import blocks_of, make_smoother
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.counter import normals, scan_key
from ich_mil.kernels.rbf_gram import LARGEST, measurable
from ich_mil.kernels.segments import bag_index

INTERVAL = (0.025, 0.975)
"""Quantile levels of the reported interval."""


FURTHEST = 1e8
"""Distance from the training mean, in training standard deviations, above which a feature value is rejected.
Such a value is no measurement but a code for a missing value."""


@dataclass(frozen=True)
class Predictions:
    """Probabilities of N slices and B scans; all tensors float64 on the CPU.

    Attributes:
        slice_mean, slice_std, slice_low, slice_high: (N,) mean, standard deviation and 95 % interval of the
            slice probability, calibrated if a calibration was given.
        scan_mean, scan_std, scan_low, scan_high: (B,) the same for the scan probability.
    """

    slice_mean: Tensor
    slice_std: Tensor
    slice_low: Tensor
    slice_high: Tensor
    scan_mean: Tensor
    scan_std: Tensor
    scan_low: Tensor
    scan_high: Tensor


def draw_weights(model: SparseGP, samples: int, seed: int) -> Tensor:
    """Draw whitened inducing values w_l ~ q(w), (L, M); they depend on the seed, not on the scan."""
    generator = torch.Generator().manual_seed(seed)
    if model.draws is not None:
        return model.draws[torch.randint(len(model.draws), (samples,), generator=generator)]
    z = torch.randn(samples, len(model.q_mean), generator=generator, dtype=torch.float64).to(model.q_mean)
    return model.q_mean + z @ model.q_root.mT


def latent_samples(model: SparseGP, x: Tensor, w: Tensor) -> Tensor:
    """Latent samples without the residual e_l: f_l = Φ(x)ᵀ w_l. Differentiable in `x`.

    They are not smoothed along z: each value depends on its slice alone.

    Args:
        model: the head.
        x: (n, D) raw features.
        w: (L, M) whitened inducing values from `draw_weights`, or (M,), such as the mean m.

    Returns:
        (L, n), or (n,) for w (M,).
    """
    return w @ model.project(x, model.prior_root())[0]


def _check_width(model: SparseGP, x: Tensor) -> None:
    """Raise `DataError` unless x is a table (N, D) with the number of features of the head."""
    n_features = len(model.x_mean)
    if x.ndim != 2 or x.shape[1] != n_features:
        raise DataError(f"the head takes {n_features} features a slice, got features {tuple(x.shape)}")


@torch.no_grad()
def mean_logits(
    models: Sequence[SparseGP],
    x: Tensor,
    offsets: Tensor | None = None,
    *,
    positions: Tensor | None = None,
) -> Tensor:
    """Slice logits of E p(f) without sampling: MacKay's μ / √(1 + π σ²/8), or exact for a probit link.

    Args:
        models: R heads that share kernel and inducing points, such as a group of `fit_many`.
        x: (N, D) raw features.
        offsets: (B + 1,); needed if the heads smooth along z.
        positions: (N,) mm along the scan; needed if the heads smooth along z.

    Returns:
        (R, N).

    Raises:
        DataError: a number of features that differs from that of the heads; the heads smooth along z and
            positions are unknown.
        ValueError: positions without offsets.
    """
    _check_width(models[0], x)
    if offsets is None and positions is not None:
        raise ValueError("positions need the offsets of the scans they lie in")
    whole = torch.tensor([0, len(x)]) if offsets is None else offsets
    projection = Projection(
        models[0], models[0].clip(x), smoother=make_smoother(models[0].settings, positions, whole)
    )
    means, roots = (
        torch.stack(list(part)) for part in zip(*((m.q_mean, m.q_root.mT) for m in models), strict=True)
    )
    return mean_logit(*projection.moments(means, roots), models[0].settings.link)


def _content_id(x: Tensor) -> str:
    """Digest of the features x, used as the id of a scan without one."""
    return hashlib.sha256(x.detach().cpu().double().contiguous().numpy().tobytes()).hexdigest()


def rows_and_keys(
    model: SparseGP, x: Tensor, offsets: Tensor, scans: list[str] | None
) -> Iterator[tuple[Tensor, int]]:
    """Iterate over scans: clipped features (n, D) on the device of the head, and the key of the noise.

    Raises:
        ScanError, DataError: as in `sample_scans`.
    """
    try:
        bag_index(offsets)
    except ValueError as error:
        raise DataError(str(error)) from error
    _check_width(model, x)
    n_scans = len(offsets) - 1 if scans is None else len(scans)
    if len(x) != int(offsets[-1]) or n_scans != len(offsets) - 1:
        raise DataError(
            f"{len(x)} slices and {n_scans} scan ids do not fit offsets of {len(offsets) - 1} scans and "
            f"{int(offsets[-1])} slices"
        )
    for b, rows in enumerate(x.to(model.x_mean.device).split(offsets.diff().tolist())):
        scan = _content_id(rows) if scans is None else scans[b]
        away = model.standardise(rows).abs()  # (n, D)
        if not bool((measurable(rows) & (away <= FURTHEST).all(1)).all()):  # one GPU sync per scan
            reason = _unusable(rows, away)
            raise ScanError(b, reason) if scans is None else DataError(f"scan {scan!r}: {reason}")
        yield model.clip(rows), scan_key(scan)


def _unusable(rows: Tensor, away: Tensor) -> str:
    """Reason why the features of a scan are rejected.

    Args:
        rows: (n, D) raw features.
        away: (n, D) distances from the training mean, in training standard deviations.
    """
    if not bool(measurable(rows).all()):
        return f"a feature is NaN or infinite, or beyond {LARGEST}"
    n, d = divmod(int(away.argmax()), away.shape[1])
    return (
        f"feature {d} of slice {n} lies {float(away[n, d]):.1e} training deviations from its mean, beyond "
        f"{FURTHEST:.0e}; correct it, or leave the slice out"
    )


def sample_latents(
    model: SparseGP,
    x: Tensor,
    offsets: Tensor,
    scans: list[str] | None,
    *,
    samples: int = 1000,
    seed: int = 0,
) -> Iterator[Tensor]:
    """Joint samples of f, scan by scan, before smoothing along z.

    Arguments and errors are those of `sample_scans`, without `positions`.

    Yields:
        (L, n) float64 for each scan.
    """
    if samples < 2:
        raise ValueError(f"samples must be at least 2 (one has no spread), got {samples}")
    w = draw_weights(model, samples, seed)  # (L, M)
    root = model.prior_root()
    for rows, key in rows_and_keys(model, x, offsets, scans):
        phi, residual = model.project(rows, root)
        noise = normals(seed, key, len(rows), samples=samples, device=rows.device)  # (L, n)
        yield w @ phi + noise @ model.residual_root(rows, phi, residual).mT


def sample_scans(
    model: SparseGP,
    x: Tensor,
    offsets: Tensor,
    scans: list[str] | None,
    *,
    positions: Tensor | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> Iterator[Tensor]:
    """Sampled slice logits, scan by scan; with a logistic link they are the latent values f.

    Args:
        model: the head.
        x: (N, D) raw features.
        offsets: (B + 1,).
        scans: B ids, which seed the noise; None: the noise is seeded by the features of the scan.
        positions: (N,) mm along the scan; needed if the head smooths along z.
        samples: L.
        seed: seed of the samples.

    Yields:
        (L, n) float64 for each scan.

    Raises:
        ScanError: `scans` is None, and the features of a scan are not `measurable` or are beyond `FURTHEST`.
        DataError: the same for a scan with an id; a number of features that differs from that of the head;
            offsets or ids that do not fit; the head smooths along z and positions are unknown; a covariance
            that cannot be factorised.
        ValueError: fewer than 2 samples.
    """
    smoother = make_smoother(model.settings, positions, offsets, scans=scans)
    whole = sample_latents(model, x, offsets, scans, samples=samples, seed=seed)
    for f, block in zip(whole, blocks_of(offsets), strict=True):
        smooth = f if smoother is None else f @ smoother.weights(block).to(f).mT
        yield latent_logit(smooth, model.settings.link)


def _summary(p: Tensor) -> Tensor:
    """Mean, standard deviation (Eq. 32-33 and 36-37) and interval bounds (4, k) of samples (L, k)."""
    low, high = torch.quantile(p, torch.tensor(INTERVAL, dtype=p.dtype, device=p.device), dim=0)
    return torch.stack([p.mean(0), p.std(0, correction=0), low, high])


@torch.no_grad()
def predict(
    model: SparseGP,
    x: Tensor,
    offsets: Tensor,
    scans: list[str] | None,
    *,
    positions: Tensor | None = None,
    samples: int = 1000,
    seed: int = 0,
    calibration: Calibration | None = None,
) -> Predictions:
    """Predict slice and scan probabilities with their uncertainty.

    Args:
        model: the head.
        x: (N, D) raw features.
        offsets: (B + 1,).
        scans: B ids, which seed the noise; None: the noise is seeded by the features of the scan.
        positions: (N,) mm along the scan; needed if the head smooths along z.
        samples: L.
        seed: seed of the samples.
        calibration: calibration of each sample, usually `model.calibration`; None: uncalibrated
            probabilities.

    Returns:
        The predictions.

    Raises:
        DataError: input that does not fit, see `sample_scans`.
        ValueError: a calibration fitted to a rule other than the head's; fewer than 2 samples.
    """
    return summarise(
        sample_probabilities(
            model,
            x,
            offsets,
            scans,
            positions=positions,
            samples=samples,
            seed=seed,
            calibration=calibration,
        )
    )


Sampled = tuple[Tensor, Tensor]
"""Sampled probabilities of one scan: of its slices (L, n) and of the scan (L, 1)."""


def sample_probabilities(
    model: SparseGP,
    x: Tensor,
    offsets: Tensor,
    scans: list[str] | None,
    *,
    positions: Tensor | None = None,
    samples: int = 1000,
    seed: int = 0,
    calibration: Calibration | None = None,
) -> Iterator[Sampled]:
    """Sampled probabilities, scan by scan; arguments and errors are those of `predict`."""
    rule = model.settings.variant.rule
    if calibration is not None:
        calibration.check(rule)
    for f in sample_scans(model, x, offsets, scans, positions=positions, samples=samples, seed=seed):
        logit = sampled_scan_logit(f, rule)  # (L, 1)
        scan = torch.sigmoid(logit) if calibration is None else calibration.scan(logit)
        each = torch.sigmoid(f) if calibration is None else calibration.slices(f, scan)  # (L, n)
        yield each, scan


def pool(
    members: Sequence[Iterable[Sampled]], places: Sequence[Sequence[Sequence[int]] | None]
) -> Iterator[Sampled]:
    """Concatenate the samples of all members of a mixture, scan by scan.

    Members have equal weight if they have equal L.

    Args:
        members: for each member, the samples of every scan.
        places: for each member, the indices in every scan of the slices that all members have; None: all
            slices.
    """
    for b, parts in enumerate(zip(*members, strict=True)):
        slices, scans = zip(*parts, strict=True)
        common = [p if own is None else p[:, own[b]] for p, own in zip(slices, places, strict=True)]
        yield torch.cat(common), torch.cat(scans)


@torch.no_grad()
def summarise(sampled: Iterable[Sampled]) -> Predictions:
    """Mean, standard deviation and interval of the sampled probabilities."""
    slices, bags = [], []
    for each, scan in sampled:
        slices.append(_summary(each).cpu())
        bags.append(_summary(scan).cpu())
    return Predictions(*torch.cat(slices, 1), *torch.cat(bags, 1))  # (4, N) and (4, B)


@torch.no_grad()
def scan_samples(
    model: SparseGP,
    x: Tensor,
    offsets: Tensor,
    scans: list[str] | None,
    *,
    positions: Tensor | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Sampled scan logits by the head's rule and by `SLICE_RULE`, the input of `Calibration.fit`.

    Args:
        model: the head.
        x: (N, D) raw features.
        offsets: (B + 1,).
        scans: B ids, or None.
        positions: (N,) mm along the scan; needed if the head smooths along z.
        samples: L.
        seed: seed of the samples.

    Returns:
        Two tensors (L, B).

    Raises:
        ValueError, DataError: as `sample_scans`.
    """
    of_scan, of_slices = [], []
    for f in sample_scans(model, x, offsets, scans, positions=positions, samples=samples, seed=seed):
        of_scan.append(sampled_scan_logit(f, model.settings.variant.rule))
        of_slices.append(sampled_scan_logit(f, SLICE_RULE))
    return torch.cat(of_scan, 1), torch.cat(of_slices, 1)

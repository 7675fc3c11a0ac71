"""What the head says of new scans: probability and spread of every slice and every scan.

In: a fitted head, packed raw features and scan ids. Out: mean, standard deviation and 95 % interval of the
probability of each slice and each scan (Castro-Macías et al. 2024, Eq. 30-37), from samples of the whole
function over the slices of a scan:

    w_l ~ q(w)        f_l = Φᵀ w_l + e_l        e_l ~ N(0, K_XX + εI - ΦᵀΦ)

so that f_l has the mean and the covariance of q(f) (Eq. 30), which keeps the correlation between slices
(`ich_mil.reproduce.statistics.independent` does not, as in Eq. 36). The same w_l serve all scans. A head that
was fitted by Gibbs sampling gives its own draws of w.

Scans are processed one by one and their noise is a function of (seed, scan id), on a GPU as on a CPU: a
scan's numbers depend, on a CPU to the bit, on nothing but the scan, the head, the seed and the number of
samples; and memory is bounded by the longest scan. A head that smooths along z gives f~_l = W f_l
(`ich_mil.gp.smoothing`), and needs to know where the slices lie.

Shapes: B scans, N slices of all, n slices of one scan, D features, M inducing points, L samples.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ich_mil.errors import DataError, ScanError
from ich_mil.gp.calibration import SLICE_RULE, Calibration
from ich_mil.gp.projection import Projection
from ich_mil.gp.rules import latent_logit, mean_logit, sampled_scan_logit
from ich_mil.gp.smoothing import blocks_of, make_smoother
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.counter import normals, scan_key
from ich_mil.kernels.rbf_gram import LARGEST, measurable
from ich_mil.kernels.segments import bag_index

INTERVAL = (0.025, 0.975)
"""Quantiles that bound the reported interval."""


FURTHEST = 1e8
"""Training deviations beyond which a feature is no measurement, but stands for a missing value."""


@dataclass(frozen=True)
class Predictions:
    """Probabilities of N slices and B scans; all tensors float64 on the CPU.

    Attributes:
        slice_mean, slice_std, slice_low, slice_high: (N,) of the slice probability: mean, deviation, 95 %
            interval; calibrated if asked for.
        scan_mean, scan_std, scan_low, scan_high: (B,) of the scan probability, likewise.
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
    """Whitened inducing values w_l ~ q(w), (L, M); the same for every scan of one seed."""
    generator = torch.Generator().manual_seed(seed)
    if model.draws is not None:
        return model.draws[torch.randint(len(model.draws), (samples,), generator=generator)]
    z = torch.randn(samples, len(model.q_mean), generator=generator, dtype=torch.float64).to(model.q_mean)
    return model.q_mean + z @ model.q_root.mT


def latent_samples(model: SparseGP, x: Tensor, w: Tensor) -> Tensor:
    """Sampled latent function without the independent residual: f_l = Φ(x)ᵀ w_l. Differentiable in `x`.

    Not smoothed along z: what each slice contributes, whatever its neighbours show.

    Args:
        model: the head.
        x: (n, D) raw features.
        w: (L, M) whitened inducing values, from `draw_weights`, or m (M,) for the mean.

    Returns:
        (L, n), or (n,) of m.
    """
    return w @ model.project(x, model.prior_root())[0]


def _check_width(model: SparseGP, x: Tensor) -> None:
    """Raise `DataError` unless x is a table (N, D) as wide as the head's."""
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
    """Slice logits of E p(f), without sampling: MacKay's μ / √(1 + π σ²/8), or exactly for a probit.

    Args:
        models: R heads that share kernel and inducing points, as a group of `fit_many` does.
        x: (N, D) raw features.
        offsets: (B + 1,); needed where the heads smooth along z.
        positions: (N,) mm along the scan, likewise.

    Returns:
        (R, N).

    Raises:
        DataError: features of another width than the heads'; the heads smooth, and where slices lie is not
            known.
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
    """A name for a scan without one: the digest of its features."""
    return hashlib.sha256(x.detach().cpu().double().contiguous().numpy().tobytes()).hexdigest()


def rows_and_keys(
    model: SparseGP, x: Tensor, offsets: Tensor, scans: list[str] | None
) -> Iterator[tuple[Tensor, int]]:
    """Features (n, D), where the head is, and the key of the noise of one scan after the other.

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
        if not bool((measurable(rows) & (away <= FURTHEST).all(1)).all()):  # a GPU is asked once a scan
            reason = _unusable(rows, away)
            raise ScanError(b, reason) if scans is None else DataError(f"scan {scan!r}: {reason}")
        yield model.clip(rows), scan_key(scan)


def _unusable(rows: Tensor, away: Tensor) -> str:
    """What is wrong with features (n, D) that lie so many training deviations away (n, D)."""
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
    """Samples of the whole function f (L, n) of one scan after the other, before any smoothing along z.

    Args and errors are those of `sample_scans`, but for positions.

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
    """The sampled slice logits (L, n) of one scan after the other: f itself where the link is logistic.

    Args:
        model: the head.
        x: (N, D) raw features.
        offsets: (B + 1,).
        scans: B ids; they key the noise. None: the scan's features do.
        positions: (N,) mm along the scan; needed where the head smooths along z.
        samples: L.
        seed: of the samples.

    Yields:
        (L, n) float64 for each scan.

    Raises:
        ScanError: features of a scan without an id are not `measurable`, or beyond `FURTHEST`.
        DataError: those of one with an id; features of another width than the head's; offsets or ids that do
            not fit; the head smooths, and where slices lie is not known; a covariance that
            cannot be factorised.
        ValueError: fewer than 2 samples.
    """
    smoother = make_smoother(model.settings, positions, offsets, scans=scans)
    whole = sample_latents(model, x, offsets, scans, samples=samples, seed=seed)
    for f, block in zip(whole, blocks_of(offsets), strict=True):
        smooth = f if smoother is None else f @ smoother.weights(block).to(f).mT
        yield latent_logit(smooth, model.settings.link)


def _summary(p: Tensor) -> Tensor:
    """Mean, standard deviation (Eq. 32-33 and 36-37) and interval of samples (L, k): (4, k)."""
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
    """Slice and scan probabilities with their uncertainty.

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
        The predictions.

    Raises:
        DataError: input that does not fit, see `sample_scans`.
        ValueError: a calibration that was fitted to another rule than the head's; fewer than 2 samples.
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
"""Sampled probabilities of the slices of a scan (L, n), and of the scan (L, 1)."""


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
    """Sampled probabilities of one scan after the other; arguments and errors are those of `predict`."""
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
    """Samples of a mixture: those of all members, scan by scan. Members of equal L have equal weight.

    Args:
        members: of each, the samples of every scan.
        places: of each, the slices of every scan that all members have; None: all it has.
    """
    for b, parts in enumerate(zip(*members, strict=True)):
        slices, scans = zip(*parts, strict=True)
        common = [p if own is None else p[:, own[b]] for p, own in zip(slices, places, strict=True)]
        yield torch.cat(common), torch.cat(scans)


@torch.no_grad()
def summarise(sampled: Iterable[Sampled]) -> Predictions:
    """Mean, standard deviation and interval of the samples of each scan."""
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
    """Sampled scan logits (L, B) by the head's rule and by `SLICE_RULE`: what a calibration is fitted to.

    Args:
        model: the head.
        x: (N, D) raw features.
        offsets: (B + 1,).
        scans: B ids, or None.
        positions: (N,) mm along the scan; needed where the head smooths along z.
        samples: L.
        seed: of the samples.

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

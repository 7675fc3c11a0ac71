"""Fit a head together with its calibration, on validation scans or on held-out folds of the training scans.

In: labelled bags and settings. Out: a head with a `Calibration`.

Without validation scans every scan serves both to fit and to calibrate. The logits of each scan come from
replicates of the fit without the scans of its fold, which are updated beside it (`HeldOut`); from separate
fits where the kernel is learned, by Gibbs sampling, and for LM-VGPMIL. One calibration is fitted to all these
logits and applied to the head fitted to all scans (as `CalibratedClassifierCV(ensemble=False)` of
scikit-learn).

The distribution of a held-out scan logit is represented by L values of equal weight: quantiles of N(μ, σ²)
for the rule `max`, which depends on one slice; else samples of the slices that the rule uses, from w ~ q(w)
and independent residuals, scaled to the exact μ and σ of each slice.

Shapes: B scans, N slices, L values, r directions of Φ.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import gpytorch
import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from ich_mil.gp.aggregation import latent_logit, mean_logit, scan_logit, top_slices
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import SLICE_RULE, Calibration
from ich_mil.gp.fit import Job, fit, fit_replicates
from ich_mil.gp.inference.folds import Fold, check_distances, folds_of
from ich_mil.gp.inference.held_out import Part
from ich_mil.gp.inference.inducing import Points, place_points
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.inference.replicates import fit_group
from ich_mil.gp.inference.report import FitReport
from ich_mil.gp.inference.weights import Weights
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.predict import standardised_scans
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.kernels.counter import normals
from ich_mil.kernels.segments import take_bags

FOLDS = 5
"""Number of held-out folds of the training scans, for the calibration and for the choice of the kernel."""

VALUES = 100
"""Number of values L of a scan logit."""

Fit = tuple[SparseGP, FitReport]


def fit_calibrated(
    train: Bags,
    settings: HeadSettings,
    *,
    validation: Bags | None = None,
    patients: Sequence[str] | None = None,
    calibrates: Tensor | None = None,
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
) -> Fit:
    """Fit a head as `ich_mil.gp.fit.fit` does, and its calibration.

    Args:
        train: labelled bags.
        settings: settings of the head.
        validation: other labelled bags, for early stopping and for the calibration. None: the calibration is
            fitted to `FOLDS` held-out folds of `train`.
        patients: (B,) patient of each scan; scans of one patient stay in one fold.
        calibrates: (K,) indices of the training scans to which the calibration is fitted (`calibrating`);
            None: all.
        density: ψ, in place of the density in the settings.
        kernel: kernel, in place of the kernel in the settings.

    Returns:
        The head with its calibration, None if the settings ask for none or, with a warning, if it cannot be
        fitted; and the report of the fit.

    Raises:
        DataError: fewer patients of a label than folds; or as in `fit`.
        ScanError: a scan has features that cannot be used, far from those of the other folds.
    """
    if validation is not None or settings.calibration == "none":
        model, report = fit(train, settings, validation=validation, density=density, kernel=kernel)
        if validation is not None:
            model.calibration = calibrate(model, validation)
        return model, report
    folds = folds_of(train.truth, patients, folds=FOLDS, seed=0)
    with_folds = fit_with_folds(train, settings, place_points(train, settings), folds, density, kernel)
    logits, (model, report) = with_folds.values(settings, VALUES), with_folds.fitted
    if settings.family == "large_margin" and report.stopped == "sweeps":
        warnings.warn(
            f"LM-VGPMIL has not converged in {settings.sweeps} sweeps: heads of the folds, to which the "
            "calibration is fitted, may be elsewhere, and probabilities wrong; give validation scans",
            stacklevel=2,
        )
    used = torch.arange(len(train.truth)) if calibrates is None else calibrates
    model.calibration = _fitted(logits[:, :, used], train.truth.cpu()[used], settings)
    return model, report


def calibrate(model: SparseGP, held: Bags) -> Calibration | None:
    """Fit a calibration to labelled scans that were not used to fit the head.

    Returns:
        The calibration. None if the settings ask for none, or, with a warning, if it cannot be fitted.

    Raises:
        ScanError, DataError: a scan has features that cannot be used (`standardised_scans`).
    """
    settings = model.settings
    if settings.calibration == "none":
        return None
    bags = held.to(model.x_mean.device)
    for _ in standardised_scans(model, bags):  # checks the features
        pass
    part = part_of(model, bags, torch.arange(len(bags.x), device=bags.x.device))
    logits = scan_values([part], bags.offsets, settings, VALUES)
    return _fitted(logits.cpu(), bags.truth.cpu(), settings)


def _fitted(logits: Tensor, labels: Tensor, settings: HeadSettings) -> Calibration | None:
    return Calibration.fit(logits[0], logits[1], labels, rule=settings.variant.rule)


def held_out_logits(
    train: Bags, settings: HeadSettings, *, patients: Sequence[str] | None = None, samples: int = VALUES
) -> Tensor:
    """`scan_values` (2, L, B) of each scan from a head that was not fitted to it.

    `fit_calibrated` fits the calibration to these logits.
    """
    folds = folds_of(train.truth, patients, folds=FOLDS, seed=0)
    return fit_with_folds(train, settings, place_points(train, settings), folds).values(settings, samples)


def calibrating(offsets: Tensor, labels: Tensor) -> Tensor:
    """Indices (K,) of the bags to which a calibration is fitted.

    These are the bags with several instances, or all bags if these do not have both labels: a bag of one
    instance is a labelled instance, whose probability is not that of a scan.
    """
    several = (offsets.diff() > 1).cpu()  # (B,)
    if len(labels.cpu()[several].unique()) < 2:
        several = torch.ones_like(several)
    return several.nonzero().squeeze(1)


class WithFolds(NamedTuple):
    """A fit to all scans, and the held-out slices of its folds.

    Attributes:
        fitted: the head and its report.
        parts: all slices, each under a q(w) that has not seen its scan.
        offsets: (B + 1,).
    """

    fitted: Fit
    parts: list[Part]
    offsets: Tensor

    def values(self, settings: HeadSettings, samples: int) -> Tensor:
        """`scan_values` (2, L, B) of all scans, on the CPU."""
        return scan_values(self.parts, self.offsets, settings, samples).cpu()

    def scores(self, settings: HeadSettings) -> Tensor:
        """Scan logits (B,) of the slice logits of E p(f) (`mean_logit`), on the CPU."""
        each = mean_logit(*moments_of(self.parts, int(self.offsets[-1])), settings.link)
        return scan_logit(each, self.offsets, settings.variant.rule).cpu()


@torch.no_grad()
def fit_with_folds(
    train: Bags,
    settings: HeadSettings,
    points: Points,
    folds: Sequence[Fold],
    density: Density | None = None,
    kernel: gpytorch.kernels.Kernel | None = None,
) -> WithFolds:
    """Fit a head to all scans, and to the scans of all folds but one."""
    n_scans, device = len(train.truth), train.x.device
    if settings.family in ("psi", "probit") and settings.learn == "nothing":
        check_distances(train, folds)
        fold_of = torch.empty(n_scans, dtype=torch.int64)
        for f, (_, out) in enumerate(folds):
            fold_of[list(out)] = f
        group = fit_group(train, None, [settings], points, density=density, kernel=kernel, fold_of=fold_of)
        assert group.held_out is not None
        return WithFolds(group.results[0], list(group.held_out.parts()), train.offsets)
    (fitted,) = fit_group(train, None, [settings], points, density=density, kernel=kernel).results
    parts = []
    jobs = [Job(settings, seen) for seen, _ in folds]
    for (fold_fit,) in fit_replicates(train, jobs, density=density, kernel=kernel):
        held = folds[fold_fit.place][1]
        rows, _ = take_bags(train.offsets, torch.tensor(held, device=device))
        parts.append(part_of(fold_fit.model, train.take(held), rows))
    return WithFolds(fitted, parts, train.offsets)


def part_of(model: SparseGP, bags: Bags, rows: Tensor) -> Part:
    """All slices of these scans under the q(w) of a head; `rows` (n,) are theirs in the result."""
    projection = Projection(model, model.clip(bags.x))
    S = model.q_root @ model.q_root.mT
    weights = Weights(model.q_mean[None], model.q_root.mT[None], torch.logdet(S)[None])
    return Part(projection, weights, rows)


def moments_of(parts: Iterable[Part], n: int) -> tuple[Tensor, Tensor]:
    """μ and σ² (N,) of the slices of all parts."""
    mu, variance = torch.empty(2, n, dtype=torch.float64).unbind()
    for projection, weights, rows in parts:
        (m,), (v,) = projection.moments(weights.mean, weights.root)
        mu, variance = mu.to(m.device), variance.to(m.device)
        mu[rows], variance[rows] = m, v
    return mu, variance


@torch.no_grad()
def scan_values(parts: Iterable[Part], offsets: Tensor, settings: HeadSettings, samples: int) -> Tensor:
    """Values of equal weight (2, L, B) of the scan logits, by the head's rule and by `SLICE_RULE`.

    Args:
        parts: slices with their posteriors, which together are all N slices.
        offsets: (B + 1,).
        settings: settings of the head.
        samples: L.
    """
    parts, n = list(parts), int(offsets[-1])
    mu, variance = moments_of(parts, n)
    score = mean_logit(mu, variance, settings.link)
    logits = []
    for rule in (settings.variant.rule, SLICE_RULE):
        rows, top_offsets = top_slices(score, offsets, rule)
        if len(rows) == len(offsets) - 1:
            unit = torch.from_numpy(ndtri((np.arange(samples) + 0.5) / samples)).to(mu)[:, None]
            unit = unit.expand(samples, len(rows)) / unit.std(correction=0)
        else:
            sizes = enumerate(top_offsets.diff().tolist())
            noise = torch.cat([normals(0, b, size, samples=samples) for b, size in sizes], 1).to(mu)
            unit = _correlated(parts, rows, n, noise)
        f = latent_logit(mu[rows] + variance[rows].sqrt() * unit, settings.link)
        logits.append(scan_logit(f, top_offsets.cpu(), rule if rule in ("max", "noisy_or") else f"top_{n}"))
    return torch.stack(logits)


def _correlated(parts: Sequence[Part], rows: Tensor, n: int, noise: Tensor) -> Tensor:
    """Samples (L, K) of the slices `rows` (K,), scaled to mean 0 and variance 1, with their correlation.

    Args:
        parts: all N slices.
        rows: (K,) rows among them.
        n: N.
        noise: (L, K) standard normal numbers.
    """
    f = torch.empty_like(noise)
    column_of = rows.new_full((n,), -1)
    column_of[rows] = torch.arange(len(rows), device=rows.device)
    for projection, weights, slices in parts:
        at = (column_of[slices] >= 0).nonzero()[:, 0]
        chosen = projection.select(at)
        generator = torch.Generator().manual_seed(0)
        z = torch.randn(len(noise), projection.shape[1], generator=generator, dtype=torch.float64).to(f)
        w, to = weights.mean + z @ weights.root[0], column_of[slices[at]]
        f[:, to] = chosen.push(w) + chosen.residual.sqrt() * noise[:, to]
    return (f - f.mean(0)) / f.std(0, correction=0)

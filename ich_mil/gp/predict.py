"""Predict slice and scan probabilities with uncertainty, by sampling from the posterior of a head.

In: a fitted head and packed bags. Out: mean, standard deviation and 95 % interval of the probability of each
slice and each scan (Castro-Macías et al. 2024, Eq. 30-37), from joint samples of f over the slices of a scan:

    w_l ~ q(w)        f_l = Φᵀ w_l + e_l        e_l ~ N(0, K_XX + εI - ΦᵀΦ)

f_l has the mean and the covariance of q(f) (Eq. 30), so the correlation between slices is kept
(Eq. 36 of the paper drops it). All scans share the samples w_l. For a
head fitted by Gibbs sampling, w_l are its posterior draws.

`draw` samples each scan once; probabilities, intervals and counterfactuals (`ich_mil.heads.counterfactual`)
follow from its samples. The noise e_l is a function of (seed, scan id, order of the slices by their
features), on a GPU as on a CPU. The result for a scan therefore depends neither on the other scans nor on the
order of its slices nor on the float format of the features; on a CPU bit for bit.

Shapes: B scans, N slices of all, n slices of one scan, D features, M inducing points, L samples.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ich_mil.errors import DataError, ScanError
from ich_mil.gp.aggregation import latent_logit, mean_logit, sampled_scan_logit
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import CLIP, SparseGP
from ich_mil.kernels.counter import normals, scan_key

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

    @classmethod
    def join(cls, scans: Sequence["Predictions"]) -> "Predictions":
        """Concatenate the predictions of several scans."""
        return cls(*map(torch.cat, zip(*(vars(scan).values() for scan in scans), strict=True)))


class Sampled(NamedTuple):
    """Sampled probabilities of one scan: of its slices (L, n), and of the scan (L, 1)."""

    slices: Tensor
    scan: Tensor


@dataclass(frozen=True)
class Draw:
    """Joint posterior samples of the latent values of one scan.

    Attributes:
        f: (L, n) float64 samples.
        settings: settings of the head.
    """

    f: Tensor
    settings: HeadSettings

    @cached_property
    def logits(self) -> Tensor:
        """Slice logits (L, n); with a logistic link the latent values."""
        return latent_logit(self.f, self.settings.link)

    @cached_property
    def scan_logit(self) -> Tensor:
        """Scan logit (L, 1) by the rule of the head."""
        return sampled_scan_logit(self.logits, self.settings.variant.rule)

    def probabilities(self, calibration: Calibration | None) -> Sampled:
        """Calibrated samples of the probabilities; uncalibrated with None."""
        if calibration is None:
            return Sampled(torch.sigmoid(self.logits), torch.sigmoid(self.scan_logit))
        scan = calibration.scan(self.scan_logit)
        return Sampled(calibration.slices(self.logits, scan), scan)

    @cached_property
    def _ranked(self) -> Tensor:
        """Indices (n,) of the slices, from the highest mean probability down."""
        return torch.sigmoid(self.logits).mean(0).argsort(descending=True)

    def without(self, first: int, last: int) -> Tensor:
        """Scan logit (L, 1) without the slices `first` to `last`; at least one slice must be left."""
        if self.settings.variant.rule == "max":  # the first of the slices that are left
            return self.logits[:, self._ranked[(self._ranked < first) | (self._ranked > last)][:1]]
        n = torch.arange(self.f.shape[1])
        left = n[(n < first) | (n > last)]
        return Draw(self.f[:, left], self.settings).scan_logit

    def without_extras(self, _: object) -> tuple[()]:
        """A head of slices alone has no inputs beside them."""
        return ()


def draw_weights(model: SparseGP, samples: int, seed: int) -> Tensor:
    """Draw whitened inducing values w_l ~ q(w), (L, M); they depend on the seed, not on the scan."""
    generator = torch.Generator().manual_seed(seed)
    if model.draws is not None:
        return model.draws[torch.randint(len(model.draws), (samples,), generator=generator)]
    z = torch.randn(samples, len(model.q_mean), generator=generator, dtype=torch.float64).to(model.q_mean)
    return model.q_mean + z @ model.q_root.mT


@torch.no_grad()
def mean_logits(models: Sequence[SparseGP], bags: Bags) -> Tensor:
    """Slice logits of E p(f) without sampling (`mean_logit`).

    Args:
        models: R heads that share kernel and inducing points, such as a group of `fit_replicates`.
        bags: the scans.

    Returns:
        (R, N).

    Raises:
        DataError: a number of features that differs from that of the heads.
    """
    first = models[0]
    first.check_width(bags.x)
    projection = Projection(first, first.clip(bags.x))
    means, roots = torch.stack([m.q_mean for m in models]), torch.stack([m.q_root.mT for m in models])
    return mean_logit(*projection.moments(means, roots), first.settings.link)


def standardised_scans(model: SparseGP, bags: Bags) -> Iterator[tuple[Tensor, int]]:
    """Iterate over scans: standardised, clipped features (n, D) on the device of the head, and the noise key.

    Raises:
        ScanError: the scans have no ids, and a feature of a scan is NaN or further than `FURTHEST`.
        DataError: the same for a scan with an id; a number of features that differs from that of the head.
    """
    model.check_width(bags.x)
    for b, rows in enumerate(bags.x.to(model.x_mean.device).split(bags.offsets.diff().tolist())):
        z = model.standardise(rows)
        away = z.abs()
        if not bool((away <= FURTHEST).all()):  # false for NaN; one GPU sync per scan
            n, d = divmod(int((~(away <= FURTHEST)).flatten().nonzero()[0]), away.shape[1])
            reason = (
                f"feature {d} of slice {n} is {float(rows[n, d]):.3g}, NaN or more than {FURTHEST:.0e} "
                "training deviations from its mean; correct it, or leave the slice out"
            )
            raise ScanError(b, reason) if bags.ids is None else DataError(f"scan {bags.ids[b]!r}: {reason}")
        yield z.clamp(-CLIP, CLIP), scan_key("" if bags.ids is None else bags.ids[b])


@torch.no_grad()
def draw(model: SparseGP, bags: Bags, *, samples: int = 1000, seed: int = 0) -> Iterator[Draw]:
    """Joint posterior samples of f, scan by scan, so that memory is bounded by the longest scan.

    Args:
        model: the head.
        bags: the scans.
        samples: L.
        seed: seed of the samples.

    Raises:
        ScanError, DataError: as in `standardised_scans`; a covariance that cannot be factorised.
        ValueError: fewer than 2 samples.
    """
    if samples < 2:
        raise ValueError(f"samples must be at least 2 (one has no spread), got {samples}")
    w, root = draw_weights(model, samples, seed), model.prior_root()
    direction = torch.randn(len(model.x_mean), generator=torch.Generator().manual_seed(0)).to(model.x_mean)
    for x, key in standardised_scans(model, bags):
        order = (x @ direction).argsort()  # by the values of the slices, so that their order has no effect
        x = x[order]
        phi, residual = model.project(x, root)
        noise = normals(seed, key, len(x), samples=samples, device=x.device)  # (L, n)
        f = torch.empty_like(noise)
        f[:, order] = w @ phi + noise @ model.residual_root(x, phi, residual).mT
        yield Draw(f, model.settings)


def predict(
    model: SparseGP, bags: Bags, *, samples: int = 1000, seed: int = 0, calibration: Calibration | None = None
) -> Predictions:
    """Predict slice and scan probabilities with their uncertainty.

    Args:
        model: the head.
        bags: the scans.
        samples: L.
        seed: seed of the samples.
        calibration: calibration of each sample, usually `model.calibration`; None: uncalibrated
            probabilities.

    Raises:
        ScanError, DataError: as in `draw`.
        ValueError: a calibration fitted to a rule other than the head's; fewer than 2 samples.
    """
    if calibration is not None:
        calibration.check(model.settings.variant.rule)
    drawn = draw(model, bags, samples=samples, seed=seed)
    return summarise(scan.probabilities(calibration) for scan in drawn)


def pool(members: Sequence[Sampled], indices: Sequence[Sequence[int] | None]) -> Sampled:
    """Concatenate the samples of one scan by all members of a mixture, which have equal weight.

    Args:
        members: samples by each member, of equal L.
        indices: for each member, the indices of the slices that all members have; None: all slices.
    """
    slices = [p if kept is None else p[:, kept] for (p, _), kept in zip(members, indices, strict=True)]
    return Sampled(torch.cat(slices), torch.cat([scan for _, scan in members]))


def _summary(p: Tensor) -> Tensor:
    """Mean, standard deviation (Eq. 32-33 and 36-37) and interval bounds (4, k) of samples (L, k)."""
    low, high = torch.quantile(p, torch.tensor(INTERVAL, dtype=p.dtype, device=p.device), dim=0)
    return torch.stack([p.mean(0), p.std(0, correction=0), low, high])


@torch.no_grad()
def summarise(sampled: Iterable[Sampled]) -> Predictions:
    """Mean, standard deviation and interval of the sampled probabilities."""
    pairs = [(_summary(slices).cpu(), _summary(scan).cpu()) for slices, scan in sampled]
    of_slices, of_scans = zip(*pairs, strict=True)
    return Predictions(*torch.cat(of_slices, 1), *torch.cat(of_scans, 1))  # (4, N) and (4, B)

"""Counterfactual scan probabilities: the probability of a scan after removal of some of its slices.

In: a fitted head, packed raw features and their predicted slice probabilities. Out: the scan probability
without each slice, and without each run of neighbouring slices that reach a threshold. The posterior samples
are those of `ich_mil.gp.predict.predict`, so both probabilities differ only by the removed slices. A head
that smooths along z smooths over the remaining slices only.

Shapes: B scans, N slices of all, n slices of one scan, L samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ich_mil.gp.aggregation import Link, latent_logit, sampled_scan_logit
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.predict import sample_latents
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.smoothing import blocks_of, make_smoother, smoothing_weights
from ich_mil.gp.sparse_gp import SparseGP


@dataclass(frozen=True)
class SliceRun:
    """Run of neighbouring slices of a scan.

    Attributes:
        first: index in the scan of its lowest slice.
        last: index of its highest slice, inclusive.
        scan_without: scan probability without these slices; NaN if no slice is left.
    """

    first: int
    last: int
    scan_without: float


@dataclass(frozen=True)
class ExtraInstance:
    """A sentence, or the covariates, of a scan (`ich_mil.multimodal`).

    Attributes:
        kind: `sentence` or `covariates`.
        text: the sentence, or the values.
        primary: probability that it counts.
        scan_without: scan probability without it.
    """

    kind: str
    text: str
    primary: float
    scan_without: float


@dataclass(frozen=True)
class Counterfactuals:
    """Scan probabilities without single slices and without runs of slices.

    Attributes:
        scan_without: (N,) float64 scan probability without the slice; NaN if it is the only slice.
        runs: for each of B scans, its runs in order of the slices.
        extras: for each of B scans, its sentences and covariates; empty for a head of slices alone.
    """

    scan_without: Tensor
    runs: tuple[tuple[SliceRun, ...], ...]
    extras: tuple[tuple[ExtraInstance, ...], ...] = ()


def slice_runs(reached: Sequence[bool] | np.ndarray) -> list[tuple[int, int]]:
    """First and last index (inclusive) of each run of True in `reached` (n,)."""
    edges = np.diff(np.concatenate([[0], np.asarray(reached, dtype=np.int8), [0]]))
    return list(
        zip(np.flatnonzero(edges == 1).tolist(), (np.flatnonzero(edges == -1) - 1).tolist(), strict=True)
    )


Rest = Callable[[int, int], Tensor]
"""Function (first, last) to the sampled scan logits (L, 1) without the slices first to last, inclusive."""


def _rest(f: Tensor, settings: HeadSettings, positions: Tensor | None) -> Rest:
    """Function from removed slices to scan logits, by any rule.

    Args:
        f: (L, n) sampled latent values before smoothing.
        settings: settings of the head.
        positions: (n,) mm along the scan, if the head smooths along z.
    """

    def rest(first: int, last: int) -> Tensor:
        kept = torch.cat([f[:, :first], f[:, last + 1 :]], dim=1)
        if positions is not None:
            left = torch.cat([positions[:first], positions[last + 1 :]])
            kept = kept @ smoothing_weights(left, settings.smooth_mm).to(kept).mT
        return sampled_scan_logit(latent_logit(kept, settings.link), settings.variant.rule)

    return rest


def _rest_of_maxima(f: Tensor, link: Link) -> Rest:
    """As `_rest` for the rule `max` without smoothing; it does not copy the samples for each slice."""
    logit = latent_logit(f, link)
    order = torch.sigmoid(logit).mean(0).argsort(descending=True)

    def rest(first: int, last: int) -> Tensor:
        left = order[(order < first) | (order > last)]
        return logit[:, left[:1]]

    return rest


def _without(rest: Rest, first: int, last: int, size: int, calibration: Calibration | None) -> float:
    """Probability of a scan of `size` slices without the slices first to last; NaN if no slice is left."""
    if last - first + 1 == size:
        return float("nan")
    logit = rest(first, last)  # (L, 1)
    p = torch.sigmoid(logit) if calibration is None else calibration.scan(logit)
    return float(p.mean())


@torch.no_grad()
def counterfactuals(
    model: SparseGP,
    x: Tensor,
    offsets: Tensor,
    scans: list[str] | None,
    slice_mean: Tensor,
    *,
    threshold: float,
    positions: Tensor | None = None,
    places: Sequence[Sequence[int]] | None = None,
    samples: int = 1000,
    seed: int = 0,
    calibration: Calibration | None = None,
) -> Counterfactuals:
    """Scan probabilities without each slice, and without each run of slices that reach the threshold.

    Args:
        model: the head.
        x: (N, D) raw features.
        offsets: (B + 1,).
        scans: B ids, or None, as given to `predict`.
        slice_mean: (N,) slice probabilities from `predict`; only of the slices in `places`, if given.
        threshold: smallest probability of a slice in a run.
        positions: (N,) mm along the scan; needed if the head smooths along z.
        places: for each scan, increasing indices of the slices to remove in turn; None: all slices.
        samples: L, as given to `predict`.
        seed: as given to `predict`.
        calibration: as given to `predict`.

    Raises:
        DataError: input that does not fit, see `ich_mil.gp.predict.sample_scans`.
        ValueError: a number of slice probabilities that differs from the number of slices; a calibration
            fitted to a rule other than the head's; fewer than 2 samples.
    """
    asked = [range(size) for size in offsets.diff().tolist()] if places is None else places
    if slice_mean.shape != (sum(map(len, asked)),):
        raise ValueError(
            f"there are {sum(map(len, asked))} slices, but slice_mean is of shape {tuple(slice_mean.shape)}"
        )
    if calibration is not None:
        calibration.check(model.settings.variant.rule)
    smoother = make_smoother(model.settings, positions, offsets, scans=scans)
    single: list[float] = []
    runs = []
    drawn = sample_latents(model, x, offsets, scans, samples=samples, seed=seed)
    means = slice_mean.split([len(own) for own in asked])
    for f, block, own, mean in zip(drawn, blocks_of(offsets), asked, means, strict=True):
        z = None if smoother is None else smoother.positions[block]
        if z is None and model.settings.variant.rule == "max":
            rest = _rest_of_maxima(f, model.settings.link)
        else:
            rest = _rest(f, model.settings, z)
        size = f.shape[1]
        single += [_without(rest, n, n, size, calibration) for n in own]
        reached = slice_runs((mean >= threshold).numpy())
        runs.append(
            tuple(
                SliceRun(first, last, _without(rest, own[first], own[last], size, calibration))
                for first, last in reached
            )
        )
    return Counterfactuals(torch.tensor(single, dtype=torch.float64), tuple(runs))


def mean_counterfactuals(members: Sequence[Counterfactuals]) -> Counterfactuals:
    """Counterfactuals of a mixture: the mean over members of equal weight, which must have the same runs."""
    runs = (
        tuple(
            replace(same[0], scan_without=float(np.mean([run.scan_without for run in same])))
            for same in zip(*of_scan, strict=True)
        )
        for of_scan in zip(*(member.runs for member in members), strict=True)
    )
    extras = (
        tuple(
            replace(
                same[0],
                primary=float(np.mean([one.primary for one in same])),
                scan_without=float(np.mean([one.scan_without for one in same])),
            )
            for same in zip(*of_scan, strict=True)
        )
        for of_scan in zip(*(member.extras for member in members), strict=False)  # none if a member has none
    )
    mean = torch.stack([member.scan_without for member in members]).mean(0)
    return Counterfactuals(mean, tuple(runs), tuple(extras))

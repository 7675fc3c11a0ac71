"""Which slices drove a scan: its probability had they not been there.

In: a fitted head, packed raw features and the slice probabilities it gave. Out: for every slice the scan's
probability without it, and the same for every run of neighbouring slices that reach a threshold. The samples
are those of `ich_mil.gp.predict.predict`, so that the two probabilities differ by the slices alone. A head
that smooths along z smooths over the slices that are left: those gone have no part in their neighbours.

Shapes: B scans, N slices of all, n slices of one scan, L samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ich_mil.gp.calibration import Calibration
from ich_mil.gp.predict import sample_latents
from ich_mil.gp.rules import Link, latent_logit, sampled_scan_logit
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.smoothing import blocks_of, make_smoother, smoothing_weights
from ich_mil.gp.sparse_gp import SparseGP


@dataclass(frozen=True)
class SliceRun:
    """Neighbouring slices of a scan.

    Attributes:
        first: place of the lowest in its scan.
        last: place of the highest, included.
        scan_without: the scan's probability without them; NaN where no slice is left.
    """

    first: int
    last: int
    scan_without: float


@dataclass(frozen=True)
class Counterfactuals:
    """What each slice did for its scan.

    Attributes:
        scan_without: (N,) float64 the scan's probability without the slice; NaN where it is the only one.
        runs: of each of B scans, from below.
    """

    scan_without: Tensor
    runs: tuple[tuple[SliceRun, ...], ...]


def slice_runs(reached: Sequence[bool] | np.ndarray) -> list[tuple[int, int]]:
    """First and last place of each run of True in (n,)."""
    edges = np.diff(np.concatenate([[0], np.asarray(reached, dtype=np.int8), [0]]))
    return list(
        zip(np.flatnonzero(edges == 1).tolist(), (np.flatnonzero(edges == -1) - 1).tolist(), strict=True)
    )


Rest = Callable[[int, int], Tensor]
"""The scan's sampled logits (L, 1) without the slices first to last."""


def _rest(f: Tensor, settings: HeadSettings, positions: Tensor | None) -> Rest:
    """Logits of what is left of sampled latent values (L, n); `positions` (n,) mm of a head that smooths."""

    def rest(first: int, last: int) -> Tensor:
        kept = torch.cat([f[:, :first], f[:, last + 1 :]], dim=1)
        if positions is not None:
            left = torch.cat([positions[:first], positions[last + 1 :]])
            kept = kept @ smoothing_weights(left, settings.smooth_mm).to(kept).mT
        return sampled_scan_logit(latent_logit(kept, settings.link), settings.variant.rule)

    return rest


def _rest_of_maxima(f: Tensor, link: Link) -> Rest:
    """The same by the rule `max`, without a copy of the samples for each slice."""
    logit = latent_logit(f, link)
    order = torch.sigmoid(logit).mean(0).argsort(descending=True)

    def rest(first: int, last: int) -> Tensor:
        left = order[(order < first) | (order > last)]
        return logit[:, left[:1]]

    return rest


def _without(rest: Rest, first: int, last: int, size: int, calibration: Calibration | None) -> float:
    """The probability of a scan of `size` slices without the slices first to last; NaN if none is left."""
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
    """The scan's probability without each slice, and without each run of slices.

    Args:
        model: the head.
        x: (N, D) raw features.
        offsets: (B + 1,).
        scans: B ids, or None, as given to `predict`.
        slice_mean: (N,) slice probabilities, of `predict`; of the slices in `places` where they are given.
        threshold: slices from here up make a run.
        positions: (N,) mm along the scan; needed where the head smooths along z.
        places: of each scan, rising, the slices that are asked about; None: all.
        samples: L, as given to `predict`.
        seed: as given to `predict`.
        calibration: as given to `predict`.

    Raises:
        DataError: input that does not fit, see `ich_mil.gp.predict.sample_scans`.
        ValueError: not one slice probability a slice; a calibration fitted to another rule than the head's;
            fewer than 2 samples.
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
    """Counterfactuals of a mixture: the mean over members of equal weight, which were given equal runs."""
    runs = (
        tuple(
            replace(same[0], scan_without=float(np.mean([run.scan_without for run in same])))
            for same in zip(*of_scan, strict=True)
        )
        for of_scan in zip(*(member.runs for member in members), strict=True)
    )
    return Counterfactuals(torch.stack([member.scan_without for member in members]).mean(0), tuple(runs))

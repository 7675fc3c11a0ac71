"""Counterfactual scan probabilities: the probability of a scan after removal of some of its slices.

In: the posterior samples of a scan (`ich_mil.gp.predict.Draw`, or those of a multimodal head), the same from
which its probability is computed, so that both differ only by what is removed. Out: the scan probability
without each slice, without each run of neighbouring slices that reach a threshold, and without each input
beside the slices.

Shapes: N slices of all scans, n slices of one scan, L samples.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ich_mil.gp.aggregation import sampled_scan_logit
from ich_mil.gp.calibration import SLICE_RULE, Calibration
from ich_mil.gp.predict import Sampled
from ich_mil.sets.extras import ExtraInstance


class ScanSamples(Protocol):
    """Posterior samples of one scan by a head of any family."""

    @property
    def logits(self) -> Tensor:
        """Slice logits (L, n)."""

    @property
    def scan_logit(self) -> Tensor:
        """Scan logit (L, 1)."""

    def probabilities(self, calibration: Calibration | None) -> Sampled:
        """Calibrated samples of the probabilities; uncalibrated with None."""

    def without(self, first: int, last: int) -> Tensor:
        """Scan logit (L, 1) without the slices `first` to `last`; at least one slice must be left."""

    def without_extras(self, probability: Callable[[Tensor], float], /) -> Sequence[ExtraInstance]:
        """Inputs beside the slices, with the `probability` of the scan logit (L, 1) without each."""


def scan_logits(drawn: Iterable[ScanSamples]) -> Tensor:
    """Sampled scan logits (2, L, B) by the head's rule and by `SLICE_RULE`, for `Calibration`."""
    pairs = [torch.stack([draw.scan_logit, sampled_scan_logit(draw.logits, SLICE_RULE)]) for draw in drawn]
    return torch.cat(pairs, 2)


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
class Counterfactuals:
    """Scan probabilities without single slices, runs of slices, and inputs beside the slices.

    Attributes:
        scan_without: (N,) float64 scan probability without the slice; NaN if it is the only slice.
        runs: for each scan, its runs in order of the slices.
        extras: for each scan, its sentences and covariates; empty for a head of slices alone.
    """

    scan_without: Tensor
    runs: tuple[tuple[SliceRun, ...], ...]
    extras: tuple[tuple[ExtraInstance, ...], ...]

    @classmethod
    def join(cls, scans: Sequence["Counterfactuals"]) -> "Counterfactuals":
        """Concatenate the counterfactuals of several scans."""
        runs = tuple(run for scan in scans for run in scan.runs)
        extras = tuple(extra for scan in scans for extra in scan.extras)
        return cls(torch.cat([scan.scan_without for scan in scans]), runs, extras)


def slice_runs(reached: Sequence[bool] | np.ndarray) -> list[tuple[int, int]]:
    """First and last index (inclusive) of each run of True in `reached` (n,)."""
    edges = np.diff(np.concatenate([[0], np.asarray(reached, dtype=np.int8), [0]]))
    return list(
        zip(np.flatnonzero(edges == 1).tolist(), (np.flatnonzero(edges == -1) - 1).tolist(), strict=True)
    )


@torch.no_grad()
def counterfactuals(
    draw: ScanSamples,
    slice_mean: Tensor,
    *,
    threshold: float,
    indices: Sequence[int] | None = None,
    calibration: Calibration | None = None,
) -> Counterfactuals:
    """Probability of one scan without each slice, each run of slices that reach the threshold, each extra.

    Args:
        draw: posterior samples of the scan.
        slice_mean: probabilities of the slices in `indices`.
        threshold: smallest probability of a slice in a run.
        indices: increasing indices of the slices to remove in turn; None: all slices.
        calibration: calibration of the scan probability.
    """
    removed = range(draw.logits.shape[1]) if indices is None else indices

    def probability(logit: Tensor) -> float:
        p = torch.sigmoid(logit) if calibration is None else calibration.scan(logit)
        return float(p.mean())

    def without(first: int, last: int) -> float:
        if last - first + 1 == draw.logits.shape[1]:
            return float("nan")
        return probability(draw.without(first, last))

    runs = (
        SliceRun(removed[first], removed[last], without(removed[first], removed[last]))
        for first, last in slice_runs((slice_mean >= threshold).cpu().numpy())
    )
    single = torch.tensor([without(n, n) for n in removed], dtype=torch.float64)
    return Counterfactuals(single, (tuple(runs),), (tuple(draw.without_extras(probability)),))


def mean_counterfactuals(members: Sequence[Counterfactuals]) -> Counterfactuals:
    """Counterfactuals of a mixture: the mean over members of equal weight, which must have the same runs."""
    runs = (
        tuple(
            replace(same[0], scan_without=float(np.mean([run.scan_without for run in same])))
            for same in zip(*of_scan, strict=True)
        )
        for of_scan in zip(*(member.runs for member in members), strict=True)
    )
    extras = map(_mean_extras, zip(*(member.extras for member in members), strict=True))
    mean = torch.stack([member.scan_without for member in members]).mean(0)
    return Counterfactuals(mean, tuple(runs), tuple(extras))


def _mean_extras(members: Sequence[Sequence[ExtraInstance]]) -> tuple[ExtraInstance, ...]:
    """Mean over the members; empty where their inputs differ."""
    if len({tuple((extra.kind, extra.text) for extra in extras) for extras in members}) > 1:
        return ()
    return tuple(
        replace(
            same[0],
            primary=float(np.mean([extra.primary for extra in same])),
            scan_without=float(np.mean([extra.scan_without for extra in same])),
        )
        for same in zip(*members, strict=True)
    )

"""Counterfactual scan probabilities: the probability of a scan after removal of some of its slices.

In: the posterior samples of a scan (`ich_mil.gp.predict.Draw`), the same from which its probability is
computed, so that both differ only by the removed slices. Out: the scan probability without each slice, and
without each run of neighbouring slices that reach a threshold. A head that smooths along z smooths over the
remaining slices only.

Shapes: N slices of all scans, n slices of one scan, L samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ich_mil.gp.calibration import Calibration
from ich_mil.gp.predict import Draw


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
    """Scan probabilities without single slices and without runs of slices.

    Attributes:
        scan_without: (N,) float64 scan probability without the slice; NaN if it is the only slice.
        runs: for each scan, its runs in order of the slices.
    """

    scan_without: Tensor
    runs: tuple[tuple[SliceRun, ...], ...]

    @classmethod
    def join(cls, scans: Sequence["Counterfactuals"]) -> "Counterfactuals":
        """Concatenate the counterfactuals of several scans."""
        runs = tuple(run for one in scans for run in one.runs)
        return cls(torch.cat([one.scan_without for one in scans]), runs)


def slice_runs(reached: Sequence[bool] | np.ndarray) -> list[tuple[int, int]]:
    """First and last index (inclusive) of each run of True in `reached` (n,)."""
    edges = np.diff(np.concatenate([[0], np.asarray(reached, dtype=np.int8), [0]]))
    return list(
        zip(np.flatnonzero(edges == 1).tolist(), (np.flatnonzero(edges == -1) - 1).tolist(), strict=True)
    )


@torch.no_grad()
def counterfactuals(
    draw: Draw,
    slice_mean: Tensor,
    *,
    threshold: float,
    places: Sequence[int] | None = None,
    calibration: Calibration | None = None,
) -> Counterfactuals:
    """Probability of one scan without each slice, and without each run of slices that reach the threshold.

    Args:
        draw: posterior samples of the scan.
        slice_mean: probabilities of the slices in `places`.
        threshold: smallest probability of a slice in a run.
        places: increasing indices of the slices to remove in turn; None: all slices.
        calibration: calibration of the scan probability.
    """
    own = range(draw.f.shape[1]) if places is None else places
    of_one = draw.settings.variant.rule == "max" and draw.positions is None
    ranked = torch.sigmoid(draw.logits).mean(0).argsort(descending=True) if of_one else None

    def without(first: int, last: int) -> float:
        if last - first + 1 == draw.f.shape[1]:
            return float("nan")
        if ranked is not None:  # without smoothing the maximum is the first of the slices that are left
            logit = draw.logits[:, ranked[(ranked < first) | (ranked > last)][:1]]  # (L, 1)
        else:
            n = torch.arange(draw.f.shape[1])
            logit = draw.keep(n[(n < first) | (n > last)]).scan_logit
        p = torch.sigmoid(logit) if calibration is None else calibration.scan(logit)
        return float(p.mean())

    runs = (
        SliceRun(own[first], own[last], without(own[first], own[last]))
        for first, last in slice_runs((slice_mean >= threshold).cpu().numpy())
    )
    single = torch.tensor([without(n, n) for n in own], dtype=torch.float64)
    return Counterfactuals(single, (tuple(runs),))


def mean_counterfactuals(members: Sequence[Counterfactuals]) -> Counterfactuals:
    """Counterfactuals of a mixture: the mean over members of equal weight, which must have the same runs."""
    runs = (
        tuple(
            replace(same[0], scan_without=float(np.mean([run.scan_without for run in same])))
            for same in zip(*of_scan, strict=True)
        )
        for of_scan in zip(*(member.runs for member in members), strict=True)
    )
    return Counterfactuals(torch.stack([member.scan_without for member in members]).mean(0), tuple(runs))

"""Scan probabilities without single slices, runs of slices, sentences, and covariates.

In: draws of each scan. Out: `Counterfactuals`. The addition of what is removed is taken from the score of the
scan in each draw, so both probabilities differ by nothing else.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.special import ndtr

from ich_mil.gp.aggregation import latent_logit
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.counterfactual import Counterfactuals, ExtraInstance, SliceRun, slice_runs
from ich_mil.multimodal.scan_draws import ScanDraws


def probability(score: Tensor, calibration: Calibration | None) -> Tensor:
    """Calibrated probability of sampled scores (L, k)."""
    return ndtr(score) if calibration is None else calibration.scan(latent_logit(score, "probit"))


def counterfactuals(
    scans: Iterable[ScanDraws],
    slice_mean: Tensor,
    asked: Sequence[Sequence[int]],
    threshold: float,
    calibration: Calibration | None,
) -> Counterfactuals:
    """Counterfactual probabilities of each scan.

    Args:
        scans: draws of each scan.
        slice_mean: (N,) probabilities of the slices `asked` of all scans.
        asked: for each scan, indices of the slices to remove in turn.
        threshold: smallest probability of a slice in a run.
        calibration: of the scan probabilities.
    """
    single, runs, extras = [], [], []
    means = slice_mean.split([len(own) for own in asked])
    for one, own, mean in zip(scans, asked, means, strict=True):
        spans = [(own[a], own[b]) for a, b in slice_runs((mean >= threshold).numpy())]
        columns = [one.parts[:, n] for n in own] + [one.parts[:, a : b + 1].sum(1) for a, b in spans]
        columns += [extra.part for extra in one.extras]
        without = probability(one.score - torch.stack(columns, 1), calibration).mean(0).cpu()
        alone, of_spans, of_extras = without.split([len(own), len(spans), len(one.extras)])
        size = one.parts.shape[1]
        single.append(alone if size > 1 else torch.full_like(alone, torch.nan))
        runs.append(
            tuple(
                SliceRun(a, b, value if b - a + 1 < size else float("nan"))
                for (a, b), value in zip(spans, of_spans.tolist(), strict=True)
            )
        )
        extras.append(
            tuple(
                ExtraInstance(extra.kind, extra.text, float(extra.primary.mean()), value)
                for extra, value in zip(one.extras, of_extras.tolist(), strict=True)
            )
        )
    return Counterfactuals(torch.cat(single), tuple(runs), tuple(extras))

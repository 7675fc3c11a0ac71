"""Posterior of the coefficients of both tiers, whichever method found it: draws and a table.

In: a variational fit or Gibbs draws. Out: `Posterior`, all that prediction and storage need.

Shapes: L draws, P inner coefficients of a modality, Q outer ones, C coefficients in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor
from torch.special import ndtri

from ich_mil.multimodal.gibbs import Draws
from ich_mil.multimodal.inputs import Scaling
from ich_mil.multimodal.layout import Columns
from ich_mil.multimodal.restarts import Fit


@dataclass(frozen=True)
class Posterior:
    """Draws of all coefficients, and their summary.

    Attributes:
        inner: (L, P) draws of b of each modality.
        outer: (L, Q) draws of θ.
        summary: (C, 4) mean, standard deviation, lower and upper end of the 95 % credible interval of the
            inner coefficients of each modality, then the outer ones.
    """

    inner: list[Tensor]
    outer: Tensor
    summary: Tensor

    @classmethod
    def of_fit(cls, fit: Fit, samples: int, generator: torch.Generator) -> "Posterior":
        """Draws of the Gaussians of a variational fit; the intervals are those of the Gaussians."""
        parts = [*fit.inner, fit.outer]
        mean = torch.cat([one.mean[0] for one in parts])
        std = torch.cat([one.covariance[0].diagonal().sqrt() for one in parts])
        reach = std * ndtri(torch.tensor(0.975, dtype=std.dtype))
        *inner, outer = (one.draw(samples, generator) for one in parts)
        return cls(inner, outer, torch.stack([mean, std, mean - reach, mean + reach], dim=1))

    @classmethod
    def of_draws(cls, draws: Draws, samples: int) -> "Posterior":
        """Gibbs draws, at most `samples` of them, evenly spaced; the summary is of all."""
        summary = []
        for one in (*draws.inner, draws.outer):
            ends = torch.quantile(one, torch.tensor([0.025, 0.975], dtype=one.dtype, device=one.device), dim=0)
            summary.append(torch.stack([one.mean(0), one.std(0), *ends], dim=1))
        total = len(draws.outer)
        kept = torch.linspace(0, total - 1, min(samples, total)).round().long().to(draws.outer.device)
        return cls([one[kept] for one in draws.inner], draws.outer[kept], torch.cat(summary))


def coefficient_table(posterior: Posterior, scalings: Sequence[Scaling], columns: Columns) -> pd.DataFrame:
    """One row a coefficient: tier, modality, feature, mean, std, lower, upper.

    Tier `primary` is of P(instance is primary), tier `bag` of P(bag is positive). Columns that were constant
    have NaN.
    """
    keys: list[tuple[str, int, str]] = []
    missing: list[tuple[str, int, str]] = []
    names = [s.names or tuple(f"x{d}" for d in range(len(s.mean))) for s in scalings]
    for m, (scaling, features) in enumerate(zip(scalings, names, strict=True)):
        varies = scaling.varies.tolist()
        keys.append(("primary", m, "intercept"))
        keys += [("primary", m, name) for name, on in zip(features, varies, strict=True) if on]
        missing += [
            (tier, m, name)
            for tier in ("primary", "bag")
            for name, on in zip(features, varies, strict=True)
            if not on
        ]
    keys.append(("bag", -1, "intercept"))
    for m, (scaling, features) in enumerate(zip(scalings, names, strict=True)):
        if columns.first == 0:
            keys.append(("bag", m, "count"))
        keys += [("bag", m, name) for name, on in zip(features, scaling.varies.tolist(), strict=True) if on]
    table = pd.DataFrame(keys + missing, columns=["tier", "modality", "feature"])
    values = posterior.summary.cpu().numpy()
    for place, name in enumerate(("mean", "std", "lower", "upper")):
        table[name] = [*values[:, place], *[float("nan")] * len(missing)]
    return table.sort_values(["tier", "modality"], ascending=[False, True], kind="stable", ignore_index=True)

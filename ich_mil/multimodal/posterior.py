"""Posterior of the coefficients of both tiers, whichever method found it: draws and a table.

In: draws of all coefficients. Out: `Posterior`, all that prediction and storage need.

Shapes: L draws, P inner coefficients of a modality, Q outer ones, C coefficients in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from ich_mil.multimodal.inputs import Scaling
from ich_mil.multimodal.layout import Columns

HALF_WIDTH = 1.959964
"""Of a normal 95 % interval, in standard deviations: steadier than quantiles of few draws."""


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

    @property
    def columns(self) -> Columns:
        """Ranges of the modalities in the outer coefficients."""
        return Columns.of([draws.shape[1] - 1 for draws in self.inner])

    @property
    def means(self) -> tuple[list[Tensor], Tensor]:
        """Posterior means of the inner coefficients (P,) of each modality, and of the outer ones (Q,)."""
        widths = [draws.shape[1] for draws in (*self.inner, self.outer)]
        *inner, outer = self.summary[:, 0].split(widths)
        return inner, outer

    def thinned(self, samples: int) -> "Posterior":
        """About evenly spaced draws, `samples` of them; some are repeated where there are fewer."""
        kept = torch.linspace(0, len(self.outer) - 1, samples).round().long().to(self.outer.device)
        return Posterior([draws[kept] for draws in self.inner], self.outer[kept], self.summary)

    @classmethod
    def of_draws(cls, theta: Tensor, widths: Sequence[int], samples: int) -> "Posterior":
        """Keep L = `samples` of N draws (N, C) of all coefficients; `widths` is P of each modality."""
        mean, std = theta.mean(0), theta.std(0)
        summary = torch.stack([mean, std, mean - HALF_WIDTH * std, mean + HALF_WIDTH * std], dim=1)
        *inner, outer = theta.split([*widths, theta.shape[1] - sum(widths)], dim=1)
        return cls([draws.contiguous() for draws in inner], outer.contiguous(), summary).thinned(samples)


def coefficient_table(posterior: Posterior, scalings: Sequence[Scaling]) -> pd.DataFrame:
    """One row a coefficient: tier, modality, feature, mean, std, lower, upper.

    Tier `primary` is of P(instance is primary), tier `bag` of P(bag is positive). Columns that were constant
    have NaN.
    """
    varying, constant = (
        [
            (m, scaling.name(d))
            for m, scaling in enumerate(scalings)
            for d, varies in enumerate(scaling.varies.tolist())
            if varies == wanted
        ]
        for wanted in (True, False)
    )
    keys: list[tuple[str, int, str]] = []
    for m in range(len(scalings)):
        keys.append(("primary", m, "intercept"))
        keys += [("primary", m, name) for of, name in varying if of == m]
    keys.append(("bag", -1, "intercept"))
    keys += [("bag", m, name) for m, name in varying]
    table = pd.DataFrame(posterior.summary.cpu().numpy(), columns=["mean", "std", "lower", "upper"])
    table = pd.concat([pd.DataFrame(keys, columns=["tier", "modality", "feature"]), table], axis=1)
    unused = [(tier, m, name) for tier in ("primary", "bag") for m, name in constant]
    if unused:
        table = pd.concat([table, pd.DataFrame(unused, columns=table.columns[:3])], ignore_index=True)
    return table.sort_values(["tier", "modality"], ascending=[False, True], kind="stable", ignore_index=True)

"""Posterior of the coefficients of both tiers, whichever method found it: draws and a table.

In: a variational fit or Gibbs draws. Out: `Posterior`, all that prediction and storage need.

Shapes: R restarts, L draws, P inner coefficients of a modality, Q outer ones, C coefficients in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor
from torch.special import ndtr

from ich_mil.multimodal.inference.coefficients import Coefficients
from ich_mil.multimodal.inference.gibbs import Draws
from ich_mil.multimodal.inference.restarts import Fit, weights_of
from ich_mil.multimodal.inputs import Scaling
from ich_mil.multimodal.layout import Columns

BISECTIONS = 50
"""Halvings in the search for a quantile."""


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
        """Places of the modalities in the outer coefficients."""
        return Columns.of([one.shape[1] - 1 for one in self.inner])

    @property
    def means(self) -> tuple[list[Tensor], Tensor]:
        """Posterior means of the inner coefficients (P,) of each modality, and of the outer ones (Q,)."""
        widths = [one.shape[1] for one in (*self.inner, self.outer)]
        *inner, outer = self.summary[:, 0].split(widths)
        return inner, outer

    def thinned(self, samples: int) -> "Posterior":
        """About evenly spaced draws, `samples` of them; some are repeated where there are fewer."""
        kept = torch.linspace(0, len(self.outer) - 1, samples).round().long().to(self.outer.device)
        return Posterior([one[kept] for one in self.inner], self.outer[kept], self.summary)

    @classmethod
    def of_fit(cls, fit: Fit, samples: int, generator: torch.Generator) -> "Posterior":
        """Draws of the mixture of the restarts, with the weights that their bounds give."""
        weights = weights_of(fit.final).to(fit.outer.mean)  # (R,)
        counts = _shares(weights, samples)
        *inner, outer = (
            torch.cat([one.take_one(k).draw(count, generator) for k, count in enumerate(counts) if count])
            for one in (*fit.inner, fit.outer)
        )
        summary = torch.cat([_mixture_summary(one, weights) for one in (*fit.inner, fit.outer)])
        return cls(inner, outer, summary)

    @classmethod
    def of_modes(
        cls,
        q: Coefficients,
        evidence: Tensor,
        widths: Sequence[int],
        samples: int,
        generator: torch.Generator,
    ) -> "Posterior":
        """Draws of a mixture of normal posteriors (R, C) of all coefficients, weighed by their evidence."""
        weights = weights_of(evidence)
        counts = _shares(weights, samples)
        draws = torch.cat([q.take_one(k).draw(count, generator) for k, count in enumerate(counts) if count])
        *inner, outer = draws.split([*widths, draws.shape[1] - sum(widths)], dim=1)
        return cls([one.contiguous() for one in inner], outer.contiguous(), _mixture_summary(q, weights))

    @classmethod
    def of_draws(cls, draws: Draws, samples: int) -> "Posterior":
        """Gibbs draws, at most `samples` of them, evenly spaced; the summary is of all."""
        summary = []
        for one in (*draws.inner, draws.outer):
            ends = torch.quantile(
                one, torch.tensor([0.025, 0.975], dtype=one.dtype, device=one.device), dim=0
            )
            summary.append(torch.stack([one.mean(0), one.std(0), *ends], dim=1))
        return cls(draws.inner, draws.outer, torch.cat(summary)).thinned(min(samples, len(draws.outer)))


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


def _shares(weights: Tensor, total: int) -> list[int]:
    """Whole numbers that sum to `total`, as near to its shares as can be."""
    ends = (weights.cumsum(0) / weights.sum() * total).round().long().tolist()
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _mixture_summary(q: Coefficients, weights: Tensor) -> Tensor:
    """Mean, deviation and 95 % interval (P, 4) of the mixture Σ_k w_k N(mean_k, covariance_k)."""
    std = q.covariance.diagonal(dim1=-2, dim2=-1).sqrt().expand_as(q.mean)  # (R, P)
    mean = weights @ q.mean
    deviation = (weights @ (std.square() + (q.mean - mean).square())).sqrt()
    ends = []
    for level in (0.025, 0.975):
        low, high = (q.mean - 6 * std).amin(0), (q.mean + 6 * std).amax(0)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = weights @ ndtr((middle - q.mean) / std) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        ends.append((low + high) / 2)
    return torch.stack([mean, deviation, *ends], dim=1)

"""Held-out posteriors: replicates of a fit, each without the scans of one fold, updated beside the fit.

In: Φ of the training slices and the fold of each. Out: q(w) of F replicates, and with it μ, σ² of every slice
under the replicate that has not seen its scan.

The replicates share Φ with the fit, and take as many sweeps. Each has its own π and targets r:

    A_f = I + Σ_{n not in fold f} θ_n φ_n φ_nᵀ        m_f = A_f⁻¹ Σ_{n not in fold f} r_fn φ_n

Of up to `EXACT` slices each has its own Θ too, so that it is the fit to the other folds. Of more slices all
take the Θ of the fit: A_f is then the sum over all slices less that over the fold, and all of them cost as
much as that of the fit alone. Any Θ gives a valid lower bound. Through it the label of a scan reaches its
own held-out logit: on MUSK1 (476 instances) by a tenth to a third of its effect on the fit, which itself
shrinks with the number of scans.

Shapes: F folds, B scans, N instances (slices), r directions of Φ.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.inference.weights import Observation, Weights
from ich_mil.kernels.leave_one_out import Turns

EXACT = 10_000
"""Largest number of slices whose replicates have their own Θ."""


class Part(NamedTuple):
    """Slices that a q(w) has not seen: their Φ, q(w) with R = 1, and their packed rows (n,)."""

    projection: Projection
    weights: Weights
    rows: Tensor


class HeldOut:
    """Replicates of a fit without the scans of a fold."""

    def __init__(
        self, projection: Projection, observation: Observation, fold_of: Tensor, turns: Turns
    ) -> None:
        """Start the replicates at the prior.

        Args:
            projection: Φ of the slices, in the order of `turns`.
            observation: local factors of F replicates, whose update takes no σ².
            fold_of: (B,) fold of each scan.
            turns: order of the slices.
        """
        self._projection, self._observation, self._turns = projection, observation, turns
        fold = fold_of[turns.bag_order][turns.bags]  # (N,)
        n_folds = len(observation.bounded)
        folds = torch.arange(n_folds, device=fold.device)[:, None]
        self._seen = (fold != folds).double()  # (F, N)
        self._rows = [(fold == f).nonzero()[:, 0] for f in range(n_folds)]
        self._parts = [projection.select(rows) for rows in self._rows]
        self._exact = len(fold) <= EXACT
        self._weights = Weights.prior(n_folds, projection.shape[1], like=projection.residual)
        self._kept = self._weights

    def gram(self, theta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Φ Θ Φᵀ (1, r, r) and Φ r (1, r) of the fit for θ and r (1, N); runs a sweep of the replicates."""
        own_target = self._observation.target() * self._seen
        if self._exact:
            total, pull = self._projection.gram(theta, target)
            moments = self._projection.moments(self._weights.mean, self._weights.root)
            own_theta = self._observation.precision(*moments) * self._seen
            self._weights = Weights.solve(*self._projection.gram(own_theta, own_target))
        else:
            pairs = zip(self._parts, self._rows, strict=True)
            sums = [part.gram(theta[:, rows], target[:, rows]) for part, rows in pairs]
            grams = torch.cat([gram for gram, _ in sums])  # (F, r, r)
            total, pull = grams.sum(0, keepdim=True), torch.stack([pull for _, pull in sums]).sum(0)
            self._weights = Weights.solve(total - grams, self._projection.pull(own_target))
        mu = self._projection.push(self._weights.mean)
        self._observation.update(mu, mu)
        return total, pull

    def keep(self) -> None:
        """Keep the present state, as the fit keeps its own."""
        self._kept = self._weights

    def parts(self) -> Iterator[Part]:
        """Held-out slices of each fold, with the q(w) kept last."""
        for f, (projection, rows) in enumerate(zip(self._parts, self._rows, strict=True)):
            yield Part(projection, self._kept.take(f), self._turns.order[rows])

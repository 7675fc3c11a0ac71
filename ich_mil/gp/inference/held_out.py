"""Held-out posteriors: replicates of a fit, each without the scans of one fold, updated beside the fit.

In: Φ of the training slices and the fold of each. Out: q(w) of F replicates, and μ, σ² of every slice under
the replicate that has not seen its scan.

Each replicate has its own targets r and π. It shares Φ and the precisions Θ of the fit, sweep by sweep:

    A_f = I + Φ Θ Φᵀ - Σ_{n in fold f} θ_n φ_n φ_nᵀ        m_f = A_f⁻¹ Σ_{n not in fold f} r_fn φ_n

so that all Gram matrices together cost that of the fit. Any Θ gives a valid lower bound (θ is the tangent
point of a quadratic bound of log ψ), and for a probit Θ = 1; the labels of a fold reach its replicate only
through the θ of other slices.

Shapes: F folds, B bags (scans), N instances (slices), r directions of Φ.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.inference.weights import Observation, Weights
from ich_mil.kernels.leave_one_out import Turns
from ich_mil.ranks import Ranks


class Part(NamedTuple):
    """Slices that a q(w) has not seen: their Φ, q(w) with R = 1, and their packed rows (n,)."""

    projection: Projection
    weights: Weights
    rows: Tensor


class HeldOut:
    """Replicates of a fit without the scans of a fold.

    Attributes:
        weights: q(w) after the last sweep, R = F.
        kept: q(w) of the sweep whose state the fit returns.
    """

    def __init__(
        self, projection: Projection, observation: Observation, fold_of: Tensor, turns: Turns, ranks: Ranks
    ) -> None:
        """Start the replicates at the prior.

        Args:
            projection: Φ of this rank's slices, in the order of `turns`.
            observation: local factors of F replicates.
            fold_of: (C,) fold of each scan of this rank.
            turns: order of the slices.
            ranks: the ranks among which the scans are divided.
        """
        self._projection, self._observation, self._turns, self._ranks = projection, observation, turns, ranks
        fold = fold_of[turns.bag_order][turns.bags]  # (N,)
        n_folds = len(observation.bounded)
        folds = torch.arange(n_folds, device=fold.device)[:, None]
        self._seen = (fold != folds).double()  # (F, N)
        self._rows = [(fold == f).nonzero()[:, 0] for f in range(n_folds)]
        self._parts = [projection.select(rows) for rows in self._rows]
        self.weights = Weights.prior(n_folds, projection.shape[1], like=projection.residual)
        self.kept = self.weights

    def gram(self, theta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Φ Θ Φᵀ (1, r, r) and Φ r (1, r) of the fit for θ and r (1, N); runs a sweep of the replicates."""
        pairs = zip(self._parts, self._rows, strict=True)
        sums = [part.gram(theta[:, rows], target[:, rows]) for part, rows in pairs]
        grams = torch.cat([gram for gram, _ in sums])  # (F, r, r)
        total = grams.sum(0, keepdim=True)
        pull = self._projection.pull(self._observation.target() * self._seen)
        self.weights = Weights.solve(total - grams, self._ranks.total(pull))
        mu = self._projection.push(self.weights.mean)
        self._observation.update(mu, mu)  # neither ψ nor a probit takes σ² here
        return total, torch.stack([pull for _, pull in sums]).sum(0)

    def keep(self) -> None:
        """Keep the present state as that of the fit."""
        self.kept = self.weights

    def parts(self) -> Iterator[Part]:
        """Held-out slices of each fold, with the q(w) that has not seen them."""
        for f, (projection, rows) in enumerate(zip(self._parts, self._rows, strict=True)):
            yield Part(projection, self.kept.one(f), self._turns.order[rows])

"""Coordinate-ascent variational inference for the sparse GP heads, for many replicates at once.

In: Φ of the training slices (`Projection`) and the local factors of the model (`Observation`). Out: q(w) =
N(m, S) and a `FitReport` for each replicate. All models share the global update of one sweep,

    A = I + Φ Θ Φᵀ        m = A⁻¹ Φ r        S = A⁻¹
    μ = Φᵀ m              σ² = diag(Φᵀ S Φ) + residual

The precisions Θ and targets r of the slices depend on the model: they come from its local posteriors
(ψ-VGPMIL: Castro-Macías et al. 2024, Eq. 25-28). Replicates share Φ and the scans. They differ in the
parameters of the observation model: density, H, margin.

Shapes: R replicates, B bags (scans), N instances (slices), M inducing points.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ich_mil.gp.aggregation import Link, Rule, mean_logit, scan_logit
from ich_mil.gp.calibration import platt_loss
from ich_mil.gp.inference.held_out import HeldOut
from ich_mil.gp.inference.projection import Projection
from ich_mil.gp.inference.report import FitReport, Stopped
from ich_mil.gp.inference.weights import Observation, Weights
from ich_mil.kernels.leave_one_out import Turns

RUNAWAY = 50.0
"""Largest |μ| of an unbounded model before its fit counts as diverged. sigmoid(f) rounds to 1 in float64
from f = 37."""

PATIENCE = 10
"""A fit stops after this many sweeps without a lower loss on the validation scans."""

COLLAPSED = 1e-3
"""A fit whose largest |μ| is below this value has collapsed to the prior mean."""

LONGER = "with a longer length scale the kernel reaches more slices (head.lengthscale_squared)"
"""Advice in warnings about a collapsed fit, whose slices may be too far from the inducing points."""


class Watched(NamedTuple):
    """Scans on which each sweep is scored.

    Attributes:
        projection: Φ of the slices.
        offsets: (B + 1,) on the CPU.
        labels: (B,) on the CPU.
        turns: order of the slices in `projection`; None: the packed order of `offsets`.
    """

    projection: Projection
    offsets: Tensor
    labels: Tensor
    turns: Turns | None = None


@dataclass(frozen=True)
class Limits:
    """Stopping criteria, and how scans are scored."""

    sweeps: int
    patience: int
    tolerance: float
    rule: Rule
    link: Link


class _Sweep(NamedTuple):
    """Outcome of one sweep for one replicate.

    Attributes:
        number: index of the sweep, from 1.
        elbo: ELBO.
        largest: largest |μ| over the slices.
        change: largest change of a μ since the previous sweep.
        loss: Platt loss on the scoring scans; None without scoring.
    """

    number: int
    elbo: float
    largest: float
    change: float
    loss: float | None


@dataclass
class _Trace:
    """Progress of one replicate: its history, the best q(w) so far, and the stopping decision.

    Attributes:
        best: best q(w) so far.
        limits: stopping criteria.
        ceiling: largest |μ| allowed; above it the fit has diverged.
        watched: whether there are validation scans.
    """

    best: Weights
    limits: Limits
    ceiling: float
    watched: bool
    sweeps: list[_Sweep] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    best_sweep: int = 0
    best_loss: float = math.inf
    stopped: Stopped = "sweeps"
    message: str = ""

    def goes_on(self, sweep: _Sweep, state: Callable[[], Weights]) -> bool:
        """Record a sweep; return False, with `stopped` and `message` set, if the fit ends here.

        Args:
            sweep: outcome of the sweep.
            state: returns q(w) after the sweep; called only if that q(w) is kept.
        """
        self.sweeps.append(sweep)
        # These comparisons are False for NaN, so NaN counts as divergence.
        finite = sweep.largest < self.ceiling and math.isfinite(sweep.elbo)
        if finite and sweep.loss is None:
            self._keep(sweep, state)
        if not (finite and sweep.largest > COLLAPSED):
            self.stopped, self.message = "diverged", self._divergence(sweep)
            return False
        if sweep.loss is not None:
            self.losses.append(sweep.loss)
            if sweep.loss < self.best_loss:
                self._keep(sweep, state)
                self.best_loss = sweep.loss
        if self.watched and sweep.number - self.best_sweep >= self.limits.patience:
            self.stopped = "validation"
            waited = f"no better on validation scans for {self.limits.patience} sweeps"
            self.message = f"{waited}, kept sweep {self.best_sweep}"
        elif sweep.change < self.limits.tolerance:
            self.stopped, self.message = "converged", f"converged in sweep {sweep.number}"
        elif sweep.number == self.limits.sweeps:
            self.message = f"all {self.limits.sweeps} sweeps done"
        else:
            return True
        if not self.watched:  # without validation scans the last q(w) counts, not the best on training scans
            self._keep(sweep, state)
        return False

    def _keep(self, sweep: _Sweep, state: Callable[[], Weights]) -> None:
        self.best, self.best_sweep = state(), sweep.number

    def _divergence(self, sweep: _Sweep) -> str:
        """Message of a diverged fit: how it failed, and which q(w) is kept."""
        how = "shrunk to 0" if sweep.largest <= COLLAPSED else "run away"
        why = "the last finite one"
        if sweep.loss is not None:
            why = f"the best on {'validation' if self.watched else 'training'} scans"
        return (
            f"the fit has {how}: |μ| reached {sweep.largest:.3g} in sweep {sweep.number}; the state of sweep "
            f"{self.best_sweep} is kept, {why}"
        )

    def report(self) -> FitReport:
        return FitReport(
            tuple(sweep.elbo for sweep in self.sweeps),
            tuple(sweep.largest for sweep in self.sweeps),
            tuple(self.losses) if self.watched else (),
            self.best_sweep,
            self.stopped,
            self.message,
        )


def _scan_logits(mu: Tensor, variance: Tensor, watched: Watched, limits: Limits) -> Tensor:
    """Scan logits (R, B): the scan rule applied to the slice logits of E p(f) (`mean_logit`)."""
    logits = mean_logit(mu, variance, limits.link)
    if watched.turns is not None:
        logits = watched.turns.restore(logits)
    return scan_logit(logits, watched.offsets, limits.rule)


@torch.no_grad()
def ascend(
    projection: Projection,
    observation: Observation,
    start: Weights,
    *,
    limits: Limits,
    training: Watched,
    watched: Watched | None = None,
    held_out: HeldOut | None = None,
) -> list[tuple[Weights, FitReport]]:
    """Run sweeps until each replicate has converged, stopped improving, diverged or reached the sweep limit.

    With validation scans, the q(w) of the sweep with the lowest validation loss is returned, and a replicate
    stops when that loss has not fallen for `limits.patience` sweeps. Without validation scans, the last q(w)
    is returned.

    A fit stops with a warning if it diverges (|μ| not finite, or above `RUNAWAY` where the model does not
    bound it) or collapses (|μ| below `COLLAPSED`). It then returns, without validation scans, the q(w) with
    the lowest loss on the training scans, or for a bounded model the last finite q(w).

    Args:
        projection: Φ of the training slices, in the order of the observation.
        observation: local factors; changed in place, and left at the last sweep.
        start: q(w) before the first sweep, R replicates.
        limits: stopping criteria.
        training: the training scans; they score unbounded models where there are no validation scans.
        watched: validation scans.
        held_out: folds to update beside a single replicate.

    Returns:
        For each replicate, q(w) with R = 1 and its report.
    """
    bounded = observation.bounded
    alive = list(range(len(bounded)))
    traces = [
        _Trace(start.take(r), limits, math.inf if bounded[r] else RUNAWAY, watched is not None) for r in alive
    ]
    judges = training if watched is None and not all(bounded) else watched
    sums = projection.gram if held_out is None else held_out.gram
    mu, variance = projection.moments(start.mean, start.root)
    for number in range(1, limits.sweeps + 1):
        before = mu
        theta = observation.precision(mu, variance)
        weights = Weights.solve(*sums(theta, observation.target()))
        mu, variance = projection.moments(weights.mean, weights.root)
        observation.update(mu, variance)
        bound = observation.bound(mu, variance) - weights.kl()
        figures = [torch.stack([bound, mu.abs().amax(1), (mu - before).abs().amax(1)], 1)]
        if judges is not None:
            moments = (mu, variance)
            if judges is watched:
                moments = judges.projection.moments(weights.mean, weights.root)
            figures.append(_scan_logits(*moments, judges, limits))
        # The only host-device synchronisation of a sweep.
        host = torch.cat(figures, 1).cpu()  # (R, 3 + B)
        losses: list[float] | list[None] = [None] * len(alive)
        if judges is not None:
            losses = platt_loss(host[:, 3:], judges.labels).tolist()
        going = []
        for i, ((elbo, largest, change), loss) in enumerate(zip(host[:, :3].tolist(), losses, strict=True)):
            trace = traces[alive[i]]
            if judges is training and bounded[alive[i]]:
                loss = None  # a bounded model cannot run away, so its training loss is not needed
            if trace.goes_on(
                _Sweep(number, elbo, largest, change, loss), partial(_state, weights, i, held_out)
            ):
                going.append(i)
            elif trace.stopped == "diverged":
                hint = "the logistic tail of the preset 'default' keeps it from that"
                if largest <= COLLAPSED:
                    hint = LONGER
                warnings.warn(f"{trace.message}; {hint}", stacklevel=4)
        if len(going) == len(alive):
            continue
        rows = torch.tensor(going, dtype=torch.int64, device=mu.device)
        alive = [alive[i] for i in going]
        if not alive:
            break
        observation.keep(rows)
        mu, variance = mu[rows], variance[rows]
    return [(trace.best, trace.report()) for trace in traces]


def _state(weights: Weights, replicate: int, held_out: HeldOut | None) -> Weights:
    """q(w) of a replicate that is to be kept; the held-out replicates of this sweep are kept with it."""
    if held_out is not None:
        held_out.keep()
    return weights.take(replicate)

"""Coordinate ascent for every head of the family, many replicates at once.

In: Φ of the training slices (`Projection`), and what the model says of slices given their latent values (an
`Observation`). Out: q(w) = N(m, S) of each replicate, and a report. All members of the family share one
sweep,

    A = I + Φ Θ Φᵀ        m = A⁻¹ Φ r        S = A⁻¹
    μ = Φᵀ m              σ² = diag(Φᵀ S Φ) + residual

and differ in the precisions Θ and the targets r of the slices, which their local posteriors give (ψ-VGPMIL:
Castro-Macías et al. 2024, Eq. 25-28). Replicates share Φ and the scans; they differ in what the observation
holds: density, H, margin.

Several ranks (`ich_mil.ranks`) share the scans out. Each has Φ and the local posteriors of its own slices;
what a sweep decides by are sums and maxima over all, so that all decide alike.

Shapes: R replicates, B bags (scans), N instances (slices), M inducing points.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from ich_mil.gp.calibration import platt_loss
from ich_mil.gp.projection import Projection
from ich_mil.gp.rules import Link, Rule, mean_logit, scan_logit
from ich_mil.gp.sparse_gp import identity
from ich_mil.kernels.leave_one_out import Turns
from ich_mil.ranks import ALONE, Ranks

RUNAWAY = 50.0
"""|μ| beyond which a fit has run away: sigmoid(f) is 1 to the last bit of float64 from f = 37 on."""

COLLAPSED = 1e-3
"""Largest |μ| below which a fit has shrunk to the prior mean and tells nothing apart."""

Stopped = Literal["validation", "converged", "sweeps", "diverged"]


class Observation(Protocol):
    """The local side of a model: the posteriors of slices given μ and σ², R times over."""

    @property
    def bounded(self) -> bool:
        """Whether the model holds |μ| in bounds by itself."""
        ...

    def precision(self, mu: Tensor, variance: Tensor) -> Tensor:
        """Θ (R, N) for μ, σ² (R, N)."""
        ...

    def target(self) -> Tensor:
        """The targets r (R, N), after `precision` of the same sweep."""
        ...

    def update(self, mu: Tensor, variance: Tensor) -> None:
        """Bring the local posteriors to the new μ, σ² (R, N)."""
        ...

    def bound(self, mu: Tensor, variance: Tensor) -> Tensor:
        """The evidence bound (R,) without KL(q(w) ‖ p(w))."""
        ...

    def keep(self, alive: Tensor) -> None:
        """Go on with these replicates only (indices)."""
        ...


class Weights(NamedTuple):
    """q(w) of R replicates: m (R, M), W (R, M, M) with WᵀW = S, and log det S (R,)."""

    mean: Tensor
    root: Tensor
    log_det: Tensor

    @classmethod
    def prior(cls, replicates: int, m: int, *, like: Tensor) -> "Weights":
        """N(0, I) of M = `m`, of the dtype and device of `like`."""
        zero = like.new_zeros(replicates, m)
        return cls(zero, identity(m, like).repeat(replicates, 1, 1), zero[:, 0])

    @classmethod
    def solve(cls, gram: Tensor, pull: Tensor) -> "Weights":
        """S⁻¹ = I + `gram` (R, M, M) and S⁻¹ m = `pull` (R, M); NaN where that is no Gaussian."""
        eye = identity(gram.shape[-1], gram)
        C, failed = torch.linalg.cholesky_ex(gram + eye)  # A = C Cᵀ
        C.masked_fill_((failed != 0)[:, None, None], torch.nan)
        root = torch.linalg.solve_triangular(C, eye, upper=False)
        mean = (root.mT @ (root @ pull[..., None]))[..., 0]
        return cls(mean, root, -2 * C.diagonal(dim1=-2, dim2=-1).log().sum(-1))

    def select(self, rows: Tensor) -> "Weights":
        """These replicates only."""
        return Weights(*(value[rows] for value in self))

    def one(self, replicate: int) -> "Weights":
        """This replicate only, as one of one; of several, a copy, which does not hold the others' memory."""
        if len(self.mean) == 1:
            return self
        return Weights(*(value[replicate : replicate + 1].clone() for value in self))

    def within(self, basis: Tensor | None) -> "Weights":
        """Of q(w) in all M directions, the part in those of `basis` (M, r)."""
        if basis is None:
            return self
        half = self.root @ basis  # (R, M, r)
        upper = torch.linalg.cholesky(half.mT @ half).mT
        return Weights(self.mean @ basis, upper, 2 * upper.diagonal(dim1=-2, dim2=-1).log().sum(-1))

    def beyond(self, basis: Tensor | None) -> "Weights":
        """Of q(w) in the directions of `basis` (M, r), that in all M, at its prior in the others."""
        if basis is None:
            return self
        # W = I + Q (W_r - I) Qᵀ has WᵀW = I + Q (S_r - I) Qᵀ
        grown = basis @ (self.root - identity(basis.shape[1], basis)) @ basis.mT
        return Weights(self.mean @ basis.mT, grown + identity(len(basis), basis), self.log_det)

    def kl(self) -> Tensor:
        """KL(q(w) ‖ N(0, I)) (R,)."""
        trace = self.root.square().sum((-2, -1))
        return 0.5 * (trace + self.mean.square().sum(-1) - self.mean.shape[-1] - self.log_det)


@dataclass(frozen=True)
class FitReport:
    """What happened in a fit, sweep by sweep (the first entry is sweep 1).

    Attributes:
        elbo: evidence bound; exact for the logistic density, up to a constant for others of ψ-VGPMIL. For the
            family large_margin what it ascends, which bounds no evidence; empty for gibbs, which samples.
        max_abs_mean: largest |μ| of a training slice.
        validation_log_loss: calibrated log-loss of the validation scans; empty without any. Where the kernel
            was learned between several climbs, of the last one.
        best_sweep: the sweep whose state was returned; 0 = the start.
        stopped: why it ended.
        message: the same in a sentence.
        r_hat: largest rank-normalised split R-hat of the watched slices' μ; None unless it was sampled.
        effective_samples: smallest bulk effective sample size of the same; None unless it was sampled.
    """

    elbo: tuple[float, ...]
    max_abs_mean: tuple[float, ...]
    validation_log_loss: tuple[float, ...]
    best_sweep: int
    stopped: Stopped
    message: str
    r_hat: float | None = None
    effective_samples: float | None = None


class Watched(NamedTuple):
    """Scans that say how good a state is; C of the B are those of this rank.

    Attributes:
        projection: Φ of this rank's slices.
        offsets: (C + 1,) on the CPU.
        labels: (B,) of all scans, on the CPU.
        turns: the order of the slices in `projection`; None is that of `offsets`.
        numbers: (C,) of this rank's scans among all; None is all of them.
    """

    projection: Projection
    offsets: Tensor
    labels: Tensor
    turns: Turns | None = None
    numbers: Tensor | None = None


@dataclass(frozen=True)
class Limits:
    """When to stop, and how watched scans are scored; the fields of `HeadSettings` of these names."""

    sweeps: int
    patience: int
    tolerance: float
    rule: Rule
    link: Link


@dataclass
class _Trace:
    """One replicate on its way."""

    best: Weights
    elbo: list[float] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    best_sweep: int = 0
    best_loss: float = math.inf
    stopped: Stopped = "sweeps"
    message: str = ""

    def report(self, watched: bool) -> FitReport:
        losses = tuple(self.losses) if watched else ()
        lists = tuple(self.elbo), tuple(self.largest), losses
        return FitReport(*lists, self.best_sweep, self.stopped, self.message)


def scan_logits(mu: Tensor, variance: Tensor, watched: Watched, limits: Limits, ranks: Ranks) -> Tensor:
    """Logits (R, B) of all watched scans, from the rule over MacKay's E sigmoid(f) of their slices."""
    logits = mean_logit(mu, variance, limits.link)
    if watched.turns is not None:
        logits = watched.turns.restore(logits)
    own = scan_logit(logits, watched.offsets, limits.rule)  # (R, C)
    if watched.numbers is None:
        return own
    return ranks.total(own.new_zeros(len(own), len(watched.labels)).index_copy(1, watched.numbers, own))


@torch.no_grad()
def ascend(
    projection: Projection,
    observation: Observation,
    start: Weights,
    *,
    limits: Limits,
    training: Watched,
    watched: Watched | None = None,
    ranks: Ranks = ALONE,
) -> list[tuple[Weights, FitReport]]:
    """Sweeps until each replicate has converged, stopped improving, diverged, or done all it may.

    With watched scans the state of the sweep with their lowest loss is returned, and a replicate stops when
    that loss has not fallen for `limits.patience` sweeps. Without, the last state is returned. A fit that
    runs away (|μ| not finite or, where the model does not bound it, above `RUNAWAY`) or collapses (|μ| below
    `COLLAPSED`) is stopped with a warning. Without watched scans the state with the lowest loss on the
    training scans is returned then, and of a bounded model the last finite one.

    Args:
        projection: Φ of the training slices, in the order the observation has them in; of several ranks, of
            this one's slices, with sums over all.
        observation: its state is that of the last sweep afterwards.
        start: q(w) before the first sweep, R replicates.
        limits: when to stop.
        training: the training scans themselves; they judge where nobody else does.
        watched: validation scans.
        ranks: that share the scans out.

    Returns:
        q(w), one replicate each, and its report.
    """
    alive = list(range(len(start.mean)))
    traces = [_Trace(start.one(r)) for r in alive]
    judges = training if watched is None and not observation.bounded else watched
    weights = start
    mu, variance = projection.moments(weights.mean, weights.root)
    for sweep in range(1, limits.sweeps + 1):
        before = mu
        theta = observation.precision(mu, variance)
        weights = Weights.solve(*projection.gram(theta, observation.target()))
        mu, variance = projection.moments(weights.mean, weights.root)
        observation.update(mu, variance)
        bound = ranks.total(observation.bound(mu, variance)) - weights.kl()
        told = [bound[:, None], ranks.most(torch.stack([mu.abs().amax(1), (mu - before).abs().amax(1)], 1))]
        if judges is not None:
            seen = (mu, variance)
            if judges is watched:
                seen = judges.projection.moments(weights.mean, weights.root)
            told.append(scan_logits(*seen, judges, limits, ranks))
        # the one time in a sweep that the host waits for a device
        host = torch.cat(told, 1).cpu()  # (R, 3 + B)
        elbo, largest, change = host[:, :3].mT.tolist()
        losses: list[float] = []
        if judges is not None:
            losses = ranks.same(platt_loss(host[:, 3:], judges.labels)).tolist()
        going = []
        for i, r in enumerate(alive):
            trace = traces[r]
            trace.elbo.append(elbo[i])
            trace.largest.append(largest[i])
            # Written so that NaN is a divergence.
            ceiling = math.inf if observation.bounded else RUNAWAY
            finite = largest[i] < ceiling and math.isfinite(elbo[i])
            if judges is None and finite:
                trace.best, trace.best_sweep = weights.one(i), sweep
            if not (finite and largest[i] > COLLAPSED):
                trace.stopped = "diverged"
                how = "shrunk to 0" if largest[i] <= COLLAPSED else "run away"
                why = "the last finite one"
                if judges is not None:
                    why = f"the best on {'training' if watched is None else 'validation'} scans"
                kept = f"the state of sweep {trace.best_sweep} is kept, {why}"
                trace.message = f"the fit has {how}: |μ| reached {largest[i]:.3g} in sweep {sweep}; {kept}"
                hint = "a logistic tail or a larger H keep it from diverging"
                warnings.warn(f"{trace.message}; {hint}", stacklevel=4)
                continue
            if judges is not None:
                trace.losses.append(losses[i])
                if losses[i] < trace.best_loss:
                    trace.best = weights.one(i)
                    trace.best_sweep, trace.best_loss = sweep, losses[i]
            if watched is not None and sweep - trace.best_sweep >= limits.patience:
                trace.stopped = "validation"
                trace.message = (
                    f"no better on validation scans for {limits.patience} sweeps, "
                    f"kept sweep {trace.best_sweep}"
                )
            elif change[i] < limits.tolerance:
                trace.stopped, trace.message = "converged", f"converged in sweep {sweep}"
            elif sweep == limits.sweeps:
                trace.message = f"all {limits.sweeps} sweeps done"
            else:
                going.append(i)
            if i not in going and watched is None:  # the last one, whatever the training scans say
                trace.best, trace.best_sweep = weights.one(i), sweep
        if len(going) == len(alive):
            continue
        rows = torch.tensor(going, dtype=torch.int64, device=mu.device)
        alive = [alive[i] for i in going]
        if not alive:
            break
        observation.keep(rows)
        weights, mu, variance = weights.select(rows), mu[rows], variance[rows]
    return [(trace.best, trace.report(watched is not None)) for trace in traces]


def join_reports(reports: Sequence[FitReport]) -> FitReport:
    """The report of fits that went on from one another; how it ended is that of the last."""
    last = reports[-1]
    before = sum(len(report.elbo) for report in reports[:-1])
    return replace(
        last,
        elbo=tuple(value for report in reports for value in report.elbo),
        max_abs_mean=tuple(value for report in reports for value in report.max_abs_mean),
        best_sweep=before + last.best_sweep,
    )

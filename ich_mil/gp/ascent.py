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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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

LONGER = "with a longer length scale the kernel reaches more slices (head.lengthscale_squared)"
"""What to do where the slices are too far from the inducing points."""

Stopped = Literal["validation", "converged", "sweeps", "diverged"]


class Observation(Protocol):
    """The local side of a model: the posteriors of slices given μ and σ², R times over."""

    @property
    def bounded(self) -> list[bool]:
        """Of each of the R, whether the model holds |μ| in bounds by itself."""
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
        elbo: evidence bound; exact for the logistic density, for others of ψ-VGPMIL up to a constant and log
            Z (Eq. 20), which depends on the kernel. For the family large_margin what it ascends, which
            bounds no evidence; empty for gibbs, which samples.
        max_abs_mean: largest |μ| of a training slice.
        validation_log_loss: loss of the validation scans after Platt's sigmoid is fitted to them
            (`platt_loss`); empty without any. Where the kernel is learned, of the last ascent alone.
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


class _Sweep(NamedTuple):
    """What one sweep made of one replicate.

    Attributes:
        number: of the sweep, from 1.
        elbo: evidence bound.
        largest: |μ| of a slice.
        change: of a μ since the sweep before.
        loss: of the scans that judge; None where none do.
    """

    number: int
    elbo: float
    largest: float
    change: float
    loss: float | None


@dataclass
class _Trace:
    """One replicate on its way: which state is the best so far, and whether it goes on.

    Attributes:
        best: that state.
        limits: when to stop.
        ceiling: of |μ|; beyond, the fit has run away.
        watched: whether validation scans judge.
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
        """Take note of a sweep and of the state it ended in; False ends the fit and says why."""
        self.sweeps.append(sweep)
        # Written so that NaN is a divergence.
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
        if not self.watched:  # the last one, whatever the training scans say
            self._keep(sweep, state)
        return False

    def _keep(self, sweep: _Sweep, state: Callable[[], Weights]) -> None:
        self.best, self.best_sweep = state(), sweep.number

    def _divergence(self, sweep: _Sweep) -> str:
        """How the fit went wrong, and what is kept of it."""
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
    bounded = observation.bounded
    alive = list(range(len(bounded)))
    traces = [
        _Trace(start.one(r), limits, math.inf if bounded[r] else RUNAWAY, watched is not None) for r in alive
    ]
    judges = training if watched is None and not all(bounded) else watched
    mu, variance = projection.moments(start.mean, start.root)
    for number in range(1, limits.sweeps + 1):
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
        losses: list[float] | list[None] = [None] * len(alive)
        if judges is not None:
            losses = ranks.same(platt_loss(host[:, 3:], judges.labels)).tolist()
        going = []
        for i, ((elbo, largest, change), loss) in enumerate(zip(host[:, :3].tolist(), losses, strict=True)):
            trace = traces[alive[i]]
            if judges is training and bounded[alive[i]]:
                loss = None  # nobody need judge what cannot run away
            if trace.goes_on(_Sweep(number, elbo, largest, change, loss), partial(weights.one, i)):
                going.append(i)
            elif trace.stopped == "diverged":
                hint = "a logistic tail keeps it from that (head.logistic_tail)"
                if largest <= COLLAPSED:
                    hint = f"{LONGER}, and labels weigh more with a larger H, if it has one (head.log_h)"
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

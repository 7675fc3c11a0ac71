"""Fit by random restarts, side by side, weighed by their evidence bounds.

In: a `Model` and settings of the search. Out: q of the coefficients of every restart, and the bounds.

Coordinate ascent alone needs thousands of sweeps, as expectation-maximisation does where much is latent. Two
devices make it hundreds. Means of the coefficients are extrapolated with Nesterov's momentum, k / (k + 3)
after k sweeps. After `WARM` sweeps they take Newton steps, with U and y* integrated out; from the start these
end in worse optima, because the inner tier then settles before the outer one. A sweep after which the bound
is lower is undone for that replicate, which goes on from plain ascent without momentum: the bound of the
factors that are kept never falls.

Starts are close to b = 0, where every instance may be primary: from wide starts the optima are worse.

A mixture Σ_k w_k q_k of optima that do not overlap has the bound Σ_k w_k (bound_k - log w_k), which is
highest at w_k ∝ exp(bound_k): these are the weights of the restarts.

Shapes: R replicates, P inner coefficients of a modality.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ich_mil.multimodal.inference.coefficients import Coefficients
from ich_mil.multimodal.inference.factors import State
from ich_mil.multimodal.inference.variational import Model
from ich_mil.multimodal.layout import Rows, chunks_of

START_DEVIATION = 0.05
"""Standard deviation of the first inner coefficients."""

WARM = 100
"""Sweeps before the first Newton step, from a random start."""

SCREENING = 1e-4
"""Tolerance of restarts on some of the bags."""

WINDOW = 10
"""Sweeps over which the rise of the bound is averaged."""


@dataclass(frozen=True)
class Fit:
    """Optima of all restarts.

    Attributes:
        inner: q(b) of each modality, R replicates.
        outer: q(θ), R replicates.
        bounds: bound after each sweep of each restart.
        converged: whether each restart converged.
    """

    inner: list[Coefficients]
    outer: Coefficients
    bounds: list[list[float]]
    converged: list[bool]

    @property
    def final(self) -> Tensor:
        """The last bound (R,) of each restart."""
        return torch.tensor([values[-1] for values in self.bounds], dtype=torch.float64)

    def take(self, k: int) -> "Fit":
        """Restart k alone."""
        inner = [one.take_one(k) for one in self.inner]
        return Fit(inner, self.outer.take_one(k), [self.bounds[k]], [self.converged[k]])

    @property
    def best(self) -> int:
        """The restart with the highest bound."""
        return int(self.final.argmax())


def random_starts(model: Model, restarts: int, generator: torch.Generator) -> list[Tensor]:
    """First means (R, P) of the inner coefficients of each modality."""
    return [
        START_DEVIATION
        * torch.randn(restarts, len(one), generator=generator, dtype=one.dtype, device=one.device)
        for one in model.inner_precision
    ]


def search(
    model: Model,
    rows: Sequence[Rows],
    *,
    restarts: int,
    screen: int,
    sweeps: int,
    tolerance: float,
    generator: torch.Generator,
    whole: bool = True,
) -> Fit:
    """Fit from random starts, all on all bags; on many bags on some, from where the best goes on with all.

    Args:
        model: data and prior.
        rows: the instances of `model`.
        restarts: R.
        screen: with more than twice as many bags, the restarts see so many, drawn at random.
        sweeps: most sweeps of each restart.
        tolerance: as in `fit_variational`.
        generator: of starts and of the choice of bags.
        whole: False ends with the best restart on some of the bags, a start for another method.
    """
    n_bags, starts = len(model.signs), random_starts(model, restarts, generator)
    if n_bags <= 2 * screen:
        return fit_variational(model, starts, sweeps=sweeps, tolerance=tolerance)
    chosen = torch.randperm(n_bags, generator=generator, device=generator.device)[:screen]
    place = torch.full((n_bags,), -1, device=generator.device)
    place[chosen] = torch.arange(screen, device=generator.device)
    bags = [place[one.bags] for one in rows]
    few = [Rows(one.x[b >= 0], b[b >= 0]) for one, b in zip(rows, bags, strict=True)]
    widths = [len(one) for one in model.inner_precision]
    smaller = Model(chunks_of(few, screen), model.signs[chosen], model.columns, model.prior, widths)
    found = fit_variational(smaller, starts, sweeps=sweeps, tolerance=SCREENING)
    if not whole:
        return found.take(found.best)
    best = [one.mean[[found.best]] for one in found.inner]
    return fit_variational(model, best, sweeps=sweeps, tolerance=tolerance, warm=0)


def fit_variational(
    model: Model, starts: Sequence[Tensor], *, sweeps: int, tolerance: float, warm: int = WARM
) -> Fit:
    """Run all restarts to convergence.

    Args:
        model: data and prior.
        starts: (R, P) first E[b] of each modality.
        sweeps: most sweeps of each.
        tolerance: a restart has converged when its bound rises by less than this share a sweep.
        warm: sweeps before the first Newton step.

    Warns:
        UserWarning: the best restart has not converged.
    """
    restarts = len(starts[0])
    new = target = plain = state = model.start(starts)
    history: list[list[float]] = [[] for _ in range(restarts)]
    ended: list[State | None] = [None] * restarts
    alive = list(range(restarts))
    best = model.signs.new_full((restarts,), -torch.inf)
    momentum = torch.zeros_like(best)  # k, sweeps since the momentum was last dropped
    for number in range(sweeps):
        new, ahead, bound = model.sweep(state, newton=number >= warm)
        fell = ~(bound >= best)
        if bool(fell.any()):
            new, ahead = plain.where(fell, new), plain.where(fell, ahead)
        best, momentum = torch.where(fell, best, bound), torch.where(fell, 0.0, momentum + 1)
        for place, value in zip(alive, best.tolist(), strict=True):
            history[place].append(value)
        going = [number <= warm or not _converged(history[place], tolerance) for place in alive]
        if not all(going):
            for i, place in enumerate(alive):
                if not going[i]:
                    ended[place] = new.take(torch.tensor([i], device=best.device))
            alive = [place for place, on in zip(alive, going, strict=True) if on]
            if not alive:
                break
            chosen = torch.tensor(going, device=best.device).nonzero().squeeze(1)
            new, ahead, target = new.take(chosen), ahead.take(chosen), target.take(chosen)
            best, momentum = best[chosen], momentum[chosen]
        state, plain, target = _extrapolate(ahead, target, momentum), new, ahead
    for i, place in enumerate(alive):
        ended[place] = new.take(torch.tensor([i], device=best.device))
    states = [one for one in ended if one is not None]
    inner = [_stack([one.inner[m] for one in states]) for m in range(len(starts))]
    converged = [place not in alive for place in range(restarts)]
    fit = Fit(inner, _stack([one.outer for one in states]), history, converged)
    if not converged[fit.best]:
        warnings.warn(
            f"variational inference has not converged in {sweeps} sweeps (bound {best.max():.2f}); take more "
            "sweeps, or a larger tolerance",
            stacklevel=2,
        )
    return fit


def weights_of(bounds: Tensor) -> Tensor:
    """Mixture weights (R,) of optima with these bounds."""
    return torch.softmax(bounds, 0)


def _converged(bounds: Sequence[float], tolerance: float) -> bool:
    """Whether the bound has risen by less than `tolerance` of its size a sweep, over the last `WINDOW`."""
    if len(bounds) <= WINDOW:
        return False
    return bounds[-1] - bounds[-1 - WINDOW] < WINDOW * tolerance * abs(bounds[-1])


def _extrapolate(new: State, last: State, momentum: Tensor) -> State:
    """Means of the coefficients of `new`, moved on by k / (k + 3) of their way from `last`."""
    share = (momentum / (momentum + 3))[:, None]  # (R, 1), 0 after a fall

    def ahead(one: Coefficients, before: Coefficients) -> Coefficients:
        return one._replace(mean=one.mean + share * (one.mean - before.mean))

    inner = [ahead(*pair) for pair in zip(new.inner, last.inner, strict=True)]
    return new._replace(inner=inner, outer=ahead(new.outer, last.outer))


def _stack(parts: Sequence[Coefficients]) -> Coefficients:
    """One replicate after another; a covariance that all share stays one."""
    shared = len(parts) > 1 and parts[0].covariance is parts[1].covariance
    mean = torch.cat([one.mean for one in parts])
    if shared:
        return parts[0]._replace(mean=mean)
    return Coefficients(
        mean, torch.cat([one.covariance for one in parts]), torch.cat([one.log_det for one in parts])
    )

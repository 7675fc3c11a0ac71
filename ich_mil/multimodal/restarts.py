"""Fit by random restarts: the replicate with the highest evidence bound is kept.

In: a `Model` and settings of the search. Out: q of the coefficients, and the bound of every sweep.

The restarts run side by side. Coordinate ascent alone needs thousands of sweeps: the two tiers move in small
steps, as those of expectation-maximisation do when much is latent. Means of the coefficients are therefore
extrapolated with Nesterov's momentum, k / (k + 3) after k sweeps. A sweep after which the bound is lower is
undone for that replicate, which goes on from the coefficients of plain ascent with no momentum: the bound of
the factors that are kept never falls.

Starts are close to b = 0, where every instance may be primary. From wide starts the ascent ends in worse
optima: primary instances are then fixed before the outer tier knows what they say.

Shapes: R replicates, P inner coefficients of a modality.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from ich_mil.multimodal.coefficients import Coefficients
from ich_mil.multimodal.variational import Model, State

START_DEVIATION = 0.05
"""Standard deviation of the first inner coefficients."""

WINDOW = 10
"""Sweeps over which the rise of the bound is averaged."""


@dataclass(frozen=True)
class Fit:
    """The best of the restarts.

    Attributes:
        inner: q(b) of each modality, one replicate.
        outer: q(θ), one replicate.
        bounds: bound after each sweep of the best restart.
        final_bounds: bound of every restart, in their order.
        converged: whether the best restart converged.
    """

    inner: list[Coefficients]
    outer: Coefficients
    bounds: list[float]
    final_bounds: list[float]
    converged: bool


def fit_variational(
    model: Model, *, restarts: int, sweeps: int, tolerance: float, generator: torch.Generator
) -> Fit:
    """Run all restarts to convergence.

    Args:
        model: data and prior.
        restarts: R.
        sweeps: most sweeps of each.
        tolerance: a restart has converged when its bound rises by less than this share a sweep.
        generator: of the starts.

    Warns:
        UserWarning: the best restart has not converged.
    """
    starts = [
        START_DEVIATION
        * torch.randn(
            restarts, len(precision), generator=generator, dtype=precision.dtype, device=precision.device
        )
        for precision in model.inner_precision
    ]
    state = model.start(starts)
    history: list[list[float]] = [[] for _ in range(restarts)]
    ended: list[State | None] = [None] * restarts
    alive = list(range(restarts))
    best = model.signs.new_full((restarts,), -torch.inf)
    momentum = torch.zeros_like(best)  # k, sweeps since the last start of the momentum
    plain = state
    for _ in range(sweeps):
        new, bound = model.sweep(state)
        fell = ~(bound >= best)
        if bool(fell.any()):
            new = plain.where(fell, new)
        best = torch.where(fell, best, bound)
        momentum = torch.where(fell, 0.0, momentum + 1)
        for place, value in zip(alive, best.tolist(), strict=True):
            history[place].append(value)
        going = [not _converged(history[place], tolerance) for place in alive]
        for i, place in enumerate(alive):
            if not going[i]:
                ended[place] = new.take(torch.tensor([i], device=best.device))
        if not any(going):
            alive = []
            break
        if not all(going):
            chosen = torch.tensor(going, device=best.device).nonzero().squeeze(1)
            new, plain, best, momentum = new.take(chosen), plain.take(chosen), best[chosen], momentum[chosen]
            fell, alive = fell[chosen], [place for place, on in zip(alive, going, strict=True) if on]
        state, plain = _extrapolate(new, plain, momentum), new
    for i, place in enumerate(alive):
        ended[place] = plain.take(torch.tensor([i], device=best.device))
    final = [values[-1] for values in history]
    winner = max(range(restarts), key=final.__getitem__)
    chosen_state = ended[winner]
    assert chosen_state is not None
    if winner in alive:
        warnings.warn(
            f"variational inference has not converged in {sweeps} sweeps (bound {final[winner]:.2f}); take "
            "more sweeps, or a larger tolerance",
            stacklevel=2,
        )
    inner = [one._replace(mean=one.mean) for one in chosen_state.inner]
    return Fit(inner, chosen_state.outer, history[winner], final, winner not in alive)


def _converged(bounds: list[float], tolerance: float) -> bool:
    """Whether the bound has risen by less than `tolerance` of its size a sweep, over the last `WINDOW`."""
    if len(bounds) <= WINDOW:
        return False
    return bounds[-1] - bounds[-1 - WINDOW] < WINDOW * tolerance * abs(bounds[-1])


def _extrapolate(new: State, last: State, momentum: Tensor) -> State:
    """Means of the coefficients of `new` moved on by k / (k + 3) of their way from `last`."""
    share = (momentum / (momentum + 3))[:, None]  # (R, 1), 0 after a fall

    def ahead(one: Coefficients, before: Coefficients) -> Coefficients:
        return one._replace(mean=one.mean + share * (one.mean - before.mean))

    inner = [ahead(*pair) for pair in zip(new.inner, last.inner, strict=True)]
    return new._replace(inner=inner, outer=ahead(new.outer, last.outer))

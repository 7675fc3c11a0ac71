"""Short Hamiltonian chains on the exact posterior from draws of its normal approximation: the fast default.

In: a `Target` and its `Normal`. Out: draws of positions.

Positions are whitened by the approximation, so that few leapfrog steps of one size cross the posterior. The
step size is adapted in the first fifth of a chain, which is dropped.

Shapes: R chains, L kept draws of each, X positions.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ich_mil.multimodal.inference.gaussian import Normal
from ich_mil.multimodal.inference.target import Target

LEAST, MOST = 3, 7
"""Leapfrog steps of a trajectory, drawn afresh for each."""
MEAN_STEPS = (LEAST + MOST) / 2
ACCEPTANCE, FIRST_STEP, WARM_SHARE = 0.8, 0.3, 0.2


@dataclass(frozen=True)
class Chains:
    """Draws (R, L, X), and the mean probability of acceptance after warm-up."""

    draws: Tensor
    acceptance: float


def sample(target: Target, q: Normal, *, chains: int, length: int, generator: torch.Generator) -> Chains:
    """Run R = `chains` chains of `length` trajectories."""
    like = q.mean

    def density(y: Tensor) -> tuple[float, Tensor]:
        value, slope = target(q.mean + q.root @ y)
        return value, q.root.mT @ slope

    def normal() -> Tensor:
        return torch.randn(len(like), generator=generator, dtype=like.dtype, device=like.device)

    warm, log_step = math.ceil(WARM_SHARE * length), math.log(FIRST_STEP)
    positions = [normal() for _ in range(chains)]
    here = [density(y) for y in positions]
    kept = like.new_empty(chains, length - warm, len(like))
    acceptances: list[float] = []
    for number in range(length):
        for chain in range(chains):
            steps = int(torch.randint(LEAST, MOST + 1, (), generator=generator, device=like.device))
            y, (value, slope), momentum, step = positions[chain], here[chain], normal(), math.exp(log_step)
            energy = value - float(momentum.square().sum()) / 2
            for _ in range(steps):
                momentum = momentum + step / 2 * slope
                y = y + step * momentum
                value, slope = density(y)
                momentum = momentum + step / 2 * slope
            change = value - float(momentum.square().sum()) / 2 - energy
            acceptance = math.exp(min(0.0, change)) if math.isfinite(change) else 0.0
            if float(torch.rand((), generator=generator, device=like.device)) < acceptance:
                positions[chain], here[chain] = y, (value, slope)
            if number < warm:
                log_step += (acceptance - ACCEPTANCE) / math.sqrt(1 + number)
            else:
                kept[chain, number - warm] = q.mean + q.root @ positions[chain]
                acceptances.append(acceptance)
    return Chains(kept, sum(acceptances) / len(acceptances))

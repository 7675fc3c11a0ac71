"""Hamiltonian chains on the exact posterior from draws of its normal approximation.

In: a `Target` and its `Normal`. Out: draws of positions.

Positions are whitened by the approximation, so that few leapfrog steps of one size cross the posterior.
The chains move together, in equally many steps, so that the gradients of all are one call. In windows of
warm-up the step size is adapted, and the approximation is matched to the draws at their ends.

Shapes: R chains, L kept draws of each, X positions.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ich_mil.multimodal.inference.gaussian import COARSE, Normal, match
from ich_mil.multimodal.inference.target import Target

SHORT, LONG = (4, 10), (10, 24)
"""Least and most leapfrog steps of a trajectory, drawn afresh for each: of short chains, and of chains that
are long enough to adapt the size of a step to them. The acceptance is by the exact density."""
ACCEPTANCE, FIRST_STEP = 0.8, 0.3
WINDOWS = (0.1, 0.15, 0.2)
"""Shares of the trajectories in the windows of warm-up."""


@dataclass(frozen=True)
class Chains:
    """Draws (R, L, X), the mean probability of acceptance after warm-up, the last approximation."""

    draws: Tensor
    acceptance: float
    q: Normal


def sample(
    target: Target,
    q: Normal,
    *,
    chains: int,
    length: int,
    generator: torch.Generator,
    steps: tuple[int, int] = SHORT,
) -> Chains:
    """Run R = `chains` chains of `length` trajectories, each of least to most `steps`."""
    position, log_step, left = q.draw(chains, generator), math.log(FIRST_STEP), length
    for window in (*(math.ceil(share * length) for share in WINDOWS), 0):
        number = window or left
        moves = _Moves(target, q, position, steps, generator)
        for k in range(number):
            acceptance = moves.trajectory(math.exp(log_step))
            if window:
                log_step += (acceptance - ACCEPTANCE) / math.sqrt(1 + k)
        position, left = moves.position, left - number
        draws = torch.stack(moves.draws, dim=1)
        if window:
            q = match(q, draws.flatten(0, 1), torch.cat(moves.slopes), chains * window)
            log_step = math.log(FIRST_STEP) if log_step < math.log(FIRST_STEP) else log_step
    return Chains(draws, sum(moves.acceptances) / number, q)


class _Moves:
    """Chains at `position` (R, X) with one whitening, and what they pass."""

    def __init__(
        self, target: Target, q: Normal, position: Tensor, steps: tuple[int, int], generator: torch.Generator
    ) -> None:
        self.target, self.q, self.position, self.generator = target, q, position, generator
        self.least, self.most = steps
        self.value, self.slope = target(position)[0], target(position, tolerance=COARSE)[1]
        self.draws: list[Tensor] = []
        self.slopes: list[Tensor] = []
        self.acceptances: list[float] = []

    def trajectory(self, step: float) -> float:
        """Move all chains; mean probability of acceptance."""
        root, generator, like = self.q.root, self.generator, self.position
        momentum = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        energy = self.value - momentum.square().sum(1) / 2
        x, slope = self.position, self.slope
        number = torch.randint(self.least, self.most + 1, (), generator=generator, device=like.device)
        for _ in range(int(number)):
            momentum = momentum + step / 2 * (slope @ root)
            x = x + step * (momentum @ root.mT)
            slope = self.target(x, tolerance=COARSE)[1]
            momentum = momentum + step / 2 * (slope @ root)
        value = self.target(x)[0]
        acceptance = (value - momentum.square().sum(1) / 2 - energy).clamp(max=0).exp().nan_to_num(0)
        uniform = torch.rand(len(like), generator=generator, dtype=like.dtype, device=like.device)
        taken = uniform < acceptance
        self.position, self.slope = (
            torch.where(taken[:, None], *pair) for pair in ((x, self.position), (slope, self.slope))
        )
        self.value = torch.where(taken, value, self.value)
        self.draws.append(self.position)
        self.slopes.append(self.slope)
        self.acceptances.append(float(acceptance.mean()))
        return self.acceptances[-1]

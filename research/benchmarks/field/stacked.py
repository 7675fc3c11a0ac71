"""Train many small networks at once: replicates of one architecture, stacked along a first dimension.

In: an architecture, padded bags, and a weight of each bag in each replicate (0: held out). Out: logits of the
bags and scores of their instances at `CHECKS` times of the training. Replicates see the same mini-batches;
each minimises its own weighted loss with its own learning rate and weight decay (AdamW), so they are
independent fits.

A shorter bag of a batch is padded with repetitions of its own instances, as TransMIL does to fill a square.
Where an architecture takes a mask, the repetitions are masked. Batches hold bags of like size.

Shapes: R replicates, B bags, b bags of a batch, n instances of a padded bag, D features, P parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from ich_mil.sets.features import FeatureSet

BATCH = 16
"""Largest number of bags of a batch."""

ROWS = 2048
"""Largest number of padded instances of a batch of several bags."""

STEPS = 160
"""Number of steps, rounded up to whole epochs."""

CHECKS = 8
"""Number of times of the training at which logits are computed; early stopping chooses one."""

FURTHEST = 10.0
"""Standardised features are clipped at this value."""


class Padded(NamedTuple):
    """Padded bags.

    Attributes:
        x: (B, n, D) standardised features.
        mask: (B, n) 1 for an instance, 0 for a repetition.
        y: (B,) labels.
    """

    x: Tensor
    mask: Tensor
    y: Tensor

    @property
    def sizes(self) -> Tensor:
        """Number of instances of each bag, (B,)."""
        return self.mask.sum(1).long()

    def take(self, bags: Tensor) -> "Padded":
        """Select bags, padded to the longest of them."""
        n = int(self.sizes[bags].max())
        return Padded(self.x[bags, :n], self.mask[bags, :n], self.y[bags])


def padded(features: FeatureSet, scaler: StandardScaler) -> Padded:
    """Standardise and pad the bags of a feature set."""
    x = torch.from_numpy(scaler.transform(features.x.double().numpy())).float().clamp(-FURTHEST, FURTHEST)
    sizes = features.offsets.diff()
    n = torch.arange(int(sizes.max()))
    rows = features.offsets[:-1, None] + n % sizes[:, None]  # (B, n)
    mask = (n < sizes[:, None]).float()
    return Padded(x[rows], mask, features.labels.float())


def batches(sizes: Tensor, generator: torch.Generator | None) -> list[Tensor]:
    """Indices of the bags of each batch, by size; a generator perturbs the sizes and the order of batches."""
    key = sizes.double()
    if generator is not None:
        key = key * torch.exp(0.2 * torch.randn(len(sizes), generator=generator))
    found: list[list[int]] = []
    for bag in key.argsort(stable=True).tolist():
        last = found[-1] if found else []
        longest = max([int(sizes[bag]), *(int(sizes[b]) for b in last)])
        if last and len(last) < BATCH and longest * (len(last) + 1) <= ROWS:
            last.append(bag)
        else:
            found.append([bag])
    order = torch.arange(len(found)) if generator is None else torch.randperm(len(found), generator=generator)
    return [torch.tensor(found[k]) for k in order.tolist()]


@dataclass(frozen=True)
class Replicate:
    """One fit: seed of the initial weights, learning rate, weight decay, and its training bags."""

    seed: int
    rate: float
    decay: float
    bags: tuple[int, ...]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, which initialise weights (torch) and shuffle groups (DTFD-MIL, NumPy)."""
    state = np.random.get_state()  # noqa: NPY002 - torchmil's DTFD-MIL draws from it
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002


class Stack:
    """Replicates of an architecture with parameters (R, P)."""

    def __init__(self, build: Callable[[], nn.Module], seeds: Sequence[int]) -> None:
        each = {}
        for seed in dict.fromkeys(seeds):
            with seeded(seed):
                self.model = build()
            each[seed] = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        assert not list(self.model.buffers())
        self.shapes = [(name, value.shape) for name, value in self.model.named_parameters()]
        self.start = torch.stack([each[seed] for seed in seeds])  # (R, P)

    def __call__(self, parameters: Tensor, part: Padded) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (R, b), instance scores (R, b, n) and losses (R, b) for parameters (R, P)."""

        def run(flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            pieces = flat.split([shape.numel() for _, shape in self.shapes])
            values = {name: v.view(shape) for (name, shape), v in zip(self.shapes, pieces, strict=True)}
            return functional_call(self.model, values, tuple(part))

        with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for vmap
            return torch.vmap(run)(parameters)


def train(
    build: Callable[[], nn.Module], bags: Padded, replicates: Sequence[Replicate], *, seed: int
) -> tuple[Stack, list[Tensor]]:
    """Train replicates. Returns the stack and its parameters (R, P) at each check, in the order given."""
    stack = Stack(build, [one.seed for one in replicates])
    cells = list(dict.fromkeys((one.rate, one.decay) for one in replicates))
    rows = [[r for r, one in enumerate(replicates) if (one.rate, one.decay) == cell] for cell in cells]
    groups: list[Tensor] = [nn.Parameter(stack.start[own]) for own in rows]
    optimiser = torch.optim.AdamW(
        [
            {"params": [group], "lr": rate, "weight_decay": decay}
            for group, (rate, decay) in zip(groups, cells, strict=True)
        ],
        fused=True,
    )
    back = torch.tensor([r for own in rows for r in own]).argsort()
    weight = torch.zeros(len(replicates), len(bags.y))
    for r, one in enumerate(replicates):
        weight[r, list(one.bags)] = 1.0
    generator = torch.Generator().manual_seed(seed)
    per_epoch = len(batches(bags.sizes, None))
    epochs = max(CHECKS, -(-STEPS // per_epoch))
    due = {round(epochs * k / CHECKS) for k in range(1, CHECKS + 1)}
    found = []
    with seeded(seed):
        for epoch in range(1, epochs + 1):
            for chosen in batches(bags.sizes, generator):
                w = weight[:, chosen]  # (R, b)
                losses = stack(torch.cat(groups)[back], bags.take(chosen))[2]
                loss = (losses * w / w.sum(1, keepdim=True).clamp(min=1.0)).sum()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            if epoch in due:
                found.append(torch.cat(groups)[back].detach())
    return stack, found


@torch.no_grad()
def outputs(stack: Stack, parameters: Tensor, bags: Padded) -> tuple[Tensor, list[Tensor]]:
    """Logits (R, B), and for each bag the scores (R, n) of its instances, in float64."""
    logits = torch.empty(len(parameters), len(bags.y), dtype=torch.float64)
    scores: list[Tensor] = [torch.empty(0)] * len(bags.y)
    with seeded(0):
        for chosen in batches(bags.sizes, None):
            own, slices, _ = stack(parameters, bags.take(chosen))
            logits[:, chosen] = own.double()
            for k, bag in enumerate(chosen.tolist()):
                scores[bag] = slices[:, k, : int(bags.sizes[bag])].double()
    return logits, scores

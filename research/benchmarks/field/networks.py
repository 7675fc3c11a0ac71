"""Neural models of bags under the rule of `tuning`.

Learning rate and weight decay are chosen from `GRID` with the first seed. Each seed stops at the check with
the lowest held-out log-loss. Networks without each inner fold and one of all bags are trained side by side;
the held-out logits of the former calibrate the latter.

Shapes: B bags, N instances.
"""

from collections.abc import Callable, Sequence

import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from ich_mil.errors import DataError
from ich_mil.sets.features import FeatureSet
from research.benchmarks.field.modules import (
    Attention,
    Clustered,
    DoubleTier,
    DualStream,
    Graph,
    Smooth,
    Transformer,
)
from research.benchmarks.field.stacked import Padded, Replicate, Stack, outputs, padded, train
from research.benchmarks.field.tuning import Method, Scored, calibrated, held_out_loss, inner_folds

GRID = tuple((rate, decay) for rate in (2e-3, 1e-2) for decay in (1e-3, 1e-1))
"""Candidates: learning rate and weight decay of AdamW."""


def check_positions(features: FeatureSet) -> None:
    """Raise `DataError` unless every slice has a position in mm, in the order of the slices."""
    mm = features.positions_mm
    for b, (first, end) in enumerate(zip(features.offsets, features.offsets[1:], strict=False)):
        own = torch.tensor([torch.nan]) if mm is None else mm[first:end]
        if bool(own.isnan().any()) or bool((own.diff() <= 0).any()):
            raise DataError(
                f"scan {features.scans[b]!r}: positions in mm are missing or do not increase, context across "
                "slices needs them; take features of a set with geometry"
            )


def network(module: Callable[[int], nn.Module], *, ordered: bool = False) -> Method:
    """Method of a module; `ordered` if it needs the order of the slices."""

    def method(learn: FeatureSet, test: FeatureSet, seeds: Sequence[int]) -> list[Scored]:
        for part in (learn, test) if ordered else ():
            check_positions(part)
        folds = inner_folds(learn)
        scaler = StandardScaler().fit(learn.x.double().numpy())
        bags, out = padded(learn, scaler), padded(test, scaler)

        def build() -> nn.Module:
            return module(learn.x.shape[1])

        whole = tuple(range(learn.n_scans))
        tuned = [Replicate(seeds[0], *cell, inside) for cell in GRID for inside, _ in folds]
        stack, checks = train(build, bags, tuned, seed=seeds[0])
        held = held_out(stack, checks, bags, folds)  # (CHECKS, cells, B)
        losses = [min(held_out_loss(at[c], learn.labels) for at in held) for c in range(len(GRID))]
        cell = GRID[losses.index(min(losses))]
        parts = [*(inside for inside, _ in folds), whole]
        final = [Replicate(seed, *cell, part) for seed in seeds for part in parts]
        stack, checks = train(build, bags, final, seed=seeds[0])
        held = held_out(stack, checks, bags, [*folds, (whole, ())])  # (CHECKS, seeds, B)
        found = []
        for s in range(len(seeds)):
            best = min(range(len(held)), key=lambda k: held_out_loss(held[k][s], learn.labels))
            row = (s + 1) * len(parts) - 1
            logits, scores = outputs(stack, checks[best][row : row + 1], out)
            bag = calibrated(held[best][s], learn.labels, logits[0])
            found.append(Scored(bag, torch.cat([own[0] for own in scores])))
        return found

    return method


def held_out(
    stack: Stack, checks: Sequence[Tensor], bags: Padded, folds: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[Tensor]:
    """Held-out logits (groups, B) at each check; replicates come in groups of one for each fold."""
    found = []
    for parameters in checks:
        logits = outputs(stack, parameters, bags)[0].view(-1, len(folds), len(bags.y))
        kept = torch.empty(len(logits), len(bags.y), dtype=torch.float64)
        for k, (_, outside) in enumerate(folds):
            kept[:, list(outside)] = logits[:, k, list(outside)]
        found.append(kept)
    return found


NETWORKS = {
    "ABMIL": network(Attention),
    "DSMIL": network(DualStream),
    "CLAM-SB": network(Clustered),
    "DTFD-MIL": network(DoubleTier),
    "TransMIL": network(Transformer),
}
"""Methods for any bags, by name."""

ORDERED = {
    "SmABMIL": network(Smooth, ordered=True),
    "PatchGCN, chain of slices": network(Graph, ordered=True),
}
"""Methods of torchmil for slices in order, by name."""

"""Ensemble views: features of the same scans from the members of an ensemble.

The members need not have the same slices (the public feature tables of CQ500 do not). Each member classifies
a scan from its own slices; only slices common to all members are reported.

Shapes: B scans.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from ich_mil.errors import DataError
from ich_mil.progress import say_once
from ich_mil.sets.extras import Extras
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.labels import name_some

Common = list[list[int]]


@dataclass(frozen=True)
class Views:
    """Features of the same B scans from the members of an ensemble.

    Attributes:
        members: features of each member; the widths D may differ.
        common: for each member, indices of the common slices among its slices of each scan; None if all
            members have the same slices.
    """

    members: tuple[FeatureSet, ...]
    common: tuple[Common | None, ...]

    @classmethod
    def of(cls, members: Sequence[FeatureSet], sources: Sequence[object] | None = None) -> Self:
        """Combine feature sets, with the scans in the order of the first member.

        Args:
            members: at least one feature set.
            sources: file or name of each member, for messages.

        Raises:
            DataError: a member differs from the first in scans, scan labels, slice labels or the order of
                slices; or the members have no common slice of a scan.
        """
        named = [f"member {k}" for k in range(len(members))] if sources is None else sources
        first = members[0]
        for member, source in zip(members, named, strict=True):
            if differ := sorted(set(first.scans) ^ set(member.scans)):
                raise DataError(f"{source}: its scans are not those of {named[0]}: {name_some(differ)}")
        ordered = tuple(m if m.scans == first.scans else m.select(first.scans) for m in members)
        slices = [[m.slice_names[a:b] for a, b in pairwise(m.offsets.tolist())] for m in ordered]
        common: list[Common | None] = [None] * len(ordered)
        if any(names != slices[0] for names in slices):
            shared = [set.intersection(*map(set, names)) for names in zip(*slices, strict=True)]
            if lost := [scan for scan, names in zip(first.scans, shared, strict=True) if not names]:
                raise DataError(f"{named[0]}: scans without a slice that all members have: {name_some(lost)}")
            common = [_indices(names, shared) for names in slices]
        views = cls(ordered, tuple(common))
        for number, source in enumerate(named):
            views._check(number, f"{source}", f"{named[0]}")
        return views

    def _check(self, number: int, source: str, first: str) -> None:
        shared, member = self._shared(number), self.members[number]
        for what in ("slice_names", "labels", "slice_labels"):
            a, b = getattr(self.features, what), getattr(shared, what)
            if not (torch.equal(a, b) if isinstance(a, Tensor) else a == b):
                raise DataError(
                    f"{source}: its {what.replace('_', ' ')} are not those of {first}, or in another order; "
                    "correct one of them"
                )
        if left := len(member.slice_names) - len(shared.slice_names):
            say_once(f"{source}: slices that count for their scan only, as not all members have them: {left}")

    @cached_property
    def shared(self) -> list[FeatureSet]:
        """Features of each member, restricted to the common slices."""
        return [self._shared(number) for number in range(len(self.members))]

    @cached_property
    def features(self) -> FeatureSet:
        """One feature set for tables: common slices, `x` of the first member, mean CNN outputs."""
        shared = self.shared
        if len(shared) == 1:
            return shared[0]
        outputs = ("cnn_scan", "cnn_slice", "attention")
        means: dict[str, Any] = {
            name: torch.stack([getattr(view, name) for view in shared]).mean(0) for name in outputs
        }
        return replace(shared[0], **means)

    def with_extras(self, extras: Extras) -> Self:
        """Views with further inputs beside the slices."""
        return type(self)(tuple(replace(member, extras=extras) for member in self.members), self.common)

    def select(self, scans: list[str]) -> Self:
        """Select scans by id, in the order given. `DataError` for an unknown id."""
        return type(self).of([member.select(scans) for member in self.members])

    def _shared(self, number: int) -> FeatureSet:
        """Features of a member, restricted to the common slices."""
        member, common = self.members[number], self.common[number]
        if common is None:
            return member
        starts = member.offsets[:-1].tolist()
        rows = [start + k for start, indices in zip(starts, common, strict=True) for k in indices]
        sizes = torch.tensor([0, *map(len, common)])
        return member.select_slices(torch.tensor(rows), sizes.cumsum(0))


def _indices(slices: list[list[str]], shared: list[set[str]]) -> Common:
    """Indices of the shared slices among the slices of each scan."""
    pairs = zip(slices, shared, strict=True)
    return [[k for k, name in enumerate(names) if name in both] for names, both in pairs]

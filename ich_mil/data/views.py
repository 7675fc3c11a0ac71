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

from ich_mil.data.features import FeatureSet
from ich_mil.data.labels import name_some
from ich_mil.errors import DataError
from ich_mil.progress import say_once

Places = list[list[int]]
"""For each scan: indices of the common slices among the member's slices of that scan."""


@dataclass(frozen=True)
class Views:
    """Features of the same B scans from the members of an ensemble.

    Attributes:
        members: features of each member; the widths D may differ.
        places: `Places` of each member; None if all members have the same slices.
    """

    members: tuple[FeatureSet, ...]
    places: tuple[Places | None, ...]

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
        for one, source in zip(members, named, strict=True):
            if differ := sorted(set(first.scans) ^ set(one.scans)):
                raise DataError(f"{source}: its scans are not those of {named[0]}: {name_some(differ)}")
        ordered = tuple(one if one.scans == first.scans else one.select(first.scans) for one in members)
        slices = [_slice_names(one) for one in ordered]
        if all(names == slices[0] for names in slices):
            views = cls(ordered, (None,) * len(ordered))
        else:
            common = [set.intersection(*map(set, names)) for names in zip(*slices, strict=True)]
            if lost := [scan for scan, names in zip(first.scans, common, strict=True) if not names]:
                raise DataError(f"{named[0]}: scans without a slice that all members have: {name_some(lost)}")
            views = cls(ordered, tuple(_places(names, common) for names in slices))
        for number, source in enumerate(named):
            views._check(number, f"{source}", f"{named[0]}")
        return views

    def _check(self, number: int, source: str, first: str) -> None:
        one, own = self._common(number), self.members[number]
        for what in ("slice_names", "labels", "slice_labels"):
            a, b = getattr(self.features, what), getattr(one, what)
            if not (torch.equal(a, b) if isinstance(a, Tensor) else a == b):
                raise DataError(
                    f"{source}: its {what.replace('_', ' ')} are not those of {first}, or in another order; "
                    "correct one of them"
                )
        if left := len(own.slice_names) - len(one.slice_names):
            say_once(f"{source}: slices that count for their scan only, as not all members have them: {left}")

    @cached_property
    def features(self) -> FeatureSet:
        """One feature set for tables: common slices, `x` of the first member, mean CNN outputs."""
        common = [self._common(number) for number in range(len(self.members))]
        if len(common) == 1:
            return common[0]
        outputs = ("cnn_scan", "cnn_slice", "attention")
        means: dict[str, Any] = {
            name: torch.stack([getattr(one, name) for one in common]).mean(0) for name in outputs
        }
        return replace(common[0], **means)

    def select(self, scans: list[str]) -> Self:
        """Select scans by id, in the order given. `DataError` for an unknown id."""
        return type(self).of([one.select(scans) for one in self.members])

    def _common(self, number: int) -> FeatureSet:
        """Features of a member, restricted to the common slices."""
        view, places = self.members[number], self.places[number]
        if places is None:
            return view
        starts = view.offsets[:-1].tolist()
        rows = [start + place for start, own in zip(starts, places, strict=True) for place in own]
        sizes = torch.tensor([0, *map(len, places)])
        return view.select_slices(torch.tensor(rows), sizes.cumsum(0))


def _places(of_member: list[list[str]], common: list[set[str]]) -> Places:
    """Indices of the common slices among the slices of each scan."""
    return [
        [place for place, name in enumerate(names) if name in both]
        for names, both in zip(of_member, common, strict=True)
    ]


def _slice_names(view: FeatureSet) -> list[list[str]]:
    """Slice names of each scan."""
    return [view.slice_names[start:stop] for start, stop in pairwise(view.offsets.tolist())]

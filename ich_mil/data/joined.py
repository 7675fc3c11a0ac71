"""Joined prepared sets: several prepared sets read as one.

Patients are matched across sets by the key of the PatientID and by pixels: scans that share a bit-identical
slice belong to one patient. Equal names of scans or slices in two sets are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ich_mil.data.duplicates import one_patient
from ich_mil.data.labels import name_some
from ich_mil.data.store import PreparedSet
from ich_mil.errors import DataError
from ich_mil.files import digest


@dataclass(frozen=True)
class JoinedSet(PreparedSet):
    """Prepared sets read as one; `folder` is the parent folder and `root` the root of the first set."""

    parts: tuple[PreparedSet, ...]

    @cached_property
    def table(self) -> pd.DataFrame:
        """Rows of `slices.csv` of all sets."""
        return pd.concat([part.table for part in self.parts], ignore_index=True)

    @cached_property
    def scans(self) -> pd.DataFrame:
        """As `PreparedSet.scans`; scans that share a single slice belong to one patient."""
        patients = one_patient(self.table).groupby(self.table.scan, sort=False).first()
        return pd.concat([part.scans for part in self.parts]).assign(patient=patients)

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """Lines of `ledger.csv` of all sets."""
        return pd.concat([part.ledger for part in self.parts], ignore_index=True)

    @cached_property
    def folders(self) -> dict[str, str]:
        """`PreparedSet.folders` of all sets."""
        return {scan: folder for part in self.parts for scan, folder in part.folders.items()}

    def part_of(self, scan: str) -> PreparedSet:
        """The set that contains a scan. `DataError` if there is no such scan."""
        for part in self.parts:
            if scan in part.scans.index:
                return part
        raise DataError(f"{self.folder}: has no scan {scan!r}")

    def hu(self, scan: str) -> np.ndarray:
        """`PreparedSet.hu` of the set that contains the scan."""
        return self.part_of(scan).hu(scan)


def joined(sets: Sequence[PreparedSet]) -> PreparedSet:
    """Join prepared sets; a single set is returned unchanged.

    Raises:
        DataError: a scan id or slice name occurs in two sets.
    """
    if len(sets) == 1:
        return sets[0]
    for column, what in (("scan", "scans"), ("sop", "slices")):
        first: dict[str, PreparedSet] = {}
        for part in sets:
            names = set(part.table[column])
            if both := sorted(names & first.keys()):
                raise DataError(
                    f"{first[both[0]].root} and {part.root}: {len(both)} {what} are in both sets: "
                    f"{name_some(both)}; remove them from one set, or rename them if they differ"
                )
            first |= dict.fromkeys(names, part)
    fingerprint = digest(*(part.fingerprint.encode() for part in sets))
    return JoinedSet(sets[0].folder.parent, sets[0].root, fingerprint, tuple(sets))

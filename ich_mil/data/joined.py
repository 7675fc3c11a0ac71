"""Several prepared sets as one.

In: prepared sets of different sources. Out: a `PreparedSet` with the scans of all of them. A patient is known
across sets by the key of his PatientID and by the pixels of his slices: scans that share a slice to the bit
are of one patient (`ich_mil.data.twins`). A scan or a slice of one name in two sets is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ich_mil.data.labels import name_some
from ich_mil.data.store import PreparedSet
from ich_mil.data.twins import one_patient
from ich_mil.errors import DataError
from ich_mil.files import digest


@dataclass(frozen=True)
class JoinedSet(PreparedSet):
    """Prepared sets read as one; `folder` and `root` hold theirs.

    Attributes:
        parts: the sets, in the order of their scans.
    """

    parts: tuple[PreparedSet, ...]

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows of `slices.csv` of all sets."""
        return pd.concat([part.table for part in self.parts], ignore_index=True)

    @cached_property
    def scans(self) -> pd.DataFrame:
        """One row a scan, index `scan`: patient, label, slices, content.

        Scans that share a slice are of one patient, whatever their files say.
        """
        patients = one_patient(self.table).groupby(self.table.scan, sort=False).first()
        return pd.concat([part.scans for part in self.parts]).assign(patient=patients)

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """The lines of `ledger.csv` of all sets."""
        return pd.concat([part.ledger for part in self.parts], ignore_index=True)

    def part_of(self, scan: str) -> PreparedSet:
        """The set that a scan is of. `DataError` if there is no such scan."""
        for part in self.parts:
            if scan in part.scans.index:
                return part
        raise DataError(f"{self.folder}: has no scan {scan!r}")

    def hu(self, scan: str) -> np.ndarray:
        """The pixels of one scan, as `PreparedSet.hu` of the set that has it."""
        return self.part_of(scan).hu(scan)


def joined(sets: Sequence[PreparedSet]) -> PreparedSet:
    """Prepared sets as one; a single set as it is.

    Raises:
        DataError: two sets have a scan, or a slice, of one name.
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
                    f"{name_some(both)}; take them out of one, or give them another name if they are others"
                )
            first |= dict.fromkeys(names, part)
    fingerprint = digest(*(part.fingerprint.encode() for part in sets))
    return JoinedSet(sets[0].folder.parent, sets[0].root, fingerprint, tuple(sets))

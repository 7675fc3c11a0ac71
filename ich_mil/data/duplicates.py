"""Detect duplicate scans by a digest of their slices, and merge their patients.

In: scans with the digests of their slices. Out: a digest per scan, and one patient for scans with equal
digests. CQ500 contains such a pair; a study that was sent or pseudonymised twice is another case. All slices
must be bit-identical, in any order: a scan with an additional slice or another averaging is not a duplicate.
In a feature table, scans of one slice are not compared, because two patients may have equal features by
chance.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ich_mil.files import digest

AND = " = "
"""Separator between the keys of a patient who has several."""


def content_of(slices: Iterable[str], *, least: int = 2) -> str:
    """Digest of the content of a scan, independent of the order of its slices.

    Args:
        slices: digests of the slices.
        least: smallest number of different slices for a digest. 1 is safe for pixels, which are never equal
            by chance.

    Returns:
        The digest; '' for a scan with fewer different slices.
    """
    distinct = sorted(set(slices))
    return digest(*(one.encode() for one in distinct)) if len(distinct) >= least else ""


def one_patient(scans: pd.DataFrame) -> pd.Series:
    """Merge the patients of scans with equal content, whatever their files say.

    Args:
        scans: columns `patient` and `content` (`content_of`).

    Returns:
        The patient of each scan. Patients that are connected by equal content get one name: all of their keys
        joined by `AND` (`names_of` splits it).
    """
    patient, patients = pd.factorize(scans.patient)
    content, contents = pd.factorize(scans.content.mask(scans.content == ""))  # -1: no digest
    known = content >= 0
    nodes = len(patients) + len(contents)
    edges = (np.ones(known.sum()), (patient[known], len(patients) + content[known]))
    _, group = connected_components(coo_array(edges, shape=(nodes, nodes)), directed=False)
    joined = pd.Series(patients).groupby(group[: len(patients)]).agg(AND.join)  # one row per group
    return pd.Series(joined.to_numpy()[group[patient]], index=scans.index)


def names_of(patient: str) -> list[str]:
    """Split a patient into its keys: several if duplicate scans have different PatientIDs."""
    return patient.split(AND)

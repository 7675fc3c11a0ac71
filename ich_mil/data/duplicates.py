"""Detect duplicate scans by a digest of their slices, and merge their patients.

CQ500 contains one scan under two names; a study that was sent or pseudonymised twice is another case. All
slices must be bit-identical, in any order. In a feature table, scans of one slice are not compared: two
patients may have equal features by chance.
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
    """Digest of the slice digests of a scan, in any order.

    Args:
        slices: digests of the slices.
        least: smallest number of different slices; '' is returned for fewer. 1 is safe for pixels.
    """
    distinct = sorted(set(slices))
    return digest(*(one.encode() for one in distinct)) if len(distinct) >= least else ""


def one_patient(scans: pd.DataFrame) -> pd.Series:
    """Patient of each scan, with patients who share a `content` merged under all of their keys.

    Args:
        scans: columns `patient` and `content` (`content_of`).
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
    """Keys of a patient; several where duplicate scans have different PatientIDs."""
    return patient.split(AND)

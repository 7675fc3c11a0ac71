"""Scans that are one under two names: they are known by their slices.

In: scans with the digests of their slices. Out: what tells two of the same slices, and their one patient.
CQ500 has such a pair; a study that was sent, or given a pseudonym, twice is one too. All slices must be the
same to the bit, in whatever order: a scan with one slice more, or averaged otherwise, is another. In a table
of features a scan of one slice is not known so: its row may be that of another patient by chance.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ich_mil.files import digest

AND = " = "
"""Between the names of a patient who has several."""


def content_of(slices: Iterable[str], *, least: int = 2) -> str:
    """A digest of all that a scan shows, of the digests of its slices in whatever order they come.

    Args:
        slices: their digests.
        least: different slices that make a scan known; 1 for pictures, of which no two are alike by chance.

    Returns:
        '' for a scan of fewer different slices.
    """
    distinct = sorted(set(slices))
    return digest(*(one.encode() for one in distinct)) if len(distinct) >= least else ""


def one_patient(scans: pd.DataFrame) -> pd.Series:
    """The patient of each scan, where scans of the same slices are of one patient, whatever their files say.

    Args:
        scans: columns `patient` and `content` (`content_of`).

    Returns:
        The names of all patients that such scans join, for each scan of theirs (`names_of` parts them).
    """
    patient, patients = pd.factorize(scans.patient)
    content, contents = pd.factorize(scans.content.mask(scans.content == ""))  # -1: not known by its slices
    known = content >= 0
    nodes = len(patients) + len(contents)
    edges = (np.ones(known.sum()), (patient[known], len(patients) + content[known]))
    _, group = connected_components(coo_array(edges, shape=(nodes, nodes)), directed=False)
    joined = pd.Series(patients).groupby(group[: len(patients)]).agg(AND.join)  # a row for every group
    return pd.Series(joined.to_numpy()[group[patient]], index=scans.index)


def names_of(patient: str) -> list[str]:
    """The names of a patient, one for each that his files, or those of a scan's twin, have."""
    return patient.split(AND)

"""Scans that are one under two names: they are known by their slices.

In: scans with the digests of their slices. Out: what tells two of the same slices, and their one patient.
CQ500 has such a pair; a study that was sent, or given a pseudonym, twice is one too.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ich_mil.files import digest


def content_of(slices: Iterable[str]) -> str:
    """A digest of all that a scan shows, of the digests of its slices in whatever order they come.

    A scan whose slices are all alike, such as black ones, is not known by them: ''.
    """
    distinct = sorted(set(slices))
    return digest(*(one.encode() for one in distinct)) if len(distinct) > 1 else ""


def one_patient(scans: pd.DataFrame) -> pd.Series:
    """The patient of each scan, where scans of the same slices are of one patient, whatever their files say.

    Args:
        scans: columns `patient` and `content` (`content_of`).

    Returns:
        One key for all patients that such scans join: the first of them.
    """
    patient, patients = pd.factorize(scans.patient)
    content, contents = pd.factorize(scans.content.mask(scans.content == ""))  # -1: not known by its slices
    known = content >= 0
    nodes = len(patients) + len(contents)
    edges = (np.ones(known.sum()), (patient[known], len(patients) + content[known]))
    _, group = connected_components(coo_array(edges, shape=(nodes, nodes)), directed=False)
    first = pd.Series(patients).groupby(group[: len(patients)]).transform("first")
    return pd.Series(first.to_numpy()[patient], index=scans.index)

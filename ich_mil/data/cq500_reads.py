"""What the three readers of CQ500 saw in each scan (Chilamkurthy et al. 2018, 10.1016/S0140-6736(18)31645-3).

In: `reads.csv`, one row a scan, columns `name` and `R<1..3>:<finding>` in {0, 1}. Out: for each finding the
number of readers who saw it, or what the majority says. Two of the three are a majority.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ich_mil.data.labels import binary, read_label_csv

READERS = ("R1", "R2", "R3")
MAJORITY = 2
FINDINGS = ("ICH", "IPH", "IVH", "SDH", "EDH", "SAH")
"""Any hemorrhage, then its kinds: intraparenchymal, intraventricular, subdural, epidural, subarachnoid."""


def read_votes(path: Path, findings: Sequence[str]) -> pd.DataFrame:
    """How many of the three readers saw each finding.

    Args:
        path: the `reads.csv`.
        findings: names as in its columns, such as 'ICH'.

    Returns:
        Index `name` (the scan), one integer column in 0...3 a finding.

    Raises:
        DataError: no such file, a column is missing, a scan is listed twice, or a read is not 0 or 1.
    """
    columns = {finding: [f"{reader}:{finding}" for reader in READERS] for finding in findings}
    wanted = ["name", *(column for names in columns.values() for column in names)]
    table = read_label_csv(path, wanted, key="name")
    votes = {
        finding: pd.concat([binary(table[column], path) for column in names], axis=1).sum(axis=1)
        for finding, names in columns.items()
    }
    return pd.DataFrame(votes).set_index(pd.Index(table["name"], name="name"))


def read_cq500_findings(path: Path) -> pd.DataFrame:
    """What the majority saw, and whether the three agreed on a hemorrhage.

    Args:
        path: the `reads.csv`.

    Returns:
        Index `scan` such as 'CQ500-CT-0', in the file's order; boolean columns `FINDINGS` and `readers_agree`
        (all three or none saw a hemorrhage). Kinds may be seen together, and a hemorrhage may have no kind
        that two readers agree on.

    Raises:
        DataError: as `read_votes`.
    """
    votes = read_votes(path, FINDINGS)
    findings = (votes >= MAJORITY).assign(readers_agree=votes["ICH"].isin([0, len(READERS)]))
    return findings.rename_axis(index="scan")

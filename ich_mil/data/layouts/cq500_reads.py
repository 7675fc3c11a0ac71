"""Reader findings of CQ500: votes and majority (Chilamkurthy et al. 2018, 10.1016/S0140-6736(18)31645-3).

In: `reads.csv`, one row per scan, columns `name` and `R<1..3>:<finding>` in {0, 1}. Out: for each finding the
number of readers who saw it, or the majority vote (at least two of three).
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ich_mil.data.labels import binary, read_label_csv

READERS = ("R1", "R2", "R3")
MAJORITY = 2
FINDINGS = ("ICH", "IPH", "IVH", "SDH", "EDH", "SAH")
"""Any hemorrhage, then its types: intraparenchymal, intraventricular, subdural, epidural, subarachnoid."""


def read_votes(path: Path, findings: Sequence[str]) -> pd.DataFrame:
    """Count the readers who saw each finding.

    Args:
        path: the `reads.csv`.
        findings: finding names as in its columns, such as 'ICH'.

    Returns:
        A table with index `name` (the scan) and one integer column per finding, with values 0 to 3.

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
    """Majority vote on each finding, and agreement of the three readers on any hemorrhage.

    Args:
        path: the `reads.csv`.

    Returns:
        A table with index `scan`, such as 'CQ500-CT-0', in the order of the file; boolean columns `FINDINGS`
        and `readers_agree` (all three readers or none saw a hemorrhage). A scan may have several types of
        hemorrhage, or a hemorrhage without a type that two readers agree on.

    Raises:
        DataError: as `read_votes`.
    """
    votes = read_votes(path, FINDINGS)
    findings = (votes >= MAJORITY).assign(readers_agree=votes["ICH"].isin([0, len(READERS)]))
    return findings.rename_axis(index="scan")

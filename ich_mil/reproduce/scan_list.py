"""A published list of scans as a split without leaks.

In: a CSV with columns `scan,split`, as papers publish it, and the scans there are with their patients. Out: a
split in which no scan and no patient sits twice, and one line for each scan that was left out, with the
reason. A leak is removed on the side that is learned from, so that the scans to be scored stay those of the
paper (in the literature's 1,150 RSNA scans one is in train and in test).
"""

from pathlib import Path

import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.data.splits import COLUMNS, check_splits, draw_splits, read_scan_list

LEFT_OUT = ["scan", "split", "reason"]


def clean_list(
    path: Path, scans: pd.DataFrame, *, validation: float, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A split from a list of scans.

    Args:
        path: CSV with columns scan,split; split is train, validation or test.
        scans: index scan id; columns `patient`, `label`, `content`, of the scans there are.
        validation: share of the training patients that becomes validation where the list names none.
        seed: of that draw.

    Returns:
        The `COLUMNS` of a split; and what was left out: scan, split, reason.

    Raises:
        DataError: not such a list, an unknown split, or too few scans are left.
    """
    table = read_scan_list(path)
    left_out: list[pd.DataFrame] = []

    def leave_out(table: pd.DataFrame, away: pd.Series, reason: str) -> pd.DataFrame:
        left_out.append(table[away][["scan", "split"]].assign(reason=reason))
        return table[~away]

    table = leave_out(table, ~table.scan.isin(scans.index), "is not among the prepared scans")
    table = table.join(scans[["patient", "label", "content"]], on="scan")
    table = leave_out(table, table.label == UNKNOWN, "has no label")
    # in the order of what is worth most: a test scan stays a test scan
    for split, worth_more in (("validation", "test"), ("train", "test"), ("train", "validation")):
        kept = table[table.split == worth_more]
        again = (table.split == split) & table.scan.isin(kept.scan)
        table = leave_out(table, again, f"is a {worth_more} scan too")
        kin = (table.split == split) & table.patient.isin(kept.patient)
        table = leave_out(table, kin, f"its patient has a {worth_more} scan")
    if not (table.split == "validation").any() and validation:
        learn = table[table.split == "train"].set_index("scan")[["patient", "label", "content"]]
        drawn = draw_splits(learn, validation=validation, test=0.0, seed=seed)
        table = pd.concat([drawn, table[table.split != "train"]])
    table = table[COLUMNS].reset_index(drop=True)
    check_splits(table, str(path))
    return table, pd.concat(left_out, ignore_index=True)[LEFT_OUT]

"""Convert a published list of scans to a split without leaks between its parts.

A leak is removed from the training side, so that the test scans remain those of the paper (in the list of
1,150 RSNA scans of the literature one scan is in train and in test).
"""

from pathlib import Path

import pandas as pd

from ich_mil.data.labels import UNKNOWN
from ich_mil.data.splits import COLUMNS, check_splits, draw_splits, read_scan_list

LEFT_OUT = ["scan", "split", "reason"]


def clean_list(
    path: Path, scans: pd.DataFrame, *, validation: float, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read a list of scans and remove leaks; `DataError` if invalid, or if too few scans remain.

    Args:
        path: CSV with columns scan,split; split is train, validation or test.
        scans: prepared scans: index scan id, columns `patient`, `label`, `content`.
        validation: fraction of the training patients used for validation if the list has no validation scans.
        seed: seed of that draw.

    Returns:
        The split, with columns `COLUMNS`; and the scans left out, with columns `LEFT_OUT`.
    """
    table = read_scan_list(path)
    left_out: list[pd.DataFrame] = []

    def leave_out(table: pd.DataFrame, away: pd.Series, reason: str) -> pd.DataFrame:
        left_out.append(table[away][["scan", "split"]].assign(reason=reason))
        return table[~away]

    table = leave_out(table, ~table.scan.isin(scans.index), "is not among the prepared scans")
    table = table.join(scans[["patient", "label", "content"]], on="scan")
    table = leave_out(table, table.label == UNKNOWN, "has no label")
    # test scans have priority over validation scans, and these over training scans
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

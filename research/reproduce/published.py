"""Published figures, and a comparison of our results with those that were measured in the same way.

`published.csv` has one row for each number, with the digits as printed: Tables 2 to 9 of Castro-Macías et al.
2024 (AIJ), and results of their public code, run again on public features. Each row states whether our
results can be compared with it, and if not, why.
"""

from pathlib import Path

import numpy as np
import pandas as pd

COLUMNS = ["table", "dataset", "protocol", "features", "n_inducing", "model", "level", "metric"]
COLUMNS += ["mean", "std", "source", "comparable", "why"]
_KEYS = ["dataset", "protocol", "features", "n_inducing", "model", "level", "metric"]

PROTOCOLS = {
    "five-splits": "five stratified train-test splits of the bags",
    "training-bags": "five stratified splits, measured on the bags that were trained on",
    "rsna-1150": "five train-test splits of 1,150 RSNA scans, measured on their test scans",
    "rsna-1150-cq500": "the models of rsna-1150, measured on 490 CQ500 scans",
    "rsna-150-cq500-five-runs": "heads on public features of 150 RSNA scans (kernel fixed, scan = largest "
    "slice, not calibrated), measured on 490 CQ500 scans, mean of five CNN runs",
    "own-data": "data and split of its own",
    "own-data-cq500": "trained on other data, measured on CQ500",
}
"""Description of each protocol named in `published.csv`."""

_LEVELS = {"scan": "bag", "slice": "instance"}
_STAND_INS = {"digits": ("MNIST", "ours are scikit-learn's 1,797 digits of 8 × 8 pixels, not MNIST's 70,000")}
"""Our substitutes for published sets: name of the published set, and why figures are not comparable."""


def published() -> pd.DataFrame:
    """Read the published figures, with the columns `COLUMNS`.

    `mean` and `std` are numbers, `std` NaN if not published; `comparable` is bool; the other columns are
    text, empty if they do not apply. `level` is 'bag' or 'instance', `why` the reason if a row is not
    comparable.
    """
    table = pd.read_csv(
        Path(__file__).parents[1] / "protocols" / "published.csv", dtype=str, keep_default_na=False
    )
    table["mean"] = table["mean"].astype(np.float64)
    table["std"] = pd.to_numeric(table["std"]).astype(np.float64)
    table["comparable"] = table["comparable"] == "yes"
    return table


def beside(ours: pd.DataFrame) -> pd.DataFrame:
    """Add the published figure to each of our results that was measured in the same way.

    `ours` has the columns `_KEYS`; `n_inducing` may be empty, `level` is 'bag' and 'instance', or 'scan' and
    'slice'.

    Returns:
        `ours` with `published` and `published_std` (NaN if not comparable), `source`, and `note`: empty if
        there is a comparable figure, else 'not comparable' with the figures in question and the reason.
    """
    table = published()
    found = [_find({key: _text(row[key]) for key in _KEYS}, table) for row in ours.to_dict("records")]
    columns = ["published", "published_std", "source", "note"]
    return ours.join(pd.DataFrame(found, columns=columns, index=ours.index))


def _text(value: object) -> str:
    """Format a cell as in `published.csv`: 8 and 8.0 as '8', missing values as ''."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _find(row: dict[str, str], table: pd.DataFrame) -> tuple[float, float, str, str]:
    """Published figure, its spread, source and note for one of our rows."""
    dataset, stand_in = _STAND_INS.get(row["dataset"], (row["dataset"], ""))
    level = _LEVELS.get(row["level"], row["level"])
    rows = table[
        (table.dataset == dataset)
        & (table.model == row["model"])
        & (table.level == level)
        & (table.metric == row["metric"])
    ]
    if not len(rows):
        return _none(rows, f"nothing is published of {row['model']}, {level} {row['metric']}, on {dataset}")
    for key, what in (("features", "features"), ("n_inducing", "inducing points")):
        same = rows[rows[key] == row[key]]
        if not len(same):
            theirs = ", ".join(value or "not stated" for value in dict.fromkeys(rows[key]))
            return _none(rows[:0], f"ours has {row[key] or 'no'} {what}, published: {theirs}")
        rows = same
    if stand_in:
        return _none(rows, stand_in)
    same = rows[rows.protocol == row["protocol"]]
    if not len(same):
        reasons = [
            why or f"it is of another protocol: {PROTOCOLS[protocol]}"
            for why, protocol in zip(rows.why, rows.protocol, strict=True)
        ]
        return _none(rows, "; ".join(dict.fromkeys(reasons)))
    one = same.iloc[0]
    if not one.comparable:
        return _none(same, one.why)
    return float(one["mean"]), float(one["std"]), str(one.source), ""


def _none(rows: pd.DataFrame, reason: str) -> tuple[float, float, str, str]:
    """Result of `_find` without a figure; `rows` are the figures that are not comparable."""
    figures = ", ".join(
        f"{mean:g}" + ("" if np.isnan(std) else f" ± {std:g}")
        for mean, std in zip(rows["mean"], rows["std"], strict=True)
    )
    source = "; ".join(dict.fromkeys(rows.source))
    return np.nan, np.nan, source, f"not comparable{f' ({figures})' if figures else ''}: {reason}"

"""Figures of the literature as data, and ours beside those that were measured in the same way.

In: `published.csv` beside this file, one row a number, digits as printed. Out: its rows, or a table of ours
with a published figure where set, protocol, features, inducing points, model and metric are the same, and
with the reason where they are not.

The numbers are those of Castro-Macías et al. 2024 (AIJ), Tables 2 to 9, and what their public code gave when
it was run again on public features. Each row says whether we could measure the same, and why not.
"""

from importlib.resources import files

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
"""Name of each protocol in `published.csv`, and what it stands for."""

_LEVELS = {"scan": "bag", "slice": "instance"}
_STAND_INS = {"digits": ("MNIST", "ours are scikit-learn's 1,797 digits of 8 × 8 pixels, not MNIST's 70,000")}
"""Sets of ours that stand in for a published one: that set, and why the figures cannot be compared."""


def published() -> pd.DataFrame:
    """The published figures.

    Returns:
        The columns `COLUMNS`. `mean` and `std` are numbers, `std` NaN where none is given; `comparable` is
        bool; the rest is text, empty where it does not apply. `level` is 'bag' or 'instance', `features` the
        number of features or what they are, `why` the reason where a row is not comparable.
    """
    path = files("ich_mil.reproduce").joinpath("published.csv")
    with path.open(encoding="utf-8") as file:
        table = pd.read_csv(file, dtype=str, keep_default_na=False)
    table["mean"] = table["mean"].astype(np.float64)
    table["std"] = pd.to_numeric(table["std"]).astype(np.float64)
    table["comparable"] = table["comparable"] == "yes"
    return table


def beside(ours: pd.DataFrame) -> pd.DataFrame:
    """Our numbers with the published one beside each where it was measured in the same way.

    Args:
        ours: columns `dataset`, `protocol`, `features`, `n_inducing` (NaN or empty where it does not apply),
            `model`, `level` ('bag' and 'instance', or 'scan' and 'slice') and `metric`, and whatever else.

    Returns:
        `ours` with `published` and `published_std` (NaN where not comparable), `source`, and `note`: empty
        where a figure stands beside, else 'not comparable', the figures meant, and the reason.

    Raises:
        ValueError: a column is missing.
    """
    if missing := [key for key in _KEYS if key not in ours]:
        raise ValueError(f"columns {', '.join(missing)} are missing")
    table = published()
    found = [_find({key: _text(row[key]) for key in _KEYS}, table) for row in ours.to_dict("records")]
    columns = ["published", "published_std", "source", "note"]
    return ours.join(pd.DataFrame(found, columns=columns, index=ours.index))


def _text(value: object) -> str:
    """A cell as `published.csv` writes it: 8 and 8.0 are '8', nothing is ''."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _find(row: dict[str, str], table: pd.DataFrame) -> tuple[float, float, str, str]:
    """Figure, spread, source and note for one row of ours."""
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
    """No figure, for a reason; `rows` are the figures a reader would look for."""
    figures = ", ".join(
        f"{mean:g}" + ("" if np.isnan(std) else f" ± {std:g}")
        for mean, std in zip(rows["mean"], rows["std"], strict=True)
    )
    source = "; ".join(dict.fromkeys(rows.source))
    return np.nan, np.nan, source, f"not comparable{f' ({figures})' if figures else ''}: {reason}"

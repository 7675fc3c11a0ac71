"""Published figures: counts, printed values, agreement between tables, and what may stand beside ours."""

import numpy as np
import pandas as pd
import pytest

from research.reproduce.published import COLUMNS, PROTOCOLS, beside, published

MODELS = {"G-VGPMIL", "VGPMIL"}


def figures(**where):
    """The rows with these values."""
    table = published()
    return table[(table[list(where)] == pd.Series(where)).all(axis=1)]


@pytest.mark.parametrize(
    ("table", "widths", "levels"),
    [
        ("Table 4", {"PCA"}, {"bag", "instance"}),
        ("Table 5", {"RAW"}, {"bag", "instance"}),
        ("Table 6", {"166"}, {"bag"}),
        ("Table 7", {"166"}, {"bag"}),
        ("Table 8", {"8", "32", "128"}, {"bag", "instance"}),
        ("Table 9", {"8", "32", "128"}, {"bag"}),
    ],
)
def test_each_table_is_complete(table, widths, levels):
    rows = figures(table=table)
    cells = rows[["features", "n_inducing", "model", "level", "metric"]]
    grid = pd.MultiIndex.from_product(
        [widths, {"50", "100", "200"}, MODELS, levels, {"auc", "accuracy", "f1"}]
    )
    assert set(cells.itertuples(index=False, name=None)) == set(grid)
    assert len(cells) == len(grid)


@pytest.mark.parametrize(
    ("table", "features", "m", "model", "level", "metric", "mean", "std"),
    [  # read from the paper by eye: first and last cells, and cells in the middle
        ("Table 4", "PCA", "50", "G-VGPMIL", "instance", "accuracy", 0.9342, 0.004),
        ("Table 5", "RAW", "50", "VGPMIL", "bag", "f1", 0.6311, 0.0301),
        ("Table 6", "166", "100", "G-VGPMIL", "bag", "auc", 0.9711, 0.016),
        ("Table 7", "166", "200", "G-VGPMIL", "bag", "auc", 0.9605, 0.01),
        ("Table 8", "32", "100", "G-VGPMIL", "bag", "accuracy", 0.86, 0.0276),
        ("Table 9", "128", "200", "VGPMIL", "bag", "auc", 0.9039, 0.018),
    ],
)
def test_printed_values(table, features, m, model, level, metric, mean, std):
    rows = figures(table=table, features=features, n_inducing=m, model=model, level=level, metric=metric)
    assert rows[["mean", "std"]].to_numpy().tolist() == [[mean, std]]


def test_the_paper_agrees_with_itself_but_for_one_figure():
    def best(table):
        rows = figures(table=table, model="G-VGPMIL", level="bag", metric="auc")
        return rows.loc[rows["mean"].idxmax(), ["mean", "std"]].tolist()

    assert best("Table 9") == best("Table 3") == [0.923, 0.0066]
    assert (best("Table 8"), best("Table 2")) == ([0.9652, 0.0065], [0.966, 0.0065])  # told in that row


def test_every_row_is_whole():
    table = published()
    assert list(table) == COLUMNS
    assert not table.duplicated(
        ["dataset", "protocol", "features", "n_inducing", "model", "level", "metric"]
    ).any()
    assert set(table.protocol) == set(PROTOCOLS)
    assert (table.loc[~table.comparable, "why"] != "").all()
    assert set(table.table[table.comparable]) == {"re-measured"}
    assert (table.source != "").all()
    share = table[table.metric != "log_loss"]
    assert share["mean"].between(0.3, 1).all()
    assert (table["std"].isna() | table["std"].between(0, 0.2)).all()


def ours(**changes):
    row = {
        "dataset": "CQ500",
        "protocol": "rsna-150-cq500-five-runs",
        "features": 8,
        "n_inducing": 100.0,
        "model": "VGPMIL",
        "level": "scan",
        "metric": "auc",
        "value": 0.9,
    }
    return pd.DataFrame([row | changes], index=[7])


@pytest.mark.parametrize("m", [100, 100.0, "100"])
def test_the_same_protocol_stands_beside(m):
    found = beside(ours(n_inducing=m))
    assert found.loc[7, ["value", "published", "published_std", "note"]].tolist() == [0.9, 0.911, 0.016, ""]
    assert "public JAX code" in found.source[7]
    cnn = beside(ours(n_inducing=None, model="AttCNN", metric="accuracy"))
    assert cnn.published[7] == 0.654
    assert np.isnan(cnn.published_std[7])
    assert cnn.note[7] == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "rsna-1150-cq500", "model": "G-VGPMIL"}, "(0.923 ± 0.0066): five train-test splits"),
        ({"protocol": "rsna-150-cq500"}, "mean of five CNN runs"),
        ({"protocol": "rsna-150-cq500"}, "not comparable (0.9215 ± 0.0062, 0.911 ± 0.016)"),
        ({"features": 16}, "ours has 16 features, published: 8, 32, 128, not stated"),
        ({"n_inducing": 64}, "ours has 64 inducing points, published: 50, 100, 200"),
        ({"n_inducing": np.nan}, "ours has no inducing points, published: 50, 100, 200"),
        ({"metric": "brier"}, "nothing is published of VGPMIL, bag brier, on CQ500"),
        ({"dataset": "CT-ICH"}, "nothing is published of VGPMIL, bag auc, on CT-ICH"),
        (
            {"dataset": "MUSK1", "features": 166, "protocol": "held-out"},
            "(0.9682 ± 0.0137): measured on training",
        ),
        ({"dataset": "MUSK2", "features": 166, "protocol": "training-bags"}, "(0.923 ± 0.0303): measured on"),
        (
            {"dataset": "digits", "features": "PCA", "level": "slice", "protocol": "five-splits"},
            "(0.95 ± 0.0032)",
        ),
        ({"dataset": "MNIST", "features": "RAW", "protocol": "five-splits"}, "(0.8408 ± 0.0079)"),
    ],
)
def test_what_is_not_comparable_says_why(changes, message):
    found = beside(ours(**changes))
    assert np.isnan(found.published[7])
    assert np.isnan(found.published_std[7])
    assert found.note[7].startswith("not comparable")
    assert message in found.note[7]

"""Published figures: counts, printed values, agreement between tables, and what may stand beside ours."""

import numpy as np
import pandas as pd
import pytest

from research.reproduce.published import COLUMNS, PROTOCOLS, beside, published


def figures(**where):
    """The rows with these values."""
    table = published()
    return table[(table[list(where)] == pd.Series(where)).all(axis=1)]


@pytest.mark.parametrize(
    ("table", "features", "m", "model", "level", "metric", "mean", "std"),
    [  # read from the paper by eye: first and last cells, and cells in the middle
        ("Table 4", "PCA", "50", "G-VGPMIL", "instance", "accuracy", 0.9342, 0.004),
        ("Table 6", "166", "100", "G-VGPMIL", "bag", "auc", 0.9711, 0.016),
        ("Table 8", "32", "100", "G-VGPMIL", "bag", "accuracy", 0.86, 0.0276),
        ("Table 9", "128", "200", "VGPMIL", "bag", "auc", 0.9039, 0.018),
    ],
)
def test_printed_values(table, features, m, model, level, metric, mean, std):
    rows = figures(table=table, features=features, n_inducing=m, model=model, level=level, metric=metric)
    assert rows[["mean", "std"]].to_numpy().tolist() == [[mean, std]]


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
        ({"protocol": "rsna-150-cq500"}, "not comparable (0.9215 ± 0.0062, 0.911 ± 0.016)"),
        ({"features": 16}, "ours has 16 features, published: 8, 32, 128, not stated"),
        ({"n_inducing": np.nan}, "ours has no inducing points, published: 50, 100, 200"),
        ({"dataset": "CT-ICH"}, "nothing is published of VGPMIL, bag auc, on CT-ICH"),
        (
            {"dataset": "MUSK1", "features": 166, "protocol": "held-out"},
            "(0.9682 ± 0.0137): measured on training",
        ),
    ],
)
def test_what_is_not_comparable_says_why(changes, message):
    found = beside(ours(**changes))
    assert np.isnan(found.published[7])
    assert np.isnan(found.published_std[7])
    assert found.note[7].startswith("not comparable")
    assert message in found.note[7]

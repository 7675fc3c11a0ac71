"""A published list of scans: what leaks is left out of training, and told."""

import pandas as pd
import pytest

from ich_mil.sets.labels import UNKNOWN
from research.reproduce.tasks import clean_list


@pytest.fixture
def scans():
    """Twenty scans of sixteen patients; s18 and s19 belong to the patient of s0, s17 to that of s1."""
    names = [f"s{i}" for i in range(20)]
    patients = [f"p{i}" for i in range(17)] + ["p1", "p0", "p0"]
    labels = [i % 2 for i in range(20)]
    return pd.DataFrame({"patient": patients, "label": labels, "content": names}, index=names)


def written(path, rows):
    path.write_text("scan,split\n" + "".join(f"{scan},{split}\n" for scan, split in rows))
    return path


def listed(n_train, *more):
    return [(f"s{i}", "train" if i < n_train else "test") for i in range(17)] + list(more)


def test_a_repeated_scan_stays_in_test(tmp_path, scans):
    path = written(tmp_path / "list.csv", listed(12, ("s14", "train")))
    table, left_out = clean_list(path, scans, validation=0.0, seed=0)
    assert dict(zip(table.scan, table.split, strict=True))["s14"] == "test"
    assert table.scan.is_unique
    assert left_out.to_dict("records") == [{"scan": "s14", "split": "train", "reason": "is a test scan too"}]


def test_a_shared_patient_stays_in_test(tmp_path, scans):
    path = written(tmp_path / "list.csv", listed(12, ("s17", "test"), ("s18", "train")))
    table, left_out = clean_list(path, scans, validation=0.0, seed=0)
    of_patient = table[table.patient == "p1"]
    assert of_patient[["scan", "split"]].values.tolist() == [["s17", "test"]]
    assert left_out.values.tolist() == [["s1", "train", "its patient has a test scan"]]
    assert set(table[table.patient == "p0"].scan) == {"s0", "s18"}  # both in train: nothing leaks


def test_validation_leaks_are_left_out_of_train(tmp_path, scans):
    rows = [(f"s{i}", "train" if i < 12 else "validation") for i in range(17)]
    path = written(tmp_path / "list.csv", [*rows, ("s14", "train"), ("s17", "validation")])
    table, left_out = clean_list(path, scans, validation=0.3, seed=0)
    held = {f"s{i}" for i in range(12, 18)}
    assert set(table[table.split == "validation"].scan) == held
    assert sorted(left_out.values.tolist()) == [
        ["s1", "train", "its patient has a validation scan"],
        ["s14", "train", "is a validation scan too"],
    ]


def test_absent_and_unlabelled_scans_are_listed(tmp_path, scans):
    scans.loc["s3", "label"] = UNKNOWN
    path = written(tmp_path / "list.csv", listed(12, ("elsewhere", "train")))
    table, left_out = clean_list(path, scans, validation=0.0, seed=0)
    assert "s3" not in set(table.scan)
    assert left_out.reason.tolist() == ["is not among the prepared scans", "has no label"]


def test_validation_is_drawn_from_train_by_patient(tmp_path, scans):
    path = written(tmp_path / "list.csv", listed(12, ("s18", "train"), ("s19", "train")))
    table, _ = clean_list(path, scans, validation=0.3, seed=1)
    assert set(table[table.split == "test"].scan) == {f"s{i}" for i in range(12, 17)}
    assert table.groupby("patient").split.nunique().max() == 1
    held = table[table.split == "validation"]
    assert set(held.label) == {0, 1}
    assert len(table) == 19

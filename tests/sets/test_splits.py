"""Splits: by patient, stratified, and refused where a patient would sit in two."""

import shutil

import pandas as pd
import pytest

from ich_mil.errors import DataError
from ich_mil.ledger import Code
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.splits import (
    check_current,
    check_twins,
    check_unseen,
    content_of,
    draw_splits,
    keys_of,
    learned_from,
    load_splits,
    one_patient,
    read_splits,
    write_splits,
)
from tests import phantoms


@pytest.fixture
def scans():
    """60 scans of 40 patients: patients p0 to p19 have two scans."""
    patients = [f"p{i}" for i in range(40)] + [f"p{i}" for i in range(20)]
    labels = [i % 3 == 0 for i in range(40)] + [False] * 20
    contents = [f"c{i}" for i in range(59)] + [""]
    table = pd.DataFrame({"patient": patients, "label": labels, "content": contents})
    return table.astype({"label": int}).set_axis([f"s{i}" for i in range(60)])


def test_shares_of_patients(scans):
    table = draw_splits(scans, validation=0.2, test=0.25, seed=0)
    assert table.equals(draw_splits(scans, validation=0.2, test=0.25, seed=0))
    assert not table.equals(draw_splits(scans, validation=0.2, test=0.25, seed=2))
    assert list(table.scan) == list(scans.index)
    by_patient = table.groupby("patient").split.agg(["nunique", "first"])
    assert (by_patient["nunique"] == 1).all()
    # 14 of 40 patients are positive: 0.2 and 0.25 of each label, rounded (2.8 and 3.5; 5.2 and 6.5)
    assert by_patient["first"].value_counts().to_dict() == {"train": 22, "test": 10, "validation": 8}
    positive = table.assign(p=table.patient.map(table.groupby("patient").label.max())).drop_duplicates(
        "patient"
    )
    of_positive = positive[positive.p == 1].split.value_counts().to_dict()
    assert of_positive == {"train": 7, "test": 4, "validation": 3}


def test_too_few_of_a_label_or_unlabelled(scans):
    with pytest.raises(DataError, match="1 patients with label 1 are too few"):
        draw_splits(scans.loc[["s0", "s1", "s2", "s4"]], validation=0.2, test=0.0, seed=0)
    scans.loc["s5", "label"] = -1
    with pytest.raises(DataError, match="1 scans to train on have no label: s5"):
        draw_splits(scans, validation=0.2, test=0.0, seed=0)


def split_file(path, rows):
    path.write_text("scan,split\n" + "\n".join(rows))
    return path


def test_a_patient_in_two_splits_is_named(scans, tmp_path):
    rows = [f"s{i},{'train' if i < 30 else 'validation'}" for i in range(60)]
    with pytest.raises(DataError, match="patients in two splits: p0, p1, p10 and 17 more") as caught:
        read_splits(split_file(tmp_path / "own.csv", rows), scans)
    assert "own.csv" in str(caught.value)


def test_good_split_file_is_used(scans, tmp_path):
    rows = [f"s{i},{'validation' if i % 20 < 6 else 'train'}" for i in range(60)]
    table = read_splits(split_file(tmp_path / "own.csv", [*rows, "s5,validation"]), scans)  # a row twice
    assert table.scan.is_unique
    assert table.set_index("scan").split["s5"] == "validation"
    assert table.set_index("scan").split["s46"] == "train"


def test_a_split_of_one_label_is_refused(scans, tmp_path):
    rows = ["s20,train", "s21,train", "s22,validation", "s23,validation"]  # s21 alone is positive
    with pytest.raises(DataError, match=r"the validation split needs scans of both labels, it has \[0\]"):
        read_splits(split_file(tmp_path / "own.csv", rows), scans)


def test_stored_split_changed_by_hand(scans, tmp_path):
    table = draw_splits(scans, validation=0.2, test=0.25, seed=0)
    write_splits(table, tmp_path / "splits.csv")
    assert load_splits(tmp_path / "splits.csv").equals(table)
    twice = table.patient == "p0"
    table.loc[twice, "split"] = ["train", "test"]
    write_splits(table, tmp_path / "splits.csv")
    with pytest.raises(DataError, match="patients in two splits: p0 "):
        load_splits(tmp_path / "splits.csv")


@pytest.mark.parametrize(
    ("row", "message"), [("s0,holdout", "got 'holdout'"), ("s99,train", "not among those to train on: s99")]
)
def test_split_files_that_cannot_be_used(scans, tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        read_splits(split_file(tmp_path / "own.csv", [row]), scans)


def others(*rows):
    return pd.DataFrame(rows, columns=["patient", "scan", "content"]).set_index("scan")


def test_external_patients_must_be_new(scans):
    table = draw_splits(scans, validation=0.2, test=0.25, seed=0)
    seen = table.patient[table.split == "train"].iloc[0]
    with pytest.raises(DataError, match=f"1 of its patients were trained or calibrated on: {seen}"):
        check_unseen(others((seen, "a", ""), ("new", "b", "")), learned_from(table), "elsewhere")
    held_out = table[table.split == "test"].iloc[0]
    new = others(("new", "a", ""), (held_out.patient, held_out.scan, held_out.content))
    check_unseen(new, learned_from(table), "elsewhere")
    learned = table[table.split == "validation"].iloc[0]
    with pytest.raises(DataError, match=f"1 of its patients were trained or calibrated on: {learned.scan}"):
        check_unseen(others(("p", learned.scan, ""), ("new", "b", "")), learned_from(table), "elsewhere")
    told = rf"elsewhere: 1 of its scans have the slices of one .* on: b \(those of {learned.scan}\)"
    with pytest.raises(DataError, match=told):
        check_unseen(others(("p", "a", ""), ("q", "b", learned.content)), learned_from(table), "elsewhere")


def test_scans_of_the_same_slices_have_one_label():
    twins = others(("p1", "a", "c"), ("p2", "b", "c"), ("p3", "d", ""), ("p4", "e", ""))
    check_twins(twins.assign(label=[1, 1, 0, 1]), "here")
    check_twins(twins.assign(label=[1, -1, 0, 1]), "here")
    with pytest.raises(DataError, match=r"here: scans of the same slices .* labels: a \(1\), b \(0\)"):
        check_twins(twins.assign(label=[1, 0, 0, 1]), "here")


@pytest.mark.parametrize("other", ["p1", "p2"])
def test_unseen_by_both_names_of_a_patient(other):
    twins = others(("p1", "a", "c"), ("p2", "b", "c"))
    twins, single = twins.assign(patient=one_patient(twins)), others((other, "x", "d"))
    for scans, learned in ((twins, single), (single, twins)):
        with pytest.raises(DataError, match=f"1 of its patients were trained or calibrated on: {other};"):
            check_unseen(scans, keys_of(learned), "elsewhere")


@pytest.mark.parametrize(("n", "positive"), [(4, 2), (30, 3)])
def test_every_split_has_both_labels(n, positive):
    few = pd.DataFrame({"patient": range(n), "label": [i < positive for i in range(n)]}).astype(int)
    few["content"] = ""
    table = draw_splits(few.rename(index=str), validation=0.2, test=0.0, seed=0)
    assert table.groupby("split").label.nunique().to_dict() == {"train": 2, "validation": 2}


@pytest.mark.parametrize(
    ("scan", "changes"),
    [("s8", {"patient": "p9"}), ("s59", {"content": "c"}), ("s7", {"label": -1}), ("s3", None)],
)
def test_split_whose_scans_have_changed(scans, scan, changes):
    table = draw_splits(scans, validation=0.2, test=0.25, seed=0)
    check_current(table, scans, "run")
    if changes is None:
        scans = scans.drop(scan)
    for column, value in (changes or {}).items():
        scans.loc[scan, column] = value
    with pytest.raises(DataError, match=f"run: 1 scans .*: {scan};"):
        check_current(table, scans, "run")


def test_scans_and_single_slices_are_strata():
    """Four scans beside 200 slices: drawn together, most draws would leave a split without a scan."""
    slices = [9] * 4 + [1] * 200
    table = pd.DataFrame(
        {"patient": [f"p{i}" for i in range(204)], "label": [0, 1] * 102, "content": "", "slices": slices},
        index=pd.Index([f"s{i}" for i in range(204)], name="scan"),
    )
    table.loc[table.index[:4], "label"] = [0, 0, 1, 1]
    for seed in range(5):
        drawn = draw_splits(table, validation=0.2, test=0.0, seed=seed).set_index("scan")
        held = table[drawn.split == "validation"]
        assert sorted(held.label[held.slices > 1]) == [0, 1]
        assert held.label[held.slices == 1].value_counts().to_dict() == {0: 20, 1: 20}


def test_content_ignores_order():
    assert content_of(["a", "b", "c"]) == content_of(["c", "a", "b", "b"]) != ""
    assert len({content_of(one) for one in (["a", "b"], ["ab", "b"], ["a", "bb"], ["a", "b", "c"])}) == 4
    assert content_of(["a", "a"]) == content_of(["a"]) == content_of([]) == ""


@pytest.mark.parametrize(
    ("patients", "contents", "wanted"),
    [
        ("pqrs", ["1", "2", "3", "4"], "pqrs"),
        ("pqrs", ["1", "2", "1", ""], ["p = r", "q", "p = r", "s"]),
        ("pqqr", ["1", "1", "2", "2"], ["p = q = r"] * 4),  # one leads to the next
        ("qpqr", ["1", "", "", "1"], ["q = r", "p", "q = r", "q = r"]),
        ("pqrs", [""] * 4, "pqrs"),  # known by nothing, not alike
    ],
)
def test_patients_of_duplicates_are_merged(patients, contents, wanted):
    scans = pd.DataFrame({"patient": list(patients), "content": contents}, index=[*"abcd"])
    found = one_patient(scans)
    assert found.tolist() == list(wanted)
    assert found.index.equals(scans.index)


def test_study_under_two_names(rsna_root, tmp_path):
    source = shutil.copytree(rsna_root / "stage_2_train", tmp_path / "dicom")
    phantoms.second_name(source, source / "again")
    prepared = prepare("unlabelled", source, tmp_path / "set", jobs=1)
    scans, told = prepared.scans, prepared.ledger[prepared.ledger.code == Code.SAME_SLICES]
    assert prepared.table.patient.nunique() == 2 * scans.patient.nunique()  # as the files have it
    for again, detail in zip(told.scan, told.detail, strict=True):
        first = again.removesuffix("9")
        assert scans.patient[again] == scans.patient[first]
        assert first in detail
    assert len(told) == 4

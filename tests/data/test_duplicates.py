"""Scans that are one under two names."""

import shutil

import pandas as pd
import pytest

from ich_mil.data.preparation.prepare import prepare
from ich_mil.data.splits import content_of, one_patient
from ich_mil.ledger import Code
from tests import phantoms


def test_slices_are_known_in_whatever_order_they_come():
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
def test_all_scans_of_patients_that_twins_join_are_of_one_with_all_their_names(patients, contents, wanted):
    scans = pd.DataFrame({"patient": list(patients), "content": contents}, index=[*"abcd"])
    found = one_patient(scans)
    assert found.tolist() == list(wanted)
    assert found.index.equals(scans.index)


def test_a_study_that_is_there_under_two_names_is_of_one_patient(rsna_root, tmp_path):
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

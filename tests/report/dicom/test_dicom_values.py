"""Derived UIDs, texts in any encoding, and values valid for their representation."""

from functools import partial
from uuid import UUID

import pytest
from pydicom.uid import UID

from ich_mil.report.dicom.values import (
    age,
    clock,
    day,
    derived_uid,
    identifier,
    line,
    paragraph,
    person_name,
    valid_uid,
)


def test_a_derived_uid_is_a_name_based_uuid_and_stays_the_same_for_ever():
    uid = derived_uid("not a UID", "ID_000012eaf")
    # what archives hold by now: a changed rule would make all results appear twice
    assert uid == valid_uid("ID_000012eaf") == "2.25.290852179067405458798620605455486318691"
    assert UUID(int=int(uid.removeprefix("2.25."))).version == 5
    assert UID(uid).is_valid
    assert len(uid) <= 44


def test_parts_of_a_derived_uid_are_told_apart():
    uids = {derived_uid("ab", "c"), derived_uid("a", "bc"), derived_uid("abc"), derived_uid("c", "ab")}
    assert len(uids) == 4


@pytest.mark.parametrize(
    "uid", ["ID_000012eaf", "1.02.3", "1..2", "1." * 40 + "1", "", "1.2\n", "1.2.a", "١.2"]
)
def test_an_invalid_uid_is_replaced_by_the_same_one_each_time(uid):
    assert valid_uid(uid) == valid_uid(uid) != uid
    assert UID(valid_uid(uid)).is_valid


@pytest.mark.parametrize(
    ("convert", "pairs"),
    [
        (valid_uid, {"1.2.840.10008.5.1": "", "2.25.0": "", "0.0": "", "1." + 62 * "2": ""}),
        (
            person_name,
            {
                "Doe^Jane^^Dr^MD": "",
                "a^b^c^d^e^f=g=h=i": "a^b^c^d^e=g=h",
                "x" * 300: "x" * 64,
                "<script>alert('1')</script>^\"": "",
                "a\\b\nc\0\N{RIGHT-TO-LEFT OVERRIDE}d": "a b c��d",
                "x" * 60 + "^yz" + " u" * 9: "x" * 60 + "^yz",
                "Doe==": "Doe",
                "van  Dyk^Jo": "",
            },
        ),
        (identifier, {"P-1 é": "", "AB  12": "", "x" * 64: ""}),
        (line, {"a\\b\tc\n\x01d": "a/b c �d", "y" * 70: "y" * 64, "y" * 63 + " z": "y" * 63}),
        (paragraph, {"a \n": "a", "a\tb\nc\x02" + "z" * 9999: "a b\nc�" + "z" * 9999}),
        (day, {"20200229": "", "00010101": "", "2020.02.29": "20200229", "2020-02-29": "20200229"}),
        (clock, {"101530.123456": "", "10:15:30": "101530", "1015": "", "235960": "", "10": ""}),
        (age, {"045Y": "", "045M": "", "045W": "", "045D": ""}),
    ],
)
def test_valid_values_are_kept_or_converted(convert, pairs):
    """'' stands for the text itself."""
    assert {text: convert(text) for text in pairs} == {text: value or text for text, value in pairs.items()}


@pytest.mark.parametrize(
    ("convert", "texts"),
    [
        (identifier, ["x" * 65, "a\\b", "a\nb"]),
        (partial(identifier, most=16), ["12345678901234567"]),
        (day, ["20190229", "00000101", "1.1.2020", "", "20201301", "yesterday"]),
        (clock, ["1", "251530", "106130", "101561", "10.5", "noon", "", "-10", "10-11"]),
        (age, ["45Y", "045y", ""]),
    ],
)
def test_invalid_values_are_left_out(convert, texts):
    assert {convert(text) for text in texts} == {""}

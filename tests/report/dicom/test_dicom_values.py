"""Derived UIDs, texts in any encoding, and values valid for their representation."""

from functools import partial
from uuid import UUID

import pytest
from pydicom.uid import UID

from ich_mil.report.dicom.values import (
    age,
    clock,
    day,
    decoded,
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
    ("raw", "character_sets", "text"),
    [
        (b"Doe^Jane", [], "Doe^Jane"),
        ("Müller^Jörg".encode("latin-1"), ["ISO_IR 100"], "Müller^Jörg"),
        ("Müller^Jörg".encode(), ["ISO_IR 192"], "Müller^Jörg"),
        ("Люкceмбypг".encode("iso8859-5"), ["ISO_IR 144"], "Люкceмбypг"),
        ("王^小东".encode("gb18030"), ["GB18030"], "王^小东"),
        # PS3.5 H.3.1: the three groups of a Japanese name
        (
            b"Yamada^Tarou=\x1b$B;3ED\x1b(B^\x1b$BB@O:\x1b(B=\x1b$B$d$^$@\x1b(B^\x1b$B$?$m$&\x1b(B",
            ["", "ISO 2022 IR 87"],
            "Yamada^Tarou=山田^太郎=やまだ^たろう",
        ),
        # PS3.5 K.3: each part of a Chinese name begins with an escape sequence
        (
            b"Zhang^XiaoDong=\x1b$)A\xd5\xc5^\x1b$)A\xd0\xa1\xb6\xab=",
            ["", "ISO 2022 IR 58"],
            "Zhang^XiaoDong=张^小东",
        ),
        # PS3.5 I.2: a Korean one too
        (
            b"Hong^Gildong=\x1b$)C\xfb\xf3^\x1b$)C\xd1\xce\xd4\xd7=\x1b$)C\xc8\xab^\x1b$)C\xb1\xe6\xb5\xbf",
            ["", "ISO 2022 IR 149"],
            "Hong^Gildong=洪^吉洞=홍^길동",
        ),
        # what the character set does not say is UTF-8 or Latin-1, and no byte is lost
        ("Müller".encode(), [], "Müller"),
        ("Müller".encode("latin-1"), [], "Müller"),
        ("Müller".encode("latin-1"), ["ISO_IR 192"], "Müller"),
        ("Müller".encode(), ["ISO 2022 IR 6"], "Müller"),
        ("Müller".encode("latin-1"), ["NO SUCH SET"], "Müller"),
        (b"\xff\xfe\x80", ["GB18030"], "ÿþ\x80"),
    ],
)
def test_text_is_decoded_whatever_its_bytes(raw, character_sets, text):
    assert decoded(raw, character_sets) == text


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

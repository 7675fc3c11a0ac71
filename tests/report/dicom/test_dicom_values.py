"""UIDs that follow from texts, text of any bytes, values that their representation allows."""

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
    sex,
    valid_uid,
    yes_or_no,
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


@pytest.mark.parametrize("uid", ["1.2.840.10008.5.1", "2.25.0", "0.0", "1." + 62 * "2"])
def test_a_valid_uid_is_kept(uid):
    assert valid_uid(uid) == uid


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


def test_a_name_has_three_groups_of_five_parts_and_sixty_four_characters():
    assert person_name("Doe^Jane^^Dr^MD") == "Doe^Jane^^Dr^MD"
    assert person_name("a^b^c^d^e^f=g=h=i") == "a^b^c^d^e=g=h"
    assert person_name("x" * 300) == "x" * 64
    assert person_name("<script>alert('1')</script>^\"") == "<script>alert('1')</script>^\""
    assert person_name("a\\b\nc\0\N{RIGHT-TO-LEFT OVERRIDE}d") == "a b c��d"
    assert person_name("x" * 60 + "^yz" + " u" * 9) == "x" * 60 + "^yz"
    assert person_name("Doe==") == "Doe"
    assert person_name("van  Dyk^Jo") == "van  Dyk^Jo"
    assert person_name("") == ""


def test_an_identifier_is_whole_or_left_out():
    assert identifier("P-1 é") == "P-1 é"
    assert identifier("AB  12") == "AB  12"
    assert identifier("x" * 64) == "x" * 64
    assert identifier("x" * 65) == ""
    assert identifier("a\\b") == ""
    assert identifier("a\nb") == ""
    assert identifier("12345678901234567", most=16) == ""


def test_lines_are_shortened_and_paragraphs_are_not():
    assert line("a\\b\tc\n\x01d") == "a/b c �d"
    assert line("y" * 70) == "y" * 64
    assert line("y" * 63 + " z") == "y" * 63
    assert paragraph("a \n") == "a"
    assert paragraph("a\tb\nc\x02" + "z" * 9999) == "a b\nc�" + "z" * 9999


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20190229", ""),
        ("20200229", "20200229"),
        ("00010101", "00010101"),
        ("00000101", ""),
        ("2020.02.29", "20200229"),
        ("2020-02-29", "20200229"),
        ("1.1.2020", ""),
        ("", ""),
        ("20201301", ""),
    ],
)
def test_days(text, value):
    assert day(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("101530.123456", "101530.123456"),
        ("10:15:30", "101530"),
        ("1015", "1015"),
        ("235960", "235960"),
        ("10", "10"),
        ("1", ""),
        ("251530", ""),
        ("106130", ""),
        ("101561", ""),
        ("10.5", ""),
        ("noon", ""),
        ("", ""),
    ],
)
def test_times(text, value):
    assert clock(text) == value


def test_values_that_are_enumerated():
    assert [sex(text) for text in ("M", "F", "O", "m", "male", "")] == ["M", "F", "O", "", "", ""]
    assert [age(text) for text in ("045Y", "045M", "045W", "045D")] == ["045Y", "045M", "045W", "045D"]
    assert [age(text) for text in ("45Y", "045y", "")] == ["", "", ""]
    assert [yes_or_no(text) for text in ("YES", "NO", "yes", "")] == ["YES", "NO", "", ""]

"""Texts of files in the character sets of the world, declared or not."""

import pytest

from ich_mil.dicom.files.elements import Elements
from ich_mil.dicom.files.text import decode_text


def kanji(text: str, back: bytes = b"(B") -> bytes:
    """As ISO 2022 IR 87, with its escapes."""
    return text.encode("iso2022_jp").replace(b"\x1b(B", b"\x1b" + back)


# PS3.5 H.3.1 and H.3.2; the second returns by ESC ( J, to JIS X 0201
KANJI, KANA = ("山田", "太郎"), ("やまだ", "たろう")
FIRST = b"=".join([b"Yamada^Tarou", *(b"^".join(map(kanji, one)) for one in (KANJI, KANA))])
BACK = [b"^".join(kanji(part, b"(J") for part in one) for one in (KANJI, KANA)]
SECOND = b"=".join(["ﾔﾏﾀﾞ^ﾀﾛｳ".encode("shift_jis"), *BACK])
FIRST_TEXT = "Yamada^Tarou=山田^太郎=やまだ^たろう"
SECOND_TEXT = "ﾔﾏﾀﾞ^ﾀﾛｳ=山田^太郎=やまだ^たろう"
KOREAN = "Hong^Gildong=\x1b$)C洪^\x1b$)C吉洞=\x1b$)C홍^\x1b$)C길동".encode("euc_kr")
KOREAN_TEXT = "Hong^Gildong=洪^吉洞=홍^길동"


@pytest.mark.parametrize(
    ("raw", "character_sets", "text"),
    [
        (FIRST, ["", "ISO 2022 IR 87"], FIRST_TEXT),
        (FIRST, ["ISO 2022 IR 6", "ISO 2022 IR 87"], FIRST_TEXT),
        (FIRST, ["ISO 2022 IR 87"], FIRST_TEXT),
        (FIRST, [], FIRST_TEXT),  # escapes that are not declared
        (FIRST, ["ISO_IR 100"], FIRST_TEXT),
        (FIRST, ["ISO_IR 192"], FIRST_TEXT),
        (SECOND, ["ISO 2022 IR 13", "ISO 2022 IR 87"], SECOND_TEXT),
        (SECOND, ["ISO_IR 13"], SECOND_TEXT),
        (FIRST.replace(b"\x1b(B", b"\x1b(J"), ["", "ISO 2022 IR 87"], FIRST_TEXT),
        (FIRST.replace(b"\x1b$B", b"\x1b$@"), ["", "ISO 2022 IR 87"], FIRST_TEXT),
        ("ﾔﾏﾀﾞ^ﾀﾛｳ".encode("shift_jis"), ["ISO_IR 13"], "ﾔﾏﾀﾞ^ﾀﾛｳ"),
        ("山田^太郎".encode("shift_jis"), ["ISO_IR 13"], "山田^太郎"),
        (b"\x1b)I" + "ﾔﾏﾀﾞ".encode("shift_jis"), [], "ﾔﾏﾀﾞ"),
        (b"\x1b(IT_@^\x1b(B^A", [], "ﾔﾟﾀﾞ^A"),
        (b"\x1b(J" + "ﾔﾏﾀﾞ".encode("shift_jis"), ["", "ISO 2022 IR 87"], "ﾔﾏﾀﾞ"),
        (
            "山田\r\n".encode("iso2022_jp") + "太郎".encode("iso2022_jp"),
            ["", "ISO 2022 IR 87"],
            "山田\r\n太郎",
        ),
        (b"\x1b$B|b6\x36\x1b(B", ["", "ISO 2022 IR 87"], "髙橋"),
        ("丂".encode("iso2022_jp_2"), ["", "ISO 2022 IR 159"], "丂"),
        (KOREAN, ["", "ISO 2022 IR 149"], KOREAN_TEXT),
        (KOREAN, [], KOREAN_TEXT),
        ("홍^길동".encode("euc_kr"), ["ISO 2022 IR 149"], "홍^길동"),
        (b"\x1b$)C" + "홍^길동".encode("euc_kr"), ["", "ISO 2022 IR 149"], "홍^길동"),  # one escape for all
        (
            b"\x1b-F" + "Διονυσιος^".encode("iso8859_7") + b"M\xfcller",
            ["ISO 2022 IR 100"],
            "Διονυσιος^Müller",
        ),
        ("Люкceмбypг".encode("iso8859_5"), ["ISO 2022 IR 144"], "Люкceмбypг"),
        ("张^小东".encode("gbk"), ["GBK"], "张^小东"),
        ("鷗".encode("gb18030"), ["GB18030"], "鷗"),
        (b"\x1b$B;3E", [], ";3E"),  # cut within a character
        (b"a\x1bc", [], "a\x1bc"),
    ],
)
def test_text_of_any_character_set_for_the_worklist_and_for_results(raw, character_sets, text):
    assert decode_text(raw, character_sets) == text
    values = {"SpecificCharacterSet": "\\".join(character_sets).encode(), "PatientName": raw}
    elements = Elements("", "", True, values, -1, -1, 0, lambda: None)  # type: ignore[arg-type, return-value]
    assert elements.text("PatientName") == text.strip()


@pytest.mark.parametrize("character", ["亜", "熙", "一", "Ａ", "ぁ", "龠", "漾"])
def test_the_two_ways_to_two_bytes_agree(character):
    raw = character.encode("iso2022_jp") + b"\x1b$B|b\x1b(B"
    assert decode_text(raw, []) == character + "髙"

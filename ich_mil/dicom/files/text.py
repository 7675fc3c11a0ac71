"""Decoder for DICOM text elements.

In: the bytes of a value and SpecificCharacterSet. Out: text for any bytes, without loss. ISO 2022 escapes are
applied even if their character set is not declared. Other bytes are decoded with the first declared character
set. If it does not fit or none is declared, they are decoded as UTF-8, else as Latin-1.

Source: DICOM PS3.5 6.1.2.5 (code extensions), H (Japanese), PS3.3 tables C.12-2 to C.12-5 (defined terms).
"""

import re
from collections.abc import Sequence

from pydicom.charset import python_encoding

_KANA = "shift_jis"
"""Codec for JIS X 0201 (katakana in the upper half); files that declare it also hold Shift JIS kanji."""
_LOWER = {
    b"(B": "",
    b"(J": "",  # JIS X 0201 Roman; its yen sign has the code of the backslash
    b"(I": "(I",
    b"$B": "$B",
    b"$@": "$B",  # JIS X 0208-1978
    b"$(D": "$(D",
}
"""Character set of bytes below 80H after an escape: '' for ASCII, else katakana or a two-byte set."""
_UPPER = {
    b")I": _KANA,
    b"$)C": "euc_kr",
    b"$)A": "gb2312",
    b"-A": "latin_1",
    b"-B": "iso8859_2",
    b"-C": "iso8859_3",
    b"-D": "iso8859_4",
    b"-F": "iso8859_7",
    b"-G": "iso8859_6",
    b"-H": "iso8859_8",
    b"-L": "iso8859_5",
    b"-M": "iso8859_9",
    b"-T": "iso8859_11",
    b"-b": "iso8859_15",
}
"""Codec for bytes from 80H up after an escape."""
_ESCAPE = re.compile(rb"\x1b(" + b"|".join(map(re.escape, (*_LOWER, *_UPPER))) + rb")")
_ENDS = re.compile(rb"([\\^=\t\n\f\r])")
"""ASCII characters that end a code extension; ^ and = do so in names, and are harmless in other texts."""


def decode_text(raw: bytes, character_sets: Sequence[str]) -> str:
    """Decode the value of a text element; `character_sets` are the values of SpecificCharacterSet."""
    first = character_sets[0].strip(" \0") if character_sets else ""
    codec = python_encoding.get(first, "iso8859")
    # pydicom's codec "iso8859" is the default repertoire, ASCII; ISO 2022-JP starts in ASCII
    initial = (
        "" if codec in ("iso8859", "iso2022_jp", "iso2022_jp_2") else codec.replace("iso_ir_58", "gb2312")
    )
    try:
        return _extended(raw, initial)
    except ValueError:  # invalid or incomplete characters
        return _undeclared(_ESCAPE.sub(b"", raw))


def _extended(raw: bytes, initial: str) -> str:
    """Decode text with code extensions; `initial` is the first codec for bytes from 80H up, or ''."""
    lower, upper = "", initial
    text = []
    before, *rest = _ESCAPE.split(raw)
    for escape, part in [(b"", before), *zip(rest[::2], rest[1::2], strict=True)]:
        if escape in _UPPER:
            upper = _UPPER[escape]
        elif escape:
            lower = _LOWER[escape]
            upper = upper or (_KANA if escape == b"(J" else "")
        if lower:
            text += [
                _of_seven_bits(run, lower) for run in re.split(rb"([\x80-\xff]+|[\0-\x20]+)", part) if run
            ]
            continue
        for piece in _ENDS.split(part):
            upper = initial or upper if _ENDS.fullmatch(piece) else upper
            text.append(piece.decode(upper) if upper else _undeclared(piece))
    return "".join(text)


def _of_seven_bits(run: bytes, lower: str) -> str:
    """Decode 7-bit bytes of a two-byte set or of katakana; blanks and bytes from 80H up as Shift JIS."""
    if run[0] <= 0x20 or run[0] >= 0x80:
        return run.decode(_KANA)
    if lower == "(I":
        return bytes(byte | 0x80 for byte in run).decode(_KANA)
    try:
        return (b"\x1b" + lower.encode() + run + b"\x1b(B").decode("iso2022_jp_2")
    except UnicodeDecodeError:  # vendor extensions in names such as 髙橋
        pairs = zip(run[::2], run[1::2], strict=True)
        return b"".join(_shift_jis(*pair) for pair in pairs).decode("cp932")


def _shift_jis(row: int, cell: int) -> bytes:
    """Convert a JIS X 0208 character (row byte, cell byte) to Shift JIS."""
    lead = (row + 1) // 2 + (0x70 if row < 0x5F else 0xB0)
    return bytes((lead, cell + 0x7E if row % 2 == 0 else cell + 0x1F + (cell > 0x5F)))


def _undeclared(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")

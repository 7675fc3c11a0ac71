"""Fast header parser: raw values of selected DICOM elements and the location of Pixel Data.

In: a path and DICOM keywords. Out: `Elements`, whose values are decoded on access. Pixel Data is not read, a
deflated file is inflated only as far as its header, nested sequences are skipped without recursion. pydicom
takes three times as long for an RSNA slice, and every file passes through this parser.

Source: DICOM PS3.5 7.1 (elements), 7.5 (sequences), 6.2.2 (UN), A.5 (deflated); PS3.10 7.1 (preamble, meta).
"""

import io
import math
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from pydicom.dataset import Dataset
from pydicom.filereader import read_dataset
from pydicom.tag import Tag
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    UncompressedTransferSyntaxes,
)
from pydicom.valuerep import VR

from ich_mil.dicom.files.text import decode_text

HEAD_BYTES = 1 << 15
"""Bytes read first: the header of one slice takes 2 to 20 KB."""
MOST_HEADER_BYTES = 1 << 25
"""Bytes read if `HEAD_BYTES` end before Pixel Data: a multi-frame header takes about 1 KB per frame."""
INFLATE_BYTES = 1 << 29
"""Maximum inflated size of a deflated file [bytes]: 500 frames of 512 x 512 take half of it."""
MOST_VALUE_BYTES = 1 << 11
"""Bytes kept of a value: LO has at most 64 characters, a person name 192, each of at most 4 bytes."""
MOST_ITEMS = 1 << 17
"""Maximum number of sequence items in a header: a frame of an Enhanced CT has about 10."""
NATIVE = frozenset(UncompressedTransferSyntaxes)
"""Transfer syntaxes with native (not encapsulated) Pixel Data (PS3.5 A.1-A.5)."""
UNDEFINED = 0xFFFFFFFF

_VRS = frozenset(vr.value.encode() for vr in VR if len(vr.value) == 2)
# VRs with a four-byte length field (PS3.5 table 7.1-1)
_LONG = frozenset(b"OB OD OF OL OV OW SQ SV UC UN UR UT UV".split())
_SYNTAX, _MEDIA_SOP_CLASS, _PIXEL_DATA = 0x00020010, 0x00020002, 0x7FE00010
_ITEM, _END_OF_ITEM, _END_OF_SEQUENCE = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD
_ITEM_BYTES = {True: b"\xfe\xff\x00\xe0", False: b"\xff\xfe\xe0\x00"}  # tag by byte order, True: little
_CHARACTER_SET = "SpecificCharacterSet"
_PREAMBLE = 128
_PART_BYTES = 1 << 16
_FIRST_GROUPS = {b"\x02\x00", b"\x08\x00"}  # of the first element in a file without preamble
_BLANKS = " \0\t\r\n"
_ESCAPE = b"\x1b"  # first byte of a code extension (PS3.5 6.1.2.5)


class NotDicomError(Exception):
    """The file is not a DICOM file (PS3.10)."""


class EmptyFileError(NotDicomError):
    """The file is empty or begins with zeros, as after a failed copy."""


def check_regular(path: Path) -> None:
    """Refuse FIFOs, devices and files of /proc (size 0) before they are opened: they can block."""
    found = path.stat()
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise NotDicomError("it is not a regular file")
    if not found.st_size:
        raise EmptyFileError


@dataclass(frozen=True)
class Elements:
    """Requested elements of one file, as bytes.

    Attributes:
        syntax: transfer syntax UID; the DICOM default if the file names none (PS3.5 10.1).
        values: keyword -> raw value; empty bytes for a sequence of undefined length.
        pixel_offset: offset of the Pixel Data value in the (inflated) file [bytes]; -1 without Pixel Data.
        pixel_length: length of the Pixel Data value [bytes]; -1 if undefined.
        sequences: function that parses the data set up to Pixel Data with pydicom, including sequences.
    """

    syntax: str
    media_sop_class: str
    little_endian: bool
    values: dict[str, bytes]
    pixel_offset: int
    pixel_length: int
    n_bytes: int
    sequences: Callable[[], Dataset]

    def texts(self, keyword: str) -> list[str]:
        """Values of a text element without surrounding blanks and NULs; [] if absent or empty."""
        text = self.text(keyword)
        return text.split("\\") if text else []

    def text(self, keyword: str) -> str:
        """Value of a text element, several values joined by a backslash; '' if absent."""
        raw = self.values.get(keyword, b"")
        if raw.isascii() and _ESCAPE not in raw:  # ISO 2022 Japanese is 7-bit too
            text = raw.decode("ascii").strip(_BLANKS)
        else:
            names = self.values.get(_CHARACTER_SET, b"").decode("ascii", "replace").split("\\")
            text = decode_text(raw, [name.strip(_BLANKS) for name in names]).strip(_BLANKS)
        if "\\" in text:
            text = "\\".join([part.strip(_BLANKS) for part in text.split("\\")])
        return text

    def decimals(self, keyword: str, count: int) -> tuple[float, ...] | None:
        """Value of a DS or IS element as exactly `count` finite numbers, or None."""
        return finite_numbers(self.texts(keyword), count)

    def decimal(self, keyword: str) -> float | None:
        """Value of a DS or IS element with one finite number, or None."""
        return (self.decimals(keyword, 1) or (None,))[0]

    def integer(self, keyword: str) -> int | None:
        """Value of an IS element with one number, or None."""
        number = self.decimal(keyword)
        return None if number is None else int(number)

    def short(self, keyword: str, *, signed: bool = False) -> int | None:
        """Value of a US or SS element with one 16-bit number, or None."""
        raw = self.values.get(keyword, b"")
        if len(raw) != 2:
            return None
        return int.from_bytes(raw, "little" if self.little_endian else "big", signed=signed)


def finite_numbers(values: Any, count: int) -> tuple[float, ...] | None:
    """Convert values of an element to exactly `count` finite numbers, or None."""
    try:
        numbers = tuple(map(float, values))
    except (TypeError, ValueError):
        return None
    return numbers if len(numbers) == count and all(map(math.isfinite, numbers)) else None


def read_elements(path: Path, keywords: Iterable[str]) -> Elements:
    """Read the elements `keywords` before Pixel Data, and SpecificCharacterSet; the preamble may be absent.

    Values are cut off after `MOST_VALUE_BYTES`.

    Raises:
        NotDicomError: the file does not begin like a DICOM file.
        EmptyFileError: the file is empty or begins with zeros.
        OSError: the file cannot be read.
        zlib.error: the file is deflated and damaged.
    """
    tags = _tags(frozenset(keywords))
    check_regular(path)
    with path.open("rb") as file:
        n_bytes = file.seek(0, io.SEEK_END)
        head = _Head(file, HEAD_BYTES)
        elements = _elements(head, tags, n_bytes)
        if elements.pixel_offset < 0 and not head.is_whole:
            head = _Head(file, MOST_HEADER_BYTES)
            elements = _elements(head, tags, n_bytes)
    return elements


@cache
def _tags(keywords: frozenset[str]) -> dict[int, str]:
    """Tag -> keyword; plain ints, because comparisons of `pydicom.tag.Tag` run in Python."""
    return {int(Tag(keyword)): keyword for keyword in (*keywords, _CHARACTER_SET)}


def inflate(path: Path, start: int, n_bytes: int) -> memoryview:
    """Read a byte range of a deflated file, after inflation. Fewer bytes if the file ends or is damaged.

    Raises:
        ValueError: the range exceeds `INFLATE_BYTES`.
    """
    if start + n_bytes > INFLATE_BYTES:
        raise ValueError(f"it would inflate to more than {INFLATE_BYTES >> 20} MB")
    check_regular(path)
    with path.open("rb") as file:
        head = _Head(file, HEAD_BYTES)
        content = bytearray()
        with suppress(zlib.error):  # frames before the damage can be read
            for part in _inflated(file, head.start, start + n_bytes - head.start):
                content += part
    return memoryview(content)[start - head.start :]


def _inflated(file: BinaryIO, start: int, limit: int) -> Iterator[bytes]:
    """Inflate at most `limit` bytes of a file from offset `start` on, in parts."""
    file.seek(start)
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    while limit > 0 and not inflater.eof:
        packed = inflater.unconsumed_tail or file.read(_PART_BYTES)
        if not packed:
            return
        part = inflater.decompress(packed, min(limit, 8 * _PART_BYTES))
        limit -= len(part)
        yield part


class _Head:
    """First bytes of a file, inflated if it is deflated; the data set begins at offset `start`."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        file.seek(0)
        content = file.read(limit)
        has_preamble = content[_PREAMBLE : _PREAMBLE + 4] == b"DICM"
        if not has_preamble and not any(content[:_PREAMBLE]):
            raise EmptyFileError
        if not has_preamble and (len(content) < 8 or content[:2] not in _FIRST_GROUPS):
            raise NotDicomError
        meta: dict[int, str] = {}
        self.start = _PREAMBLE + 4 if has_preamble else 0
        # file meta information is explicit little endian (PS3.10 7.1)
        for tag, at, length in walk(content, self.start, explicit=True, little_endian=True):
            if tag >> 16 != 2:
                break
            if at + length <= len(content):
                meta[tag] = content[at : at + length].decode("ascii", "replace").strip(_BLANKS)
            self.start = at + length
        self.syntax, self.media_sop_class = meta.get(_SYNTAX, ""), meta.get(_MEDIA_SOP_CLASS, "")
        self.is_whole = len(content) < limit
        if self.syntax == DeflatedExplicitVRLittleEndian:
            inflated = b"".join(_inflated(file, self.start, limit))
            content = content[: self.start] + inflated
            self.is_whole = len(inflated) < limit
        self.content = content


def _elements(head: _Head, tags: dict[int, str], n_bytes: int) -> Elements:
    """Elements `tags` in the first bytes of a file of size `n_bytes`."""
    content, start = head.content, head.start
    little = head.syntax != ExplicitVRBigEndian
    # The encoding of the first element outranks the declared transfer syntax.
    explicit = content[start + 4 : start + 6] in _VRS
    pixel_offset = pixel_length = -1
    values = {}
    for tag, at, length in walk(content, start, explicit=explicit, little_endian=little):
        if tag == _PIXEL_DATA:
            pixel_offset, pixel_length = at, -1 if length == UNDEFINED else length
            break
        if tag in tags and length == UNDEFINED:  # a sequence: record its presence only
            values[tags[tag]] = b""
        elif tag in tags and at + length <= len(content):  # a truncated UID would be another UID
            values[tags[tag]] = content[at : at + min(length, MOST_VALUE_BYTES)]

    def sequences() -> Dataset:
        if content.count(_ITEM_BYTES[little]) > MOST_ITEMS:
            raise ValueError(f"it has more than {MOST_ITEMS} sequence items")
        again = io.BytesIO(content)
        again.seek(start)
        return read_dataset(again, not explicit, little, stop_when=lambda tag, *_: tag == _PIXEL_DATA)

    meta = head.syntax or ImplicitVRLittleEndian, head.media_sop_class
    return Elements(*meta, little, values, pixel_offset, pixel_length, n_bytes, sequences)


def walk(content: bytes, at: int, *, explicit: bool, little_endian: bool) -> Iterator[tuple[int, int, int]]:
    """Iterate over the top-level elements of a data set, possibly truncated, that begins at offset `at`.

    Yields:
        Tag, offset of the value, which may lie beyond the end, and its length [bytes] or `UNDEFINED`.
    """
    order = "<" if little_endian else ">"
    with_vr = struct.Struct(f"{order}HH2sH").unpack_from
    without_vr = struct.Struct(f"{order}HHL").unpack_from
    long_length = struct.Struct(f"{order}L").unpack_from
    outer: list[bool] = []  # per open sequence or item: whether its parent is explicit VR
    end = len(content) - 8
    while at <= end:
        group, element, length = without_vr(content, at)
        tag = group << 16 | element
        if explicit and group != 0xFFFE:
            _, _, vr, short = with_vr(content, at)
            if vr in _LONG:
                if at + 12 > len(content):
                    return
                (length,) = long_length(content, at + 8)
                at += 4
            elif b"AA" <= vr <= b"ZZ":
                length = short
            # else: some writers switch to implicit VR within a data set
        at += 8
        if not outer:
            yield tag, at, length
        if length == UNDEFINED:
            outer.append(explicit)
            if tag == _ITEM:  # UN, and sequences of some writers, usually hold implicit VR
                explicit = explicit and content[at + 4 : at + 6] in _VRS
        elif tag in (_END_OF_ITEM, _END_OF_SEQUENCE):
            explicit = outer.pop() if outer else explicit
        else:
            at += length

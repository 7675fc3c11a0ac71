"""The first pass over a DICOM file: raw values of a few elements, and where the pixels lie.

In: a path and the tags that are wanted. Out: `Elements`, whose values stay bytes until they are asked for.
Pixels are not read, and of a deflated file only as much is inflated as the header takes.

Source: DICOM PS3.5 7.1 (elements), A.5 (deflated); PS3.10 7.1 (preamble and file meta information).
"""

import io
import math
import struct
import zlib
from collections.abc import Callable, Set
from dataclasses import dataclass
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

from ich_mil.dicom.text import decode_text
from ich_mil.dicom.walk import UNDEFINED, VRS, walk

PIXEL_DATA = 0x7FE00010
HEAD_BYTES = 1 << 15
"""Read at first: the header of one slice takes 2 to 20 KB."""
MOST_HEADER_BYTES = 1 << 25
"""Read where that does not reach the pixels: the header of a multi-frame file takes about 1 KB a frame."""
INFLATE_BYTES = 1 << 29
"""A deflated file is read up to here: 500 frames of 512 x 512 take half of it."""

NATIVE = frozenset(UncompressedTransferSyntaxes)
"""Transfer syntaxes whose pixels are not compressed frame by frame (PS3.5 A.1-A.5)."""

_SYNTAX = 0x00020010
_MEDIA_SOP_CLASS = 0x00020002
CHARACTER_SET = 0x00080005
_PREAMBLE = 128
# A file without the PS3.10 preamble starts with a tag of group 0002 or 0008, little endian.
_FIRST_GROUPS = {0x0002, 0x0008}
_BLANKS = " \0\t\r\n"
_ESCAPE = b"\x1b"
"""Begins a code extension (PS3.5 6.1.2.5)."""


def tag_of(keyword: str) -> int:
    """The tag of a keyword of the DICOM dictionary. A plain number: `pydicom.tag.Tag` compares in Python."""
    return int(Tag(keyword))


class NotDicomError(Exception):
    """The file is no DICOM file (PS3.10)."""


class EmptyFileError(NotDicomError):
    """A copy that failed: the file has no bytes, or zeros where it should begin."""


@dataclass(frozen=True)
class Elements:
    """The elements of one file that were asked for, as bytes.

    Attributes:
        syntax: transfer syntax UID; where the file names none, DICOM's default (PS3.5 10.1).
        media_sop_class: MediaStorageSOPClassUID (0002,0002), or ''.
        little_endian: byte order of binary values.
        values: tag -> raw value, empty of a sequence with an end mark.
        pixel_offset: first byte of the Pixel Data value in the (inflated) file; -1 where there is none.
        pixel_length: bytes of the Pixel Data value; -1 where it is undefined.
        n_bytes: bytes of the file.
        sequences: reads the data set again, with its sequences, up to the pixels.
    """

    syntax: str
    media_sop_class: str
    little_endian: bool
    values: dict[int, bytes]
    pixel_offset: int
    pixel_length: int
    n_bytes: int
    sequences: Callable[[], Dataset]

    def texts(self, tag: int) -> list[str]:
        """The values of a text element, without surrounding blanks and NULs; [] where absent or empty."""
        text = self.text(tag)
        return text.split("\\") if text else []

    def text(self, tag: int) -> str:
        """The value as one text, several values joined by a backslash; '' where absent."""
        raw = self.values.get(tag, b"")
        if raw.isascii() and _ESCAPE not in raw:  # Japanese in ISO 2022 is of 7 bits too
            text = raw.decode("ascii").strip(_BLANKS)
        else:
            names = self.values.get(CHARACTER_SET, b"").decode("ascii", "replace").split("\\")
            text = decode_text(raw, [name.strip(_BLANKS) for name in names]).strip(_BLANKS)
        if "\\" in text:
            text = "\\".join([part.strip(_BLANKS) for part in text.split("\\")])
        return text

    def decimals(self, tag: int, count: int) -> tuple[float, ...] | None:
        """Exactly `count` finite numbers written as text (DS, IS), or None."""
        return finite_numbers(self.texts(tag), count)

    def integer(self, tag: int) -> int | None:
        """One whole number written as text (IS), or None."""
        number = self.decimals(tag, 1)
        return int(number[0]) if number else None

    def short(self, tag: int, *, signed: bool = False) -> int | None:
        """One 16-bit number (US, SS), or None."""
        raw = self.values.get(tag, b"")
        if len(raw) != 2:
            return None
        return int.from_bytes(raw, "little" if self.little_endian else "big", signed=signed)


def finite_numbers(values: Any, count: int) -> tuple[float, ...] | None:
    """Values of an element as exactly `count` finite numbers, or None."""
    try:
        numbers = tuple(map(float, values))
    except (TypeError, ValueError):
        return None
    return numbers if len(numbers) == count and all(map(math.isfinite, numbers)) else None


def read_elements(path: Path, tags: Set[int]) -> Elements:
    """Cut a file into elements up to its pixels and keep those in `tags`.

    Args:
        path: a file, with or without the 128-byte preamble.
        tags: what is wanted of the data set, its character set among it.

    Returns:
        The elements.

    Raises:
        NotDicomError: it does not begin as a DICOM file does.
        EmptyFileError: and it is empty, or zeros stand there.
        OSError: it cannot be read.
        zlib.error: it is deflated and damaged.
    """
    with path.open("rb") as file:
        n_bytes = file.seek(0, io.SEEK_END)
        head = _Head(file, HEAD_BYTES)
        elements = _elements(head, tags, n_bytes)
        if elements.pixel_offset < 0 and not head.is_whole:
            head = _Head(file, MOST_HEADER_BYTES)
            elements = _elements(head, tags, n_bytes)
    return elements


def inflate(path: Path, start: int, n_bytes: int) -> bytes:
    """A part of a deflated file, as it would stand in the file inflated.

    Args:
        path: a file whose data set is deflated.
        start: first byte, at or after the beginning of the data set.
        n_bytes: length.

    Returns:
        The bytes; fewer where the file ends before.

    Raises:
        ValueError: the part begins or ends beyond `INFLATE_BYTES`.
        zlib.error: the file is damaged before its end.
    """
    if start + n_bytes > INFLATE_BYTES:
        raise ValueError(f"it would inflate to more than {INFLATE_BYTES >> 20} MB")
    with path.open("rb") as file:
        return _Head(file, start + n_bytes).content[start : start + n_bytes]


class _Head:
    """The beginning of a file, its data set inflated where the file is deflated.

    Attributes:
        content: the bytes, as they would be in a file that is not deflated.
        start: where the data set begins.
        syntax: transfer syntax UID, '' where the file meta information names none.
        media_sop_class: MediaStorageSOPClassUID, or ''.
        is_whole: nothing follows `content`.
    """

    def __init__(self, file: BinaryIO, limit: int) -> None:
        file.seek(0)
        content = file.read(limit)
        has_preamble = content[_PREAMBLE : _PREAMBLE + 4] == b"DICM"
        if not has_preamble and not any(content[:_PREAMBLE]):
            raise EmptyFileError
        if not has_preamble and (
            len(content) < 8 or struct.unpack("<H", content[:2])[0] not in _FIRST_GROUPS
        ):
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
        self.syntax = meta.get(_SYNTAX, "")
        self.media_sop_class = meta.get(_MEDIA_SOP_CLASS, "")
        self.is_whole = len(content) < limit
        if self.syntax == DeflatedExplicitVRLittleEndian:
            file.seek(self.start)
            inflater = zlib.decompressobj(-zlib.MAX_WBITS)
            inflated = inflater.decompress(file.read(), limit)
            content = content[: self.start] + inflated
            self.is_whole = len(inflated) < limit
        self.content = content


def _elements(head: _Head, tags: Set[int], n_bytes: int) -> Elements:
    """The elements of `tags` in the beginning of a file of `n_bytes`."""
    content, start = head.content, head.start
    little = head.syntax != ExplicitVRBigEndian
    # what the first element is written in counts for more than what the file says
    explicit = content[start + 4 : start + 6] in VRS
    pixel_offset = pixel_length = -1
    values = {}
    for tag, at, length in walk(content, start, explicit=explicit, little_endian=little):
        if tag == PIXEL_DATA:
            pixel_offset, pixel_length = at, -1 if length == UNDEFINED else length
            break
        if tag in tags and length == UNDEFINED:  # a sequence: that it is there
            values[tag] = b""
        elif tag in tags and at + length <= len(content):  # half a UID would be another one
            values[tag] = content[at : at + length]

    def sequences() -> Dataset:
        again = io.BytesIO(content)
        again.seek(start)
        return read_dataset(again, not explicit, little, stop_when=lambda tag, *_: tag == PIXEL_DATA)

    return Elements(
        head.syntax or ImplicitVRLittleEndian,
        head.media_sop_class,
        little,
        values,
        pixel_offset,
        pixel_length,
        n_bytes,
        sequences,
    )

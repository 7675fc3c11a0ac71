"""Header elements of one DICOM file, read by pydicom without Pixel Data.

In: a path and DICOM keywords. Out: `Elements`, the values of these keywords and the location of Pixel Data. A
deflated file is inflated in memory up to a limit.

Source: DICOM PS3.5 A.5 (deflated); PS3.10 7.1 (preamble, file meta information).
"""

import io
import math
import stat
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import pydicom
from pydicom.config import disable_value_validation
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import BaseTag, Tag
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

MOST_VALUE_BYTES = 1 << 25
"""Maximum size of one element of a header: the functional groups of a frame take about 1 KB."""
MOST_INFLATED_BYTES = 1 << 29
"""Maximum inflated size of a deflated file: 500 frames of 512 x 512 take half of it."""

_PREAMBLE = 132
_META = 144  # the preamble and element (0002,0000), whose value is the size of the other meta elements
_FIRST_GROUPS = {b"\x02\x00", b"\x08\x00"}  # of the first element in a file without preamble
_PIXEL_DATA = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
_MEDIA_SOP_CLASS = Tag("MediaStorageSOPClassUID")
_UNDEFINED = 0xFFFFFFFF
_BLANKS = " \0\t\r\n"


class NotDicomError(Exception):
    """The file is not a DICOM file (PS3.10)."""


class EmptyFileError(NotDicomError):
    """The file is empty or begins with zeros, as after a failed copy."""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress pydicom's validation and warnings: RSNA files have invalid UIDs (`ID_...`) throughout."""
    with warnings.catch_warnings(), disable_value_validation():
        warnings.simplefilter("ignore")
        yield


def open_dicom(path: Path) -> BinaryIO:
    """Open a DICOM file for reading; a deflated file as its inflated copy in memory.

    Raises:
        NotDicomError: the file is not regular (a FIFO or device can block), or does not begin like DICOM.
        EmptyFileError: the file is empty or begins with zeros.
        OSError: the file cannot be read.
        zlib.error, ValueError: the file is deflated and damaged, or too large.
    """
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise NotDicomError("it is not a regular file")
    if not status.st_size:
        raise EmptyFileError
    file = path.open("rb")
    head = file.read(io.DEFAULT_BUFFER_SIZE)
    file.seek(0)
    has_preamble = head[128:_PREAMBLE] == b"DICM"
    deflated = has_preamble and DeflatedExplicitVRLittleEndian.encode() in head[:1024]
    if has_preamble and not deflated:
        return file
    with file:
        if deflated:
            return _inflated(file)
        if not any(head[:128]):
            raise EmptyFileError
        if len(head) < 8 or head[:2] not in _FIRST_GROUPS:
            raise NotDicomError
        return path.open("rb")


def _inflated(file: BinaryIO) -> BinaryIO:
    """Copy of a deflated file as Explicit VR Little Endian."""
    head = file.read(_META)
    meta = head + file.read(int.from_bytes(head[-4:], "little"))
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    content = inflater.decompress(file.read(), MOST_INFLATED_BYTES)
    if inflater.unconsumed_tail:
        raise ValueError(f"it would inflate to more than {MOST_INFLATED_BYTES >> 20} MB")
    old, new = DeflatedExplicitVRLittleEndian.encode(), ExplicitVRLittleEndian.encode()
    return io.BytesIO(meta.replace(old, new.ljust(len(old), b"\0")) + content)


@dataclass(frozen=True)
class Elements:
    """Requested elements of one file.

    Attributes:
        syntax: transfer syntax UID; the DICOM default if the file names none (PS3.5 10.1).
        media_sop_class: MediaStorageSOPClassUID, or ''.
        values: keyword -> value as pydicom converts it; None if it cannot be converted.
        pixel_offset: offset of the Pixel Data value in the (inflated) file [bytes]; -1 without Pixel Data.
        pixel_length: length of the Pixel Data value [bytes]; -1 if undefined.
        n_bytes: size of the (inflated) file.
        has_character_set: whether SpecificCharacterSet has a value.
    """

    syntax: str
    media_sop_class: str
    values: dict[str, Any]
    pixel_offset: int
    pixel_length: int
    n_bytes: int
    has_character_set: bool

    def texts(self, keyword: str) -> list[str]:
        """Values of a text element without surrounding blanks and NULs; [] if absent or empty."""
        text = self.text(keyword)
        return text.split("\\") if text else []

    def text(self, keyword: str) -> str:
        """Value of a text element, several values joined by a backslash; '' if absent."""
        text = text_of(self.values.get(keyword))
        if not self.has_character_set and not text.isascii():
            with suppress(UnicodeError):  # undeclared UTF-8, which pydicom decodes as Latin-1
                text = text.encode("latin-1").decode()
        return text

    def leading(self, keyword: str) -> str:
        """Blanks before the value of a text element."""
        value = self.values.get(keyword)
        return value[: len(value) - len(value.lstrip(" "))] if isinstance(value, str) else ""

    def decimals(self, keyword: str, count: int) -> tuple[float, ...] | None:
        """Value of a numeric element as exactly `count` finite numbers, or None."""
        return _finite_numbers(self.values.get(keyword), count)

    def decimal(self, keyword: str) -> float | None:
        """Value of a numeric element with one finite number, or None."""
        return (self.decimals(keyword, 1) or (None,))[0]

    def integer(self, keyword: str) -> int | None:
        """Value of a numeric element with one number, or None."""
        number = self.decimal(keyword)
        return None if number is None else int(number)

    def short(self, keyword: str, *, signed: bool = False) -> int | None:
        """Value of an element with one 16-bit number, whichever sign its VR declares, or None."""
        value = self.values.get(keyword)
        if isinstance(value, bytes):  # VR 'US or SS' of implicit VR
            value = int.from_bytes(value, "little") if len(value) == 2 else None
        if not isinstance(value, int) or not -0x8000 <= value <= 0xFFFF:
            return None
        value &= 0xFFFF
        return value - 0x10000 if signed and value >= 0x8000 else value


def text_of(value: Any) -> str:
    """Text of one value, or several values joined by a backslash, without surrounding blanks and NULs."""
    values = value if isinstance(value, (list, tuple, pydicom.multival.MultiValue)) else [value]
    return "\\".join("" if item is None else str(item).strip(_BLANKS) for item in values)


def _finite_numbers(value: Any, count: int) -> tuple[float, ...] | None:
    """Convert the value of an element to exactly `count` finite numbers, or None."""
    try:
        values = [value] if isinstance(value, (int, float, str)) else list(value)
        numbers = tuple(map(float, values))
    except (TypeError, ValueError):
        return None
    return numbers if len(numbers) == count and all(map(math.isfinite, numbers)) else None


def read_elements(path: Path, keywords: Iterable[str]) -> Elements:
    """Read the elements `keywords` before Pixel Data; the preamble may be absent.

    Raises:
        NotDicomError, EmptyFileError, OSError, zlib.error, ValueError: see `open_dicom`.
        Exception: whatever pydicom raises on a damaged file.
    """
    tags = _tags(frozenset(keywords))
    with quiet(), open_dicom(path) as file:
        ds = pydicom.dcmread(
            file, stop_before_pixels=True, specific_tags=list(tags), defer_size=MOST_VALUE_BYTES, force=True
        )
        start = file.tell()
        element = file.read(12)  # tag, then VR, reserved bytes and length, or length only
        n_bytes = file.seek(0, io.SEEK_END)
        values = {tags[tag]: _value(ds, tag) for tag in ds.keys() & tags.keys() if _is_whole(ds, tag)}
    meta = ds.file_meta
    media_sop_class = meta.MediaStorageSOPClassUID if _is_whole(meta, _MEDIA_SOP_CLASS) else ""
    head = 12 if element[4:6].isalpha() else 8
    length = int.from_bytes(element[head - 4 : head], "little" if element[:1] == b"\xe0" else "big")
    return Elements(
        syntax=str(meta.get("TransferSyntaxUID") or ImplicitVRLittleEndian),
        media_sop_class=str(media_sop_class),
        values=values,
        pixel_offset=start + head if element[:4] in _PIXEL_DATA else -1,
        pixel_length=-1 if length == _UNDEFINED else length,
        n_bytes=n_bytes,
        has_character_set=bool(ds.get("SpecificCharacterSet")),
    )


@cache
def _tags(keywords: frozenset[str]) -> dict[BaseTag, str]:
    return {Tag(keyword): keyword for keyword in sorted(keywords)}


def _value(ds: Dataset, tag: BaseTag) -> Any:
    """Converted value of an element, None if pydicom cannot convert it."""
    try:
        return ds[tag].value
    except (ValueError, TypeError, OverflowError, NotImplementedError):
        return None


def _is_whole(ds: Dataset, tag: BaseTag) -> bool:
    """Whether an element was read, not cut off (half a UID is another) or too large."""
    if tag not in ds:
        return False
    raw = ds.get_item(tag, keep_deferred=True)
    if not isinstance(raw, RawDataElement) or not raw.length:
        return True
    return raw.value is not None and len(raw.value) == raw.length

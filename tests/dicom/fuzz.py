"""Broken DICOM files, thousands of them, and a watched reader: nothing may come of them but HU or a refusal.

In: a number of files and a seed. Out: a table of what became of them, and a folder with those that failed.

    python -m tests.dicom.fuzz --files 5000 --seed 0 --jobs 2
    python -m tests.dicom.fuzz --seed 0 --only 1234

File k is a valid file (`encodings.cases`, and the real files of ../shared/data where present) changed in one
way or several, by a generator seeded with (seed, k): it can be made again alone. It is read in a process that
is watched. Two outcomes are good: `read` (int16 (H, W) within the CT scale, for every slice) and
`refused` (a `DicomError` with a ledger code and one line that names the file). All others are failures:
another exception, values out of range, a dead process (decoders are written in C), too much time or memory
(`Limits`).

Memory is the growth of the process's peak resident size (VmHWM of proc(5), reset before each file). Besides,
RLIMIT_AS stops it at `Limits.addressed` above its start; a refusal that stems from that is a failure too.
"""

import argparse
import collections
import faulthandler
import functools
import importlib
import multiprocessing as mp
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from tests.dicom.encodings import Case, cases

MAX_FRAMES = 50
READER = "tests.dicom.fuzz:read_all"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
REAL = ("rsna_slices/*", "compressed_head_ct/*", "oddities/*", "ge_head_ct/*5*")
# One file in so many is a mutation of a real file: they are large, and the small ones find the same.
REAL_EVERY = 10

DEFLATED = b"1.2.840.10008.1.2.1.99"
BIG_ENDIAN = b"1.2.840.10008.1.2.2"
RLE = b"1.2.840.10008.1.2.5"
# What follows 1.2.840.10008.1.2 in the UIDs of transfer syntaxes, known and unknown
TAILS = (
    ".1 .1.99 .2 .4.50 .4.51 .4.57 .4.70 .4.80 .4.81 .4.90 .4.91 .4.92 .4.102 .4.201 .4.202 .4.203 .5 .6.1"
)
SYNTAXES = (
    *(f"1.2.840.10008.1.2{tail}".encode() for tail in ("", *TAILS.split(), ".99", ".1.98", ".8.1")),
    *(b"", b"1.2.3", b"9" * 64, b"1.2.840.113619.5.2", b"\xff\xfe", b"LittleEndian"),
)
LONG_VRS = tuple(b"OB OD OF OL OV OW SQ SV UC UN UR UT UV".split())
SHORT_VRS = tuple(b"AE AS AT CS DA DS DT FD FL IS LO LT PN SH SL SS ST TM UI UL US".split())
UNDEFINED = 0xFFFFFFFF
J2K_START = b"\xffO\xffQ"
JPEG_FRAMES = (0xC0, 0xC1, 0xC3, 0xF7)
JPEG_MARKERS = (*JPEG_FRAMES, 0xC4, 0xDA, 0xDB)
PIXEL_DATA = 0x7FE00010
ITEM, ITEM_END, SEQUENCE_END = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD
ROWS, COLUMNS = 0x00280010, 0x00280011
# Samples, rows, columns, bits and sign: US elements that decide how much is read
SIZES = (0x00280002, ROWS, COLUMNS, 0x00280100, 0x00280101, 0x00280102, 0x00280103)
NUMBER_OF_FRAMES = 0x00280008
# Thickness, position, orientation, spacing, padding, rescale and the like: DS, IS and US elements
NUMBERS = (
    *(0x00180050, 0x00200013, 0x00200032, 0x00200037, 0x00280030),
    *(NUMBER_OF_FRAMES, 0x00280120, 0x00280121, 0x00281052, 0x00281053),
)
BAD_NUMBERS = (
    *b"NaN nan inf -inf Infinity 1e400 -1e400 1e-400 1e308 -1e308 0 -0 -1 1e5 ,5 1,5 0x10 1_0 --1 -".split(),
    *b"\\ \\\\\\ 1\\2 1\\2\\3\\4 nan\\nan\\nan inf\\0\\0 1\\0\\0\\0\\nan\\0 0\\0 -1\\-1 1e308\\1e9".split(),
    *b"65535 65536 2147483647 2147483648 4294967295 4294967296 99999999999999999999 1.5 -3".split(),
    *(b"", b" ", b"\0\0", b"\n", "１２".encode(), b"\xbd", b"\xff\xfe", b"9" * 5000, b"1\\" * 30000),
)
CHARSETS = (
    *b"ISO_IR_192 GB18030 GBK latin1 NONSENSE utf-7 idna hex zlib_codec rot13 undefined".split(),
    *(b"ISO_IR 192", b"ISO_IR 100", b"ISO_IR 6", b"ISO 2022 IR 87", b"\\ISO 2022 IR 149", b"\\" * 40, b"\0"),
    *(b"ISO 2022 IR 87\\ISO_IR 192", b"punycode", b"..\\..", b"ISO_IR 13" * 9),
)


# Where things are in a file


@dataclass(frozen=True)
class Element:
    """One element of a file: offsets in bytes; `vr` is empty where VRs are implicit."""

    tag: int
    vr: bytes
    start: int
    length_at: int
    length_size: int
    value_at: int
    length: int

    @property
    def end(self) -> int:
        return self.value_at + (0 if self.length == UNDEFINED else self.length)


@dataclass
class Layout:
    """A file taken apart: its bytes with the data set inflated, where the data set begins, its elements."""

    flat: bytes
    syntax: bytes = b""
    body: int = 0
    order: str = "<"
    explicit: bool = True
    elements: list[Element] = field(default_factory=list)

    def find(self, *tags: int) -> list[Element]:
        return [element for element in self.elements if element.tag in tags]

    def pixels_at(self) -> int:
        """Where the element Pixel Data starts; the end of the file where there is none."""
        found = self.find(PIXEL_DATA)
        return found[0].start if found else len(self.flat)


def take_apart(content: bytes) -> Layout:
    """Find the elements of a file as far as it can be followed; raises on no content whatever."""
    layout = Layout(content)
    if content[128:132] == b"DICM":
        layout.elements = list(_walk(content, 132, "<", explicit=True, group=2))
        layout.body = max((element.end for element in layout.elements), default=132)
        for element in layout.find(0x00020010):
            layout.syntax = content[element.value_at : element.end].strip(b"\0 ")
    if layout.syntax == DEFLATED:
        try:
            layout.flat = content[: layout.body] + zlib.decompressobj(-15).decompress(
                content[layout.body :], 1 << 24
            )
        except zlib.error:
            return layout
    layout.order = ">" if layout.syntax == BIG_ENDIAN else "<"
    layout.elements += _walk_body(layout)
    return layout


def _walk_body(layout: Layout) -> Iterator[Element]:
    """The elements of the data set; it has explicit VRs where its first element has one."""
    vr = layout.flat[layout.body + 4 : layout.body + 6]
    layout.explicit = vr.isalpha() and vr.isupper()
    return _walk(layout.flat, layout.body, layout.order, explicit=layout.explicit)


def _walk(data: bytes, at: int, order: str, *, explicit: bool, group: int | None = None) -> Iterator[Element]:
    """The elements from `at` on, those inside a sequence after it; stops where it loses its way."""
    in_pixels = False
    while at + 8 <= len(data):
        high, low = struct.unpack_from(f"{order}HH", data, at)
        tag = high << 16 | low
        if group is not None and high != group:
            return
        vr, length_at, size = b"", at + 4, 4
        if explicit and high != 0xFFFE:
            vr = data[at + 4 : at + 6]
            length_at, size = (at + 8, 4) if vr in LONG_VRS else (at + 6, 2)
        if length_at + size > len(data):
            return
        (length,) = struct.unpack_from(f"{order}{'I' if size == 4 else 'H'}", data, length_at)
        element = Element(tag, vr, at, length_at, size, length_at + size, length)
        yield element
        in_pixels |= tag == PIXEL_DATA
        inside = data[element.value_at : element.value_at + 4] in (b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00")
        step_in = (tag == ITEM and not in_pixels) or (inside and tag != ITEM)
        at = element.value_at if step_in else element.end


# Ways to break a file. Each takes a generator and a file taken apart, and returns the new `flat`, or None
# where it does not apply.

Mutation = Callable[[random.Random, Layout], bytes | None]


def _put(data: bytes, at: int, new: bytes) -> bytes:
    """`data` with the bytes from `at` on written over."""
    return data[:at] + new + data[at + len(new) :]


def _flip(rng: random.Random, data: bytes, start: int, end: int) -> bytes | None:
    if end <= start:
        return None
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        changed[rng.randrange(start, end)] = rng.choice((rng.randrange(256), 0, 255))
    return bytes(changed)


def flip_any(rng: random.Random, layout: Layout) -> bytes | None:
    return _flip(rng, layout.flat, 0, len(layout.flat))


def flip_header(rng: random.Random, layout: Layout) -> bytes | None:
    return _flip(rng, layout.flat, 128, layout.pixels_at())


def truncate(rng: random.Random, layout: Layout) -> bytes | None:
    return layout.flat[: rng.randrange(len(layout.flat))]


def truncate_pixels(rng: random.Random, layout: Layout) -> bytes | None:
    start = layout.pixels_at()
    return layout.flat[: rng.randrange(start, len(layout.flat))] if start < len(layout.flat) else None


def change_length(rng: random.Random, layout: Layout) -> bytes | None:
    element = rng.choice(layout.elements)
    top = 0xFFFF if element.length_size == 2 else 0xFFFFFFFF
    near = element.length + rng.choice((-2, -1, 1, 2))
    length = rng.choice((0, 1, 2, near, near, top, top - 1, top // 2, len(layout.flat), rng.randrange(top)))
    code = f"{layout.order if element.start >= layout.body else '<'}{'H' if top == 0xFFFF else 'I'}"
    return _put(layout.flat, element.length_at, struct.pack(code, length & top))


def change_vr(rng: random.Random, layout: Layout) -> bytes | None:
    elements = [element for element in layout.elements if element.vr]
    if not elements:
        return None
    vr = rng.choice((*LONG_VRS, *SHORT_VRS, b"??", b"\0\0", b"ox", b"\xff\xff"))
    return _put(layout.flat, rng.choice(elements).start + 4, vr)


def change_tag(rng: random.Random, layout: Layout) -> bytes | None:
    element, other = rng.choice(layout.elements), rng.choice(layout.elements)
    delimiters = (ITEM, ITEM_END, SEQUENCE_END, 0xFFFFFFFF, 0, 0x00020010, PIXEL_DATA, 0x7FE00008, 0x7FE00009)
    tag = rng.choice((other.tag, rng.choice(delimiters), rng.randrange(1 << 32)))
    return _put(layout.flat, element.start, struct.pack(f"{layout.order}HH", tag >> 16, tag & 0xFFFF))


def _with_value(layout: Layout, element: Element, value: bytes) -> bytes:
    """The element's value replaced, padded to an even length, its length set right."""
    value += b" " * (len(value) % 2)
    if element.length_size == 2:
        value = value[:0xFFFE]
    order = layout.order if element.start >= layout.body else "<"
    length = struct.pack(f"{order}{'H' if element.length_size == 2 else 'I'}", len(value))
    return (
        layout.flat[: element.length_at]
        + length
        + layout.flat[element.length_at + len(length) : element.value_at]
        + value
        + layout.flat[element.end :]
    )


def change_value(rng: random.Random, layout: Layout) -> bytes | None:
    element = rng.choice([element for element in layout.elements if element.tag != PIXEL_DATA])
    length = rng.choice((element.length & 0xFF, 1, 2, 7, 300, 70_000))
    value = rng.choice(
        (rng.randbytes(length), b"\0" * length, b"\xff" * length, b"\\" * length, b"A" * length)
    )
    return _with_value(layout, element, value)


def change_number(rng: random.Random, layout: Layout) -> bytes | None:
    elements = layout.find(*NUMBERS)
    return _with_value(layout, rng.choice(elements), rng.choice(BAD_NUMBERS)) if elements else None


def change_charset(rng: random.Random, layout: Layout) -> bytes | None:
    """An odd Specific Character Set before the first element, and bytes outside ASCII in a text."""
    texts = layout.find(0x00100010, 0x00100020, 0x0008103E, 0x00080008)
    flat = layout.flat
    if texts:
        value = rng.choice(
            (rng.randbytes(20), "頭部ＣＴ".encode("iso2022_jp"), "Köpf".encode(), b"\x1b$)C\xb1\xe8")
        )
        flat = _with_value(layout, rng.choice(texts), value)
    return (
        flat[: layout.body] + _element(layout, 0x00080005, b"CS", rng.choice(CHARSETS)) + flat[layout.body :]
    )


def _element(layout: Layout, tag: int, vr: bytes, value: bytes, *, length: int | None = None) -> bytes:
    """An element as the file's data set would have it."""
    value += b" " * (len(value) % 2)
    head = struct.pack(f"{layout.order}HH", tag >> 16, tag & 0xFFFF)
    size = len(value) if length is None else length
    if layout.explicit and tag >> 16 != 0xFFFE:
        head += vr
        if vr not in LONG_VRS:
            return head + struct.pack(f"{layout.order}H", size & 0xFFFF) + value
        head += b"\0\0"
    return head + struct.pack(f"{layout.order}I", size) + value


def change_size(rng: random.Random, layout: Layout) -> bytes | None:
    """Rows, Columns, bits and the like; NumberOfFrames is a text."""
    if rng.random() < 0.2:
        count = str(rng.choice((0, -1, 2, 4, 1000, 65536, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 63))).encode()
        if found := layout.find(NUMBER_OF_FRAMES):
            return _with_value(layout, found[0], count)
        at = next((element.start for element in layout.find(0x00280010)), layout.body)
        return layout.flat[:at] + _element(layout, NUMBER_OF_FRAMES, b"IS", count) + layout.flat[at:]
    flat = layout.flat
    for element in rng.sample(layout.find(*SIZES), k=min(rng.choice((1, 1, 2, 3)), len(layout.find(*SIZES)))):
        value = rng.choice((0, 1, 2, 7, 8, 12, 15, 16, 17, 24, 32, 64, 255, 4096, 32767, 32768, 65535))
        flat = _put(flat, element.value_at, struct.pack(f"{layout.order}H", value))
    return flat


def _streams(layout: Layout) -> list[Element]:
    """The items of encapsulated pixels, the offset table first."""
    start = layout.pixels_at()
    return [element for element in layout.find(ITEM) if element.start > start]


def _size_fields(layout: Layout) -> list[tuple[int, str]]:
    """Where code streams say sizes, each with the struct code of the number."""
    fields: list[tuple[int, str]] = []
    for item in _streams(layout)[1:]:
        stream, start = layout.flat[item.value_at : item.end], item.value_at
        if layout.syntax == RLE:  # PS3.5 G.5
            fields += [(start + 4 * k, "<I") for k in range(4)]
        elif stream[:4] == J2K_START:  # T.800 A.5.1 SIZ, A.6.1 COD, A.4.2 SOT
            fields += [(start + 8 + 4 * k, ">I") for k in range(8)]
            fields += [(start + k, ">H") for k in (4, 6, 40)]
            fields += [(start + k, ">B") for k in (42, 43, 44)]
            if (cod := stream.find(b"\xffR")) > 0:
                fields += [(start + cod + k, ">B") for k in range(2, 14)]
            if (sot := stream.find(b"\xff\x90")) > 0:
                fields += [(start + sot + 4, ">H"), (start + sot + 6, ">I")]
        elif stream[:2] == b"\xff\xd8":  # T.81 B.2.2 to B.2.4: each segment's length and first bytes
            for marker in JPEG_MARKERS:
                if (at := stream.find(bytes((0xFF, marker)))) > 0:
                    is_frame = marker in JPEG_FRAMES
                    codes = ">H >B >H >H >B >B >B" if is_frame else ">H >B >B >B >B >B >B >B"
                    place = start + at + 2
                    for code in codes.split():
                        fields.append((place, code))
                        place += struct.calcsize(code)
    return fields


def change_stream_size(rng: random.Random, layout: Layout) -> bytes | None:
    """Numbers in the headers of code streams: sizes, precision, components, tiles, tables, offsets."""
    fields, flat = _size_fields(layout), layout.flat
    if not fields:
        return None
    for at, code in rng.sample(fields, k=min(len(fields), rng.choice((1, 1, 2)))):
        top = (1 << (8 * struct.calcsize(code))) - 1
        value = rng.choice(
            (0, 1, 2, 3, 8, 12, 16, 17, 255, 4096, top, top - 1, top // 2, top // 2 + 1, rng.randrange(top))
        )
        flat = _put(flat, at, struct.pack(code, value & top))
    return flat


def change_sizes_alike(rng: random.Random, layout: Layout) -> bytes | None:
    """Header and code streams agree on a size that the pixels do not have."""
    rows, columns = (rng.choice((1, 2, 23, 25, 48, 512, 3000, 12_000, 32_768, 65_535)) for _ in range(2))
    flat = layout.flat
    for tag, value in ((ROWS, rows), (COLUMNS, columns)):
        for element in layout.find(tag):
            flat = _put(flat, element.value_at, struct.pack(f"{layout.order}H", value))
    for item in _streams(layout)[1:]:
        stream = layout.flat[item.value_at : item.end]
        if stream[:4] == J2K_START:
            flat = _put(flat, item.value_at + 8, struct.pack(">II", columns, rows))
            if rng.random() < 0.5:  # one tile, or as many as the old size asks for
                flat = _put(flat, item.value_at + 24, struct.pack(">II", columns, rows))
        for marker in JPEG_FRAMES:
            if stream[:2] == b"\xff\xd8" and (at := stream.find(bytes((0xFF, marker, 0, 11)))) > 0:
                flat = _put(flat, item.value_at + at + 5, struct.pack(">HH", rows, columns))
    return flat


def change_stream(rng: random.Random, layout: Layout) -> bytes | None:
    """Bytes of code streams, more often near their beginning."""
    items = [item for item in _streams(layout) if item.length not in (0, UNDEFINED)]
    if not items:
        return None
    item = rng.choice(items)
    end = min(item.end, len(layout.flat))
    return _flip(rng, layout.flat, item.value_at, rng.choice((end, min(end, item.value_at + 200))))


def change_items(rng: random.Random, layout: Layout) -> bytes | None:
    """The encapsulation: offset table, items and their lengths, the delimiter."""
    items = _streams(layout)
    if len(items) < 2:
        return None
    flat, table, item = layout.flat, items[0], rng.choice(items[1:])
    kind = rng.randrange(7)
    if kind == 0:  # other offsets
        offsets = [
            rng.choice((0, 1, 8, 0xFFFFFFFF, 1 << 31, rng.randrange(5000)))
            for _ in range(rng.choice((1, 3, 2000)))
        ]
        return _with_value(layout, table, struct.pack(f"<{len(offsets)}I", *offsets))
    if kind == 1:  # no table, no frames, or all of it twice
        return flat[: table.start] + flat[rng.choice((item.start, item.end, table.start)) :]
    if kind == 2:  # one frame in many small items
        step = rng.choice((1, 2, 64))
        pieces = [flat[at : at + step] for at in range(item.value_at, item.end, step)]
        return flat[: item.start] + b"".join(_item(piece) for piece in pieces) + flat[item.end :]
    if kind == 3:  # empty items
        return flat[: item.start] + _item(b"") * rng.choice((1, 1000, 100_000)) + flat[item.start :]
    if kind == 4:  # an item inside an item
        return flat[: item.start] + _item(flat[item.start : item.end]) + flat[item.end :]
    if kind == 5:
        return _put(
            flat,
            item.length_at,
            struct.pack("<I", rng.choice((0, 1, item.length * 2, UNDEFINED, 0x7FFFFFFF))),
        )
    return flat[: item.end] + rng.choice((b"", b"\0" * 9, _item(b"\0" * 8) * 5, rng.randbytes(50)))


def _item(content: bytes) -> bytes:
    return struct.pack("<HHI", 0xFFFE, 0xE000, len(content)) + content


def nest(rng: random.Random, layout: Layout) -> bytes | None:
    """A sequence in a sequence in a sequence ..., before the pixels or instead of all that follows."""
    depth = rng.choice((1, 30, 500, 1000, 5000, 60_000))
    tag = rng.choice((0x00081140, 0x52009229, 0x52009230, 0x00091010, 0x0008103F))
    if rng.random() < 0.6:
        opening = _element(layout, tag, b"SQ", b"", length=UNDEFINED) + _element(
            layout, ITEM, b"", b"", length=UNDEFINED
        )
        closing = _element(layout, ITEM_END, b"", b"") + _element(layout, SEQUENCE_END, b"", b"")
        chain = opening * depth + rng.choice((closing * depth, closing * (depth // 2), b""))
    else:
        chain, head = b"", len(_element(layout, tag, b"SQ", b""))
        parts = []
        for level in range(depth):  # lengths from the inside out, joined from the outside in
            inner = level * (head + 8)
            parts.append(_element(layout, ITEM, b"", b"", length=inner))
            parts.append(_element(layout, tag, b"SQ", b"", length=inner + 8))
        chain = b"".join(reversed(parts))
    at = rng.choice((layout.body, layout.pixels_at()))
    return layout.flat[:at] + chain + rng.choice((layout.flat[at:], b""))


def swap_elements(rng: random.Random, layout: Layout) -> bytes | None:
    first, second = sorted(rng.sample(layout.elements, k=2), key=lambda element: element.start)
    if first.end > second.start or second.end > len(layout.flat):
        return None
    flat = layout.flat
    one, two = flat[first.start : first.end], flat[second.start : second.end]
    return flat[: first.start] + two + flat[first.end : second.start] + one + flat[second.end :]


def duplicate_element(rng: random.Random, layout: Layout) -> bytes | None:
    element = rng.choice(layout.elements)
    at = rng.choice((element.start, layout.pixels_at(), layout.body, len(layout.flat)))
    copy = layout.flat[element.start : element.end] * rng.choice((1, 2, 50))
    return layout.flat[:at] + copy + layout.flat[at:]


def remove_element(rng: random.Random, layout: Layout) -> bytes | None:
    element = rng.choice(layout.elements)
    return layout.flat[: element.start] + layout.flat[element.end :]


def empty_value(rng: random.Random, layout: Layout) -> bytes | None:
    return _with_value(layout, rng.choice(layout.elements), b"")


def change_syntax(rng: random.Random, layout: Layout) -> bytes | None:
    found = layout.find(0x00020010)
    return _with_value(layout, found[0], rng.choice(SYNTAXES)) if found else None


def swap_bytes(rng: random.Random, layout: Layout) -> bytes | None:
    """The order of bytes turned in all of the data set, or in its pixels only."""
    start = rng.choice((layout.body, layout.pixels_at()))
    body = layout.flat[start:]
    return layout.flat[:start] + np.frombuffer(body[: len(body) // 2 * 2], np.uint16).byteswap().tobytes()


def noise(rng: random.Random, layout: Layout) -> bytes | None:
    """Random bytes after something valid."""
    start = rng.choice(
        (0, 128, 132, layout.body, layout.body + 8, layout.pixels_at(), layout.pixels_at() + 12)
    )
    return layout.flat[:start] + rng.randbytes(rng.choice((0, 1, 3, 100, 5000)))


def several(rng: random.Random, layout: Layout) -> bytes | None:
    """Two to four of the others, one after the other."""
    flat = layout.flat
    for _ in range(rng.randint(2, 4)):
        if layout.syntax == DEFLATED:  # `flat` is inflated: its data set stays where it is
            fresh = Layout(flat, layout.syntax, layout.body, layout.order)
            fresh.elements = list(_walk_body(fresh))
        else:
            fresh = take_apart(flat)
        if len(fresh.elements) > 1:
            flat = rng.choice(SIMPLE)(rng, fresh) or flat
    return flat


SIMPLE: tuple[Mutation, ...] = (
    *(flip_any, flip_header, truncate, truncate_pixels, change_length, change_vr, change_tag, change_value),
    *(change_number, change_charset, change_size, change_stream_size, change_sizes_alike, change_stream),
    *(change_items, nest, swap_elements, duplicate_element, remove_element, empty_value, change_syntax),
    *(swap_bytes, noise),
)


# Whole files that are no change of one file


def splice(rng: random.Random, one: bytes, other: bytes) -> bytes:
    """The beginning of one file and the end of another."""
    return one[: rng.randrange(len(one))] + other[rng.randrange(len(other)) :]


def bomb(rng: random.Random, content: bytes) -> bytes:
    """A deflated file that inflates to far more than it is: zeros before or after the pixels."""
    layout = take_apart(content)
    millions = rng.choice((16, 256, 1024, 4000))
    flat = layout.flat
    at = rng.choice((len(flat), layout.pixels_at()))
    head = _element(layout, 0x7FDF1010 if at < len(flat) else 0xFFFCFFFC, b"OB", b"", length=millions << 20)
    deflater = zlib.compressobj(9, wbits=-15)
    before = deflater.compress(flat[layout.body : at] + head) + deflater.flush(zlib.Z_FULL_FLUSH)
    after = zlib.compressobj(9, wbits=-15)
    return flat[: layout.body] + before + _zeros() * millions + after.compress(flat[at:]) + after.flush()


@functools.cache
def _zeros() -> bytes:
    """A MiB of zeros, deflated, as a piece that may be repeated in the middle of a stream."""
    deflater = zlib.compressobj(9, wbits=-15)
    return deflater.compress(bytes(1 << 20)) + deflater.flush(zlib.Z_FULL_FLUSH)


# The corpus

KINDS = (*(mutation.__name__ for mutation in (*SIMPLE, several)), "splice", "bomb", "unchanged")


@dataclass(frozen=True)
class Mutant:
    """File `number` of a corpus: how it was made, from which valid file, and its bytes."""

    number: int
    kind: str
    origin: str
    content: bytes


class Corpus:
    """Broken files by number; the same seed and the same valid files give the same bytes.

    Args:
        seed: of the whole corpus.
        real: mutate real files too, where they are present.
    """

    def __init__(self, seed: int, *, real: bool = True) -> None:
        self.seed = seed
        self.made = cases()
        paths = sorted(path for pattern in REAL for path in SHARED.glob(pattern)) if real else []
        self.real = [Case(f"{path.parent.name}/{path.name}", path.read_bytes(), ()) for path in paths]
        self._layouts: dict[str, Layout] = {}

    def __getitem__(self, number: int) -> Mutant:
        rng = random.Random(f"{self.seed}/{number}")
        kind = KINDS[number % len(KINDS)]
        if kind == "bomb":
            origins = [case for case in self.made if "deflated" in case.name]
            origin = rng.choice(origins)
            return Mutant(number, kind, origin.name, bomb(rng, origin.content))
        while True:
            origin = rng.choice(self.real if self.real and rng.randrange(REAL_EVERY) == 0 else self.made)
            if kind == "unchanged":
                return Mutant(number, kind, origin.name, origin.content)
            if kind == "splice":
                other = rng.choice(self.made)
                content = splice(rng, origin.content, other.content)
                return Mutant(number, kind, f"{origin.name} + {other.name}", content)
            layout = self._layouts.setdefault(origin.name, take_apart(origin.content))
            if len(layout.elements) < 2:
                continue
            mutation = several if kind == "several" else next(m for m in SIMPLE if m.__name__ == kind)
            flat = mutation(rng, layout)
            if flat is not None and flat != layout.flat:
                body = layout.body
                deflate = layout.syntax == DEFLATED and flat[:body] == layout.flat[:body]
                content = flat[:body] + zlib.compress(flat[body:], 1, -15) if deflate else flat
                return Mutant(number, kind, origin.name, content)


# The reader, and what it may do


@dataclass(frozen=True)
class Limits:
    """What one file may cost.

    Args:
        seconds: of processor time, so that a busy machine does not count.
        patience: seconds by the clock, for a reader that waits.
        memory: bytes, growth of the peak resident size.
        addressed: bytes, growth of the address space.
    """

    seconds: float = 5.0
    patience: float = 60.0
    memory: int = 1 << 30
    addressed: int = 3 << 30


def read_all(path: Path) -> Iterator[tuple[int, int, np.ndarray] | DicomError]:
    """Every slice of a file: rows and columns of its header with its HU, or its refusal."""
    from ich_mil.dicom.header import read_headers
    from ich_mil.dicom.read import read_slice

    for header in read_headers(path)[:MAX_FRAMES]:
        try:
            hu, _ = read_slice(header)
        except DicomError as error:
            yield error
        else:
            yield header.rows, header.columns, hu


@dataclass(frozen=True)
class Result:
    """What became of one file.

    Args:
        outcome: `read` or `refused`; else a failure: `exception`, `values`, `refusal` (one that says too
            little), `memory`, `slow`, `dead`.
        detail: of a refusal its code; of a failure what is needed to find it.
        seconds: of processor time.
        peak: bytes, growth of the peak resident size.
        warnings: how many Python warnings came out.
        printed: bytes that decoders wrote to stdout and stderr.
    """

    outcome: str
    detail: str
    seconds: float = 0.0
    peak: int = 0
    warnings: int = 0
    printed: int = 0

    @property
    def failed(self) -> bool:
        return self.outcome not in ("read", "refused")


def examine(reader: Callable[[Path], Iterator[Any]], path: Path, limits: Limits) -> Result:
    """Read one file in this process and judge what comes of it."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before, printed, started = _status("VmRSS"), os.fstat(2).st_size, time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome, detail = _judge(reader, path)
    seconds, peak = time.process_time() - started, max(_status("VmHWM") - before, 0)
    if outcome in ("read", "refused") and peak > limits.memory:
        outcome, detail = "memory", f"peak {peak >> 20} MiB, though {outcome}: {detail}"
    elif outcome in ("read", "refused") and seconds > limits.seconds:
        outcome, detail = "slow", f"{seconds:.1f} s, though {outcome}: {detail}"
    return Result(outcome, detail, seconds, peak, len(caught), os.fstat(2).st_size - printed)


def _judge(reader: Callable[[Path], Iterator[Any]], path: Path) -> tuple[str, str]:
    """Outcome and detail; the worst of a file's slices counts, and a refusal of all of them is a refusal."""
    judged = []
    try:
        for slice_ in reader(path):
            judged.append(
                _judge_refusal(slice_, path) if isinstance(slice_, DicomError) else _judge_values(*slice_)
            )
    except DicomError as error:
        judged.append(_judge_refusal(error, path))
    except BaseException as error:
        name = "memory" if isinstance(error, MemoryError) else "exception"
        return name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]} at {_place(error)}"
    if not judged:
        return "values", "no slice and no refusal"
    return next((one for one in judged if one[0] not in ("read", "refused")), judged[0])


def _judge_values(rows: int, columns: int, hu: np.ndarray) -> tuple[str, str]:
    if not isinstance(hu, np.ndarray) or hu.dtype != np.int16 or hu.shape != (rows, columns) or hu.size == 0:
        return (
            "values",
            f"{getattr(hu, 'dtype', type(hu))} {getattr(hu, 'shape', '')}, header {rows} x {columns}",
        )
    if hu.min() < -1024 or hu.max() > 3095:
        return "values", f"HU from {hu.min()} to {hu.max()}"
    return "read", ""


def _judge_refusal(error: DicomError, path: Path) -> tuple[str, str]:
    message, cause = str(error), error.__cause__ or error.__context__
    while cause is not None:
        if isinstance(cause, MemoryError):
            return "memory", f"more was asked for than may be addressed, then refused: {message[:200]}"
        cause = cause.__cause__ or cause.__context__
    if error.code not in set(Code):
        return "refusal", f"code {error.code!r} is none of the ledger's"
    if not message.startswith(f"{path}: ") or len(message.splitlines()) != 1 or len(message) > 1000:
        return "refusal", f"message is not one line that names the file: {message[:200]!r}"
    return "refused", str(error.code)


def _place(error: BaseException) -> str:
    """File and line where an error came up, our own file last where the two differ."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(reversed(frames[-3:]))


def _status(name: str) -> int:
    """A size of this process, bytes (proc(5), status)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/self/status has no {name}")


def _serve(connection: Connection, reader: str, limits: Limits, printed: Path) -> None:
    """The watched process: reads the files whose paths come in, sends a `Result` for each."""
    file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable(2)  # a crash says where in Python the decoder was called
    module, _, name = reader.partition(":")
    function = getattr(importlib.import_module(module), name)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _status("VmSize") + limits.addressed
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    connection.send("ready")
    while (path := connection.recv()) is not None:
        connection.send(examine(function, path, limits))


# The watch


class Watched:
    """One process that reads, killed when it takes too long and started anew when it dies."""

    def __init__(self, reader: str, limits: Limits, folder: Path) -> None:
        self.reader, self.limits, self.folder = reader, limits, folder
        self.context = mp.get_context("forkserver")
        self.context.set_forkserver_preload(["ich_mil.dicom.read", "gdcm", "jpeg_ls"])
        self.mutant: Mutant | None = None
        self.read: list[int] = []  # numbers read by this process, for a crash that comes late
        self._start()

    def _start(self) -> None:
        self.connection, theirs = self.context.Pipe()
        self.printed = Path(tempfile.mkstemp(dir=self.folder, suffix=".txt")[1])
        self.process = self.context.Process(
            target=_serve, args=(theirs, self.reader, self.limits, self.printed), daemon=True
        )
        self.process.start()
        theirs.close()
        if not self.connection.poll(60) or self.connection.recv() != "ready":
            raise RuntimeError(f"the reading process does not start: {self.printed.read_text()[-500:]}")
        self.read = []

    def give(self, mutant: Mutant) -> None:
        """Have the process read a file."""
        self.mutant, self.path = mutant, self.folder / f"{mutant.number}.dcm"
        self.path.write_bytes(mutant.content)
        self.given, self.used = time.perf_counter(), self._processor_seconds()
        self.read.append(mutant.number)
        self.connection.send(self.path)

    def take(self) -> Result | None:
        """The result of the file given, or None while there is none and time is left."""
        result = None
        try:
            if self.connection.poll(0):
                result = self.connection.recv()
            elif (seconds := self._processor_seconds() - self.used) > self.limits.seconds:
                result = Result("slow", f"killed after {seconds:.1f} s of processor time", seconds)
                self.restart()
            elif time.perf_counter() - self.given > self.limits.patience:
                result = Result("slow", f"killed after {self.limits.patience:g} s by the clock", seconds)
                self.restart()
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            name = signal.Signals(-code).name if code < 0 else f"exit {code}"
            result = Result("dead", f"{name}: {_last_words(self.printed.read_text(errors='replace'))}")
            self.restart()
        if result is not None:
            self.path.unlink()
            self.mutant = None
        return result

    def _processor_seconds(self) -> float:
        """What the process has used so far (proc(5), stat: utime and stime); 0 where it is gone."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def restart(self) -> None:
        """A fresh process instead of this one."""
        self.stop()
        self._start()

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.printed.unlink(missing_ok=True)


def _last_words(text: str) -> str:
    """What a dead process printed last, and the innermost lines of Python it was in."""
    before, _, after = text.partition("Fatal Python error")
    said = [line for line in before.splitlines() if line.strip()][-3:]
    places = [line.strip() for line in after.splitlines() if line.startswith("  File")][:4]
    return " | ".join(said + places)[:700]


def run(
    corpus: Corpus | Sequence[Mutant],
    numbers: Sequence[int],
    *,
    jobs: int = 1,
    reader: str = READER,
    limits: Limits = Limits(),
    tell: Callable[[Mutant, Result], None] = lambda mutant, result: None,
) -> dict[int, Result]:
    """Read files of a corpus under watch.

    A file that kills its process is read again by a fresh one: a crash that does not come again was prepared
    by an earlier file, and the result names those it may be.

    Args:
        corpus: the files by number.
        numbers: which of them.
        jobs: processes that read.
        reader: `module:function` of what reads, as `read_all` does.
        limits: of one file.
        tell: called with each result as it comes.

    Returns:
        The result of each number.
    """
    results: dict[int, Result] = {}
    with tempfile.TemporaryDirectory() as name:
        watched = [Watched(reader, limits, Path(name)) for _ in range(min(jobs, max(len(numbers), 1)))]
        todo = iter(numbers)
        try:
            for one in watched:
                if (number := next(todo, None)) is not None:
                    one.give(corpus[number])
            while busy := [one for one in watched if one.mutant is not None]:
                wait([one.connection for one in busy], timeout=0.2)
                for one in busy:
                    mutant, before = one.mutant, one.read[-30:-1]
                    assert mutant is not None
                    if (result := one.take()) is None:
                        continue
                    if result.outcome == "dead":
                        result = _again(one, mutant, result, before)
                    results[mutant.number] = result
                    tell(mutant, result)
                    if (number := next(todo, None)) is not None:
                        one.give(corpus[number])
        finally:
            for one in watched:
                one.stop()
    return dict(sorted(results.items()))


def _again(one: Watched, mutant: Mutant, first: Result, before: list[int]) -> Result:
    """Read a file that killed its process once more, by the fresh one alone."""
    one.give(mutant)
    while (second := one.take()) is None:
        wait([one.connection], timeout=0.2)
    if second.outcome == "dead":
        return second
    return Result("dead", f"only after other files ({before}): {first.detail}")


def report(corpus: Corpus | Sequence[Mutant], results: dict[int, Result]) -> str:
    """The table: outcomes by kind of change, refusals by code, failures, and the largest of all."""
    by_kind: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    codes: collections.Counter[str] = collections.Counter()
    for number, result in results.items():
        by_kind[corpus[number].kind][result.outcome if not result.failed else "failed"] += 1
        codes[result.detail] += result.outcome == "refused"
    lines = [f"{'change':20} {'read':>7} {'refused':>7} {'failed':>7}"]
    for kind, counts in (*sorted(by_kind.items()), ("all", sum(by_kind.values(), collections.Counter()))):
        lines.append(f"{kind:20} {counts['read']:7} {counts['refused']:7} {counts['failed']:7}")
    lines += ["", *(f"{code:20} {count:7}" for code, count in codes.most_common() if count)]
    slowest = max(results, key=lambda number: results[number].seconds)
    largest = max(results, key=lambda number: results[number].peak)
    lines += [
        "",
        f"slowest {results[slowest].seconds:.2f} s (file {slowest}, {corpus[slowest].kind})",
        f"peak memory {results[largest].peak / 2**20:.0f} MiB (file {largest}, {corpus[largest].kind})",
        f"{sum(r.warnings > 0 for r in results.values())} files gave Python warnings, "
        f"{sum(r.printed > 0 for r in results.values())} made a decoder print",
    ]
    lines += [failure(corpus[number], result) for number, result in results.items() if result.failed]
    return "\n".join(lines)


def failure(mutant: Mutant, result: Result) -> str:
    """One line on a file that failed."""
    return f"FAILED {mutant.number} {mutant.kind} of {mutant.origin}: {result.outcome}: {result.detail}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a file failed."""
    parser = argparse.ArgumentParser(description="Broken DICOM files against the reader.")
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", default=None, help="these numbers alone")
    parser.add_argument("--no-real", action="store_true", help="without the files of ../shared/data")
    parser.add_argument("--reader", default=READER)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "ich_mil_fuzz")
    options = parser.parse_args(arguments)
    corpus = Corpus(options.seed, real=not options.no_real)
    numbers = options.only if options.only is not None else range(options.files)
    options.keep.mkdir(parents=True, exist_ok=True)

    def tell(mutant: Mutant, result: Result) -> None:
        """Keep what failed at once: a run may be stopped."""
        if result.failed or options.only is not None:
            (options.keep / f"seed{options.seed}_{mutant.number}.dcm").write_bytes(mutant.content)
        if result.failed:
            print(failure(mutant, result), flush=True)

    results = run(corpus, numbers, jobs=options.jobs, reader=options.reader, tell=tell)
    print(report(corpus, results))
    print(f"files that failed are in {options.keep}; one again: --seed {options.seed} --only NUMBER")
    return int(any(result.failed for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())

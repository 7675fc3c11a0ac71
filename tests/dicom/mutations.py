"""Ways to break a DICOM file, and a corpus of broken files that a seed makes again.

In: valid files (`encodings.cases`, and the real files of ../shared/data where present). Out: `Mutant`s by
number. File k is a valid file changed in one way or several by a generator seeded with (seed, k), so that it
can be made alone.

Source: DICOM PS3.5 7 (elements, sequences), A.4 (encapsulation), A.5 (deflated), G.5 (RLE); ITU-T T.81,
T.800.
"""

import functools
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.dicom.encodings import Case, cases

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
REAL = ("rsna_slices/*", "compressed_head_ct/*", "oddities/*", "ge_head_ct/*5*")
# One file in so many is a mutation of a real file: they are large, and the small ones find the same.
REAL_EVERY = 10

DEFLATED, BIG_ENDIAN, RLE = b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.2", b"1.2.840.10008.1.2.5"
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
SYNTAX, PIXEL_DATA = 0x00020010, 0x7FE00010
ITEM, ITEM_END, SEQUENCE_END = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD
ROWS, COLUMNS, NUMBER_OF_FRAMES = 0x00280010, 0x00280011, 0x00280008
# Samples, rows, columns, bits and sign: US elements that decide how much is read
SIZES = (0x00280002, ROWS, COLUMNS, 0x00280100, 0x00280101, 0x00280102, 0x00280103)
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


class Element(NamedTuple):
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

    def streams(self) -> list[Element]:
        """The items of encapsulated pixels, the offset table first."""
        start = self.pixels_at()
        return [element for element in self.find(ITEM) if element.start > start]

    def walk_body(self) -> Iterator[Element]:
        """The elements of the data set; it has explicit VRs where its first element has one."""
        vr = self.flat[self.body + 4 : self.body + 6]
        self.explicit = vr.isalpha() and vr.isupper()
        return _walk(self.flat, self.body, self.order, explicit=self.explicit)


def take_apart(content: bytes) -> Layout:
    """Find the elements of a file as far as it can be followed; raises on no content whatever."""
    layout = Layout(content)
    if content[128:132] == b"DICM":
        layout.elements = list(_walk(content, 132, "<", explicit=True, group=2))
        layout.body = max((element.end for element in layout.elements), default=132)
        for element in layout.find(SYNTAX):
            layout.syntax = content[element.value_at : element.end].strip(b"\0 ")
    if layout.syntax == DEFLATED:
        try:
            inflated = zlib.decompressobj(-15).decompress(content[layout.body :], 1 << 24)
        except zlib.error:
            return layout
        layout.flat = content[: layout.body] + inflated
    layout.order = ">" if layout.syntax == BIG_ENDIAN else "<"
    layout.elements += layout.walk_body()
    return layout


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


# Pieces of files


def _put(data: bytes, at: int, new: bytes) -> bytes:
    """`data` with the bytes from `at` on written over."""
    return data[:at] + new + data[at + len(new) :]


def _insert(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at:]


def _with_length(layout: Layout, element: Element, length: int) -> bytes:
    """The element's length written over, its value left as it is."""
    order = layout.order if element.start >= layout.body else "<"
    code = "H" if element.length_size == 2 else "I"
    return _put(layout.flat, element.length_at, struct.pack(f"{order}{code}", length))


def _with_value(layout: Layout, element: Element, value: bytes) -> bytes:
    """The element's value replaced, padded to an even length, its length set right."""
    value += b" " * (len(value) % 2)
    if element.length_size == 2:
        value = value[:0xFFFE]
    changed = _with_length(layout, element, len(value))
    return changed[: element.value_at] + value + changed[element.end :]


def _element(layout: Layout, tag: int, vr: bytes, value: bytes = b"", *, length: int | None = None) -> bytes:
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


def _item(content: bytes) -> bytes:
    """A fragment of encapsulated pixels."""
    return struct.pack("<HHI", 0xFFFE, 0xE000, len(content)) + content


def _flip(rng: random.Random, data: bytes, start: int, end: int) -> bytes | None:
    """A few bytes of a stretch replaced."""
    if end <= start:
        return None
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        changed[rng.randrange(start, end)] = rng.choice((rng.randrange(256), 0, 255))
    return bytes(changed)


# Ways to break a file. Each takes a generator and a file taken apart, and returns the new `flat`, or None
# where it does not apply.

Mutation = Callable[[random.Random, Layout], bytes | None]


def flip(rng: random.Random, layout: Layout) -> bytes | None:
    whole, header = (0, len(layout.flat)), (128, layout.pixels_at())
    return _flip(rng, layout.flat, *rng.choice((whole, header)))


def truncate(rng: random.Random, layout: Layout) -> bytes | None:
    start = rng.choice((0, layout.pixels_at()))
    return layout.flat[: rng.randrange(start, len(layout.flat) + 1)]


def change_length(rng: random.Random, layout: Layout) -> bytes | None:
    element = rng.choice(layout.elements)
    top = 0xFFFF if element.length_size == 2 else 0xFFFFFFFF
    near = element.length + rng.choice((-2, -1, 1, 2))
    length = rng.choice((0, 1, 2, near, near, top, top - 1, top // 2, len(layout.flat), rng.randrange(top)))
    return _with_length(layout, element, length & top)


def change_vr(rng: random.Random, layout: Layout) -> bytes | None:
    elements = [element for element in layout.elements if element.vr]
    if not elements:
        return None
    vr = rng.choice((*LONG_VRS, *SHORT_VRS, b"??", b"\0\0", b"ox", b"\xff\xff"))
    return _put(layout.flat, rng.choice(elements).start + 4, vr)


def change_tag(rng: random.Random, layout: Layout) -> bytes | None:
    element, other = rng.choice(layout.elements), rng.choice(layout.elements)
    delimiters = (ITEM, ITEM_END, SEQUENCE_END, 0xFFFFFFFF, 0, SYNTAX, PIXEL_DATA, 0x7FE00008, 0x7FE00009)
    tag = rng.choice((other.tag, rng.choice(delimiters), rng.randrange(1 << 32)))
    return _put(layout.flat, element.start, struct.pack(f"{layout.order}HH", tag >> 16, tag & 0xFFFF))


def change_value(rng: random.Random, layout: Layout) -> bytes | None:
    element = rng.choice([element for element in layout.elements if element.tag != PIXEL_DATA])
    length = rng.choice((element.length & 0xFF, 1, 2, 7, 300, 70_000))
    same = (byte * length for byte in (b"\0", b"\xff", b"\\", b"A"))
    return _with_value(layout, element, rng.choice((rng.randbytes(length), *same)))


def change_number(rng: random.Random, layout: Layout) -> bytes | None:
    elements = layout.find(*NUMBERS)
    return _with_value(layout, rng.choice(elements), rng.choice(BAD_NUMBERS)) if elements else None


def change_charset(rng: random.Random, layout: Layout) -> bytes | None:
    """An odd Specific Character Set before the first element, and bytes outside ASCII in a text."""
    flat = layout.flat
    if texts := layout.find(0x00100010, 0x00100020, 0x0008103E, 0x00080008):
        odd = (rng.randbytes(20), "頭部ＣＴ".encode("iso2022_jp"), "Köpf".encode(), b"\x1b$)C\xb1\xe8")
        value = rng.choice(odd)
        flat = _with_value(layout, rng.choice(texts), value)
    return _insert(flat, layout.body, _element(layout, 0x00080005, b"CS", rng.choice(CHARSETS)))


def change_size(rng: random.Random, layout: Layout) -> bytes | None:
    """Rows, Columns, bits and the like; NumberOfFrames is a text."""
    flat, found = layout.flat, layout.find(*SIZES)
    if rng.random() < 0.2:
        count = str(rng.choice((0, -1, 2, 4, 1000, 65536, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 63))).encode()
        if frames := layout.find(NUMBER_OF_FRAMES):
            return _with_value(layout, frames[0], count)
        at = next((element.start for element in layout.find(ROWS)), layout.body)
        return _insert(flat, at, _element(layout, NUMBER_OF_FRAMES, b"IS", count))
    for element in rng.sample(found, k=min(rng.choice((1, 1, 2, 3)), len(found))):
        value = rng.choice((0, 1, 2, 7, 8, 12, 15, 16, 17, 24, 32, 64, 255, 4096, 32767, 32768, 65535))
        flat = _put(flat, element.value_at, struct.pack(f"{layout.order}H", value))
    return flat


def change_stream_size(rng: random.Random, layout: Layout) -> bytes | None:
    """Numbers in the headers of code streams: sizes, precision, components, tiles, tables, offsets."""
    fields, flat = _size_fields(layout), layout.flat
    if not fields:
        return None
    for at, code in rng.sample(fields, k=min(len(fields), rng.choice((1, 1, 2)))):
        top = (1 << (8 * struct.calcsize(code))) - 1
        few = (0, 1, 2, 3, 8, 12, 16, 17, 255, 4096, top, top - 1, top // 2, top // 2 + 1)
        flat = _put(flat, at, struct.pack(code, rng.choice((*few, rng.randrange(top))) & top))
    return flat


def _size_fields(layout: Layout) -> list[tuple[int, str]]:
    """Where code streams say sizes, each with the struct code of the number."""
    fields: list[tuple[int, str]] = []

    def add(at: int, codes: str) -> None:
        for code in codes.split():
            fields.append((at, code))
            at += struct.calcsize(code)

    for item in layout.streams()[1:]:
        stream, start = layout.flat[item.value_at : item.end], item.value_at
        if layout.syntax == RLE:  # PS3.5 G.5
            add(start, "<I " * 4)
        elif stream[:4] == J2K_START:  # T.800 A.5.1 SIZ, A.6.1 COD, A.4.2 SOT
            add(start + 8, ">I " * 8)
            add(start + 4, ">H >H")
            add(start + 40, ">H >B >B >B")
            if (cod := stream.find(b"\xffR")) > 0:
                add(start + cod + 2, ">B " * 12)
            if (sot := stream.find(b"\xff\x90")) > 0:
                add(start + sot + 4, ">H >I")
        elif stream[:2] == b"\xff\xd8":  # T.81 B.2.2 to B.2.4: each segment's length and first bytes
            for marker in JPEG_MARKERS:
                if (at := stream.find(bytes((0xFF, marker)))) > 0:
                    add(start + at + 2, ">H >B >H >H >B >B >B" if marker in JPEG_FRAMES else ">H" + " >B" * 7)
    return fields


def change_sizes_alike(rng: random.Random, layout: Layout) -> bytes | None:
    """Header and code streams agree on a size that the pixels do not have."""
    rows, columns = (rng.choice((1, 2, 23, 25, 48, 512, 3000, 12_000, 32_768, 65_535)) for _ in range(2))
    flat = layout.flat
    for tag, value in ((ROWS, rows), (COLUMNS, columns)):
        for element in layout.find(tag):
            flat = _put(flat, element.value_at, struct.pack(f"{layout.order}H", value))
    for item in layout.streams()[1:]:
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
    items = [item for item in layout.streams() if item.length not in (0, UNDEFINED)]
    if not items:
        return None
    item = rng.choice(items)
    end = min(item.end, len(layout.flat))
    return _flip(rng, layout.flat, item.value_at, rng.choice((end, min(end, item.value_at + 200))))


def change_items(rng: random.Random, layout: Layout) -> bytes | None:
    """The encapsulation: offset table, items and their lengths, the delimiter."""
    items = layout.streams()
    if len(items) < 2:
        return None
    flat, table, item = layout.flat, items[0], rng.choice(items[1:])
    kind = rng.randrange(7)
    if kind == 0:  # other offsets
        count = rng.choice((1, 3, 2000))
        offsets = [rng.choice((0, 1, 8, 0xFFFFFFFF, 1 << 31, rng.randrange(5000))) for _ in range(count)]
        return _with_value(layout, table, struct.pack(f"<{count}I", *offsets))
    if kind == 1:  # no table, no frames, or all of it twice
        return flat[: table.start] + flat[rng.choice((item.start, item.end, table.start)) :]
    if kind == 2:  # one frame in many small items
        step = rng.choice((1, 2, 64))
        pieces = [flat[at : at + step] for at in range(item.value_at, item.end, step)]
        return flat[: item.start] + b"".join(_item(piece) for piece in pieces) + flat[item.end :]
    if kind == 3:  # empty items
        return _insert(flat, item.start, _item(b"") * rng.choice((1, 1000, 100_000)))
    if kind == 4:  # an item inside an item
        return flat[: item.start] + _item(flat[item.start : item.end]) + flat[item.end :]
    if kind == 5:
        length = rng.choice((0, 1, item.length * 2, UNDEFINED, 0x7FFFFFFF))
        return _put(flat, item.length_at, struct.pack("<I", length))
    return flat[: item.end] + rng.choice((b"", b"\0" * 9, _item(b"\0" * 8) * 5, rng.randbytes(50)))


def nest(rng: random.Random, layout: Layout) -> bytes | None:
    """A sequence in a sequence in a sequence ..., before the pixels or instead of all that follows."""
    depth = rng.choice((1, 30, 500, 1000, 5000, 60_000))
    tag = rng.choice((0x00081140, 0x52009229, 0x52009230, 0x00091010, 0x0008103F))

    def opening(inner: int) -> bytes:
        """A sequence and its item, whose content takes `inner` bytes."""
        outer = UNDEFINED if inner == UNDEFINED else inner + 8
        return _element(layout, tag, b"SQ", length=outer) + _element(layout, ITEM, b"", length=inner)

    if rng.random() < 0.6:
        closing = _element(layout, ITEM_END, b"") + _element(layout, SEQUENCE_END, b"")
        chain = opening(UNDEFINED) * depth + rng.choice((closing * depth, closing * (depth // 2), b""))
    else:
        step = len(opening(0))
        chain = b"".join(opening(level * step) for level in reversed(range(depth)))
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
    return _insert(layout.flat, at, layout.flat[element.start : element.end] * rng.choice((1, 2, 50)))


def remove_element(rng: random.Random, layout: Layout) -> bytes | None:
    element = rng.choice(layout.elements)
    if rng.random() < 0.5:  # its value only
        return _with_value(layout, element, b"")
    return layout.flat[: element.start] + layout.flat[element.end :]


def change_syntax(rng: random.Random, layout: Layout) -> bytes | None:
    found = layout.find(SYNTAX)
    return _with_value(layout, found[0], rng.choice(SYNTAXES)) if found else None


def swap_bytes(rng: random.Random, layout: Layout) -> bytes | None:
    """The order of bytes turned in all of the data set, or in its pixels only."""
    start = rng.choice((layout.body, layout.pixels_at()))
    body = layout.flat[start:]
    return layout.flat[:start] + np.frombuffer(body[: len(body) // 2 * 2], np.uint16).byteswap().tobytes()


def noise(rng: random.Random, layout: Layout) -> bytes | None:
    """Random bytes after something valid."""
    pixels_at = layout.pixels_at()
    start = rng.choice((0, 128, 132, layout.body, layout.body + 8, pixels_at, pixels_at + 12))
    return layout.flat[:start] + rng.randbytes(rng.choice((0, 1, 3, 100, 5000)))


def several(rng: random.Random, layout: Layout) -> bytes | None:
    """Two to four of the others, one after the other."""
    flat = layout.flat
    for _ in range(rng.randint(2, 4)):
        if layout.syntax == DEFLATED:  # `flat` is inflated: its data set stays where it is
            fresh = Layout(flat, layout.syntax, layout.body, layout.order)
            fresh.elements = list(fresh.walk_body())
        else:
            fresh = take_apart(flat)
        if len(fresh.elements) > 1:
            flat = rng.choice(SIMPLE)(rng, fresh) or flat
    return flat


SIMPLE: tuple[Mutation, ...] = (
    *(flip, truncate, change_length, change_vr, change_tag, change_value, change_number, change_charset),
    *(change_size, change_stream_size, change_sizes_alike, change_stream, change_items, nest, swap_elements),
    *(duplicate_element, remove_element, change_syntax, swap_bytes, noise),
)
MUTATIONS = {mutation.__name__: mutation for mutation in (*SIMPLE, several)}


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
    tag = 0x7FDF1010 if at < len(flat) else 0xFFFCFFFC
    head = _element(layout, tag, b"OB", length=millions << 20)
    before = _deflated_piece(flat[layout.body : at] + head)
    after = zlib.compressobj(9, wbits=-15)
    return flat[: layout.body] + before + _zeros() * millions + after.compress(flat[at:]) + after.flush()


def _deflated_piece(content: bytes) -> bytes:
    """A piece of a deflated stream that may be repeated."""
    deflater = zlib.compressobj(9, wbits=-15)
    return deflater.compress(content) + deflater.flush(zlib.Z_FULL_FLUSH)


@functools.cache
def _zeros() -> bytes:
    """A MiB of zeros."""
    return _deflated_piece(bytes(1 << 20))


# The corpus

KINDS = (*MUTATIONS, "splice", "bomb", "unchanged")


class Mutant(NamedTuple):
    """File `number` of a corpus: how it was made, from which valid file, and its bytes."""

    number: int
    kind: str
    origin: str
    content: bytes


class Corpus:
    """Broken files by number; the same seed gives the same bytes. `real` files are used too where present."""

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
            origin = rng.choice([case for case in self.made if "deflated" in case.name])
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
            flat = MUTATIONS[kind](rng, layout) if len(layout.elements) > 1 else None
            if flat is not None and flat != layout.flat:
                body = layout.body
                deflate = layout.syntax == DEFLATED and flat[:body] == layout.flat[:body]
                content = flat[:body] + zlib.compress(flat[body:], 1, -15) if deflate else flat
                return Mutant(number, kind, origin.name, content)

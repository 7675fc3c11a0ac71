"""Elements of the top level are found where pydicom finds them, in any bytes."""

import io
import random
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
from pydicom.dataelem import RawDataElement
from pydicom.filereader import data_element_generator, read_dataset
from pydicom.valuerep import VR

from ich_mil.dicom.files.elements import UNDEFINED, walk
from tests.dicom.encodings import Case, cases

PIXEL_DATA, ICON = 0x7FE00010, 0x00880200
ITEM, ITEM_END, SEQUENCE_END = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD
LONG = ("OB", "OD", "OF", "OL", "OV", "OW", "SQ", "SV", "UC", "UN", "UR", "UT", "UV")
DEPTH = 2000

Found = list[tuple[int, int, int]]
"""Tag, place of the value and length of each element."""


class Element(NamedTuple):
    """One element of the top level as written: `length` is what its head says."""

    tag: int
    length: int
    head: bytes
    value: bytes


class Writer(NamedTuple):
    """Writer of elements in one of the three encodings."""

    explicit: bool = True
    little_endian: bool = True

    def element(self, tag: int, vr: str, value: bytes = b"", *, length: int | None = None) -> Element:
        order, length = "<" if self.little_endian else ">", len(value) if length is None else length
        head = struct.pack(f"{order}HH", tag >> 16, tag & 0xFFFF)
        if not self.explicit or tag >> 16 == 0xFFFE:
            head += struct.pack(f"{order}L", length)
        elif vr in LONG:
            head += vr.encode() + b"\0\0" + struct.pack(f"{order}L", length)
        else:
            head += vr.encode() + struct.pack(f"{order}H", length)
        return Element(tag, length, head, value)

    def item(self, *elements: Element, undefined: bool = False) -> bytes:
        value = joined(elements)
        if not undefined:
            return joined([self.element(ITEM, "", value)])
        value += joined([self.element(ITEM_END, "")])
        return joined([self.element(ITEM, "", value, length=UNDEFINED)])

    def sequence(self, tag: int, *items: bytes, undefined: bool = False, vr: str = "SQ") -> Element:
        value = b"".join(items)
        if not undefined:
            return self.element(tag, vr, value)
        value += joined([self.element(SEQUENCE_END, "")])
        return self.element(tag, vr, value, length=UNDEFINED)

    def fragments(self, tag: int, *contents: bytes) -> Element:
        items = (joined([self.element(ITEM, "", one)]) for one in contents)
        return self.sequence(tag, *items, undefined=True, vr="OB")


EXPLICIT, IMPLICIT, BIG_ENDIAN = Writer(), Writer(explicit=False), Writer(little_endian=False)
WRITERS = {"explicit": EXPLICIT, "implicit": IMPLICIT, "big-endian": BIG_ENDIAN}


def joined(elements: Iterable[Element]) -> bytes:
    return b"".join(element.head + element.value for element in elements)


def places(elements: list[Element], at: int = 0) -> Found:
    """Where the elements lie, as they were written."""
    found = []
    for tag, length, head, value in elements:
        found.append((tag, at + len(head), length))
        at += len(head) + len(value)
    return found


def walked(content: bytes, writer: Writer, start: int = 0) -> Found:
    return list(walk(content, start, explicit=writer.explicit, little_endian=writer.little_endian))


def by_pydicom(content: bytes, writer: Writer, start: int = 0) -> Found:
    """The same from pydicom's own tokenizer."""
    file = io.BytesIO(content)
    file.seek(start)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells of sequences that are implicit in a file that is not
        for one in data_element_generator(file, not writer.explicit, writer.little_endian):
            if isinstance(one, RawDataElement):
                found.append((int(one.tag), one.value_tell, one.length))
            else:
                assert one.is_undefined_length
                found.append((int(one.tag), one.file_tell, UNDEFINED))
    return found


# Valid files


def cut_everywhere(content: bytes, writer: Writer, start: int = 0) -> None:
    """A truncated file has the elements whose heads are left."""
    whole = walked(content, writer, start)
    for end in range(start, len(content)):
        assert walked(content[:end], writer, start) == [one for one in whole if one[1] <= end]


def taken_apart(case: Case) -> tuple[bytes, Writer, int]:
    """A seed with its data set inflated, how that is written, and where it begins; by pydicom alone."""
    content = case.content
    file = io.BytesIO(content)
    if content[128:132] != b"DICM":
        return content, Writer(explicit=not case.name.startswith("implicit")), 0
    file.seek(132)
    meta = read_dataset(file, False, True, stop_when=lambda tag, *_: tag >> 16 != 2)
    start, syntax = file.tell(), meta.TransferSyntaxUID
    if syntax.is_deflated:
        content = content[:start] + zlib.decompress(content[start:], -15)
    return content, Writer(not syntax.is_implicit_VR, syntax.is_little_endian), start


@pytest.mark.parametrize("case", cases(), ids=[case.name for case in cases()])
def test_elements_of_a_seed_are_those_of_pydicom(case):
    content, writer, start = taken_apart(case)
    found = walked(content, writer, start)
    assert found == by_pydicom(content, writer, start)
    assert PIXEL_DATA in [tag for tag, _, _ in found]
    if start:
        meta = [one for one in walked(content, EXPLICIT, 132) if one[0] >> 16 == 2]
        assert meta == [one for one in by_pydicom(content[:start], EXPLICIT, 132) if one[0] >> 16 == 2]
        assert meta[-1][1] + meta[-1][2] == start


# Nested data sets: each function makes the middle of a data set, between other elements.


def every_vr(writer: Writer) -> list[Element]:
    """Each VR and two yet to come, each of another length; some writers do not pad odd ones."""
    vrs = ["AA", *sorted(vr.value for vr in VR if len(vr.value) == 2), "ZZ"]
    return [writer.element(0x00110000 | n, vr, b"\1" * n) for n, vr in enumerate(vrs)]


def sequences(writer: Writer) -> list[Element]:
    """One to three items, sequences and items of both kinds."""
    inner = (writer.element(0x00080100, "SH", b"ABCD"), writer.element(0x00080104, "LO", b"EF"))
    return [
        writer.sequence(
            0x00081110 + 10 * n + 2 * of_items + of_sequence,
            *[writer.item(*inner, undefined=bool(of_items))] * n,
            undefined=bool(of_sequence),
        )
        for n in (1, 3)
        for of_items in (0, 1)
        for of_sequence in (0, 1)
    ]


def items_of_both_kinds(writer: Writer) -> list[Element]:
    inner = writer.element(0x00080100, "SH", b"ABCD")
    items = [writer.item(inner, undefined=undefined) for undefined in (True, False, True, False)]
    return [writer.sequence(0x00081140, *items, undefined=undefined) for undefined in (True, False)]


def empty(writer: Writer) -> list[Element]:
    """Sequences without items, items without elements."""
    return [
        writer.sequence(0x00081110),
        writer.sequence(0x00081111, undefined=True),
        writer.sequence(0x00081115, writer.item(), writer.item(undefined=True)),
        writer.sequence(0x00081120, writer.item(undefined=True), writer.item(), undefined=True),
        writer.sequence(0x00081140, writer.item(), writer.item(), undefined=True),
    ]


def sequences_in_sequences(writer: Writer) -> list[Element]:
    """Four deep, each level of another kind, an element after each inner sequence."""
    after = writer.element(0x00420010, "LO", b"after ")
    found = []
    for kinds in range(16):
        inner = [writer.element(0x00080100, "SH", b"ABCD")]
        for level in range(4):
            undefined = bool(kinds >> level & 1)
            item = writer.item(*inner, undefined=level % 2 == 0)
            inner = [writer.sequence(0x00081140, item, undefined=undefined), after]
        found += inner
    return found


def private(writer: Writer) -> list[Element]:
    """Private elements, their creators, and sequences that no dictionary knows."""
    inner = writer.element(0x00091001, "LO", b"ABCD")
    return [
        writer.element(0x00090010, "LO", b"MAKER "),
        writer.element(0x00091000, "UN", b"\xfe\xff\x00\xe0\xff\xff\xff\xff"),
        writer.sequence(0x00091010, writer.item(inner)),
        writer.sequence(0x00091011, writer.item(inner, undefined=True), undefined=True),
        writer.sequence(0x00091012, writer.item(inner), undefined=True),
    ]


def icon(writer: Writer) -> list[Element]:
    """A small picture in a sequence has Pixel Data of its own."""
    pixels = writer.element(PIXEL_DATA, "OW", b"\1\2" * 8)
    return [
        writer.sequence(ICON, writer.item(writer.element(0x00280010, "US", b"\4\0"), pixels), undefined=of)
        for of in (False, True)
    ] + [writer.sequence(ICON, writer.item(pixels, undefined=True), undefined=True)]


def encapsulated_icon(writer: Writer) -> list[Element]:
    """The same, compressed: fragments end with the end mark of a sequence."""
    pixels = writer.fragments(PIXEL_DATA, b"", b"\xff\xd8ABCD\xff\xd9", b"EF")
    return [writer.sequence(ICON, writer.item(pixels, undefined=of), undefined=True) for of in (False, True)]


def unknown_holds_implicit(writer: Writer) -> list[Element]:
    """UN of undefined length is implicit inside (PS3.5 6.2.2), whatever surrounds it."""
    implicit = writer._replace(explicit=False)
    inner = implicit.element(0x00091001, "LO", b"ABCD")
    deep = implicit.sequence(0x00091010, implicit.item(inner, undefined=True), undefined=True)
    defined = implicit.sequence(0x00091011, implicit.item(inner, deep), undefined=True)
    end = {"undefined": True, "vr": "UN"}
    return [
        writer.sequence(0x00091020, implicit.item(inner), **end),
        writer.sequence(0x00091021, implicit.item(inner, undefined=True), implicit.item(inner), **end),
        writer.sequence(0x00091022, implicit.item(deep, inner, undefined=True), **end),
        writer.sequence(0x00091023, implicit.item(defined, inner, undefined=True), **end),
        writer.sequence(0x00091024, **end),
        writer.sequence(
            0x00081140,
            writer.item(writer.sequence(0x00091025, implicit.item(inner), **end)),
        ),
        writer.sequence(
            0x00081140,
            writer.item(
                writer.sequence(0x00091026, implicit.item(deep, undefined=True), **end),
                writer.element(0x00420010, "UT", b"after "),
                undefined=True,
            ),
            undefined=True,
        ),
    ]


def implicit_items(writer: Writer) -> list[Element]:
    """Some writers change to implicit inside a sequence that is explicit."""
    implicit = writer._replace(explicit=False)
    inner = implicit.element(0x00080100, "SH", b"ABCD"), implicit.element(0x00080104, "LO", b"EF")
    deep = implicit.sequence(0x00081140, implicit.item(*inner, undefined=True), undefined=True)
    return [writer.sequence(0x00081140, implicit.item(*inner, deep, undefined=True), undefined=True)]


def implicit_elements(writer: Writer) -> list[Element]:
    """Or at any element."""
    implicit = writer._replace(explicit=False)
    return [implicit.element(0x00081030, "LO", b"ABCD"), implicit.element(0x00081032, "LO", b"E" * 300)]


def lengths_that_spell_vrs(writer: Writer) -> list[Element]:
    """Items, and implicit elements in UN, whose lengths read like a VR where one is looked for."""
    implicit = writer._replace(explicit=False)
    found = []
    for word in (b"OB", b"AE"):
        value = bytes(int.from_bytes(word, "little"))
        inner = writer.element(0x00080104, "UT", value[12 if writer.explicit else 8 :])
        found.append(writer.sequence(0x00081140, writer.item(inner), undefined=True))
        hidden = implicit.element(0x00080100, "SH", b"ABCD"), implicit.element(0x00080104, "UT", value)
        end = {"undefined": True, "vr": "UN"}
        found.append(writer.sequence(0x00091020, implicit.item(*hidden, undefined=True), **end))
    return found


NESTED: tuple[Callable[[Writer], list[Element]], ...] = (
    *(every_vr, sequences, items_of_both_kinds, empty, sequences_in_sequences, private, icon),
    *(encapsulated_icon, unknown_holds_implicit, implicit_items, implicit_elements, lengths_that_spell_vrs),
)


def data_set(writer: Writer, middle: list[Element]) -> list[Element]:
    return [
        writer.element(0x00080060, "CS", b"CT"),
        *middle,
        writer.element(0x00280010, "US", b"\0\2"),
        writer.element(PIXEL_DATA, "OW", b"\1\2\3\4"),
    ]


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("middle", NESTED)
def test_nested_data_sets_are_stepped_over(middle, writer):
    elements = data_set(writer, middle(writer))
    content = joined(elements)
    assert walked(content, writer) == places(elements)
    assert walked(content, writer) == by_pydicom(content, writer)
    assert walked(bytes(132) + content, writer, 132) == places(elements, 132)
    if middle is not lengths_that_spell_vrs:
        cut_everywhere(content, writer)


def test_unknown_may_be_explicit_inside():
    inner = EXPLICIT.element(0x00091001, "LO", b"ABCD")
    deep = EXPLICIT.sequence(0x00081140, EXPLICIT.item(inner, undefined=True), undefined=True)
    item = EXPLICIT.item(inner, deep, undefined=True)
    elements = data_set(EXPLICIT, [EXPLICIT.sequence(0x00091020, item, undefined=True, vr="UN")])
    assert walked(joined(elements), EXPLICIT) == places(elements)
    assert walked(joined(elements), EXPLICIT) == by_pydicom(joined(elements), EXPLICIT)


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_end_mark_that_ends_nothing_is_stepped_over(writer):
    """Some writers give a sequence a length and an end mark."""
    middle = [writer.sequence(0x00081140, writer.item()), writer.element(SEQUENCE_END, "")]
    content = joined(data_set(writer, middle))
    found = [one for one in walked(content, writer) if one[0] >> 16 != 0xFFFE]
    assert found == [one for one in by_pydicom(content, writer) if one[0] >> 16 != 0xFFFE]


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_fragments_are_stepped_over_by_their_lengths(writer):
    end = joined([writer.element(SEQUENCE_END, "")])  # pydicom looks for these bytes and stops at the first
    pixels = writer.fragments(PIXEL_DATA, b"", end + b"ABCD", b"EF" + end)
    for undefined in (False, True):
        middle = [writer.sequence(ICON, writer.item(pixels, undefined=undefined), undefined=True)]
        elements = data_set(writer, middle)
        assert walked(joined(elements), writer) == places(elements)


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_depth_is_no_limit(writer):
    undefined = defined = writer.element(0x00420010, "LO", b"deepest ")
    for _ in range(DEPTH):
        undefined = writer.sequence(0x00081140, writer.item(undefined, undefined=True), undefined=True)
        defined = writer.sequence(0x00081140, writer.item(defined))
    middle = [undefined, defined, writer.sequence(0x00081150, writer.item(defined), undefined=True)]
    elements = data_set(writer, middle)
    assert walked(joined(elements), writer) == places(elements)


# Damaged files


@pytest.mark.parametrize("name", sorted({case.name.partition("/")[0] for case in cases()}))
def test_seed_may_be_cut_anywhere(name):
    cut_everywhere(*taken_apart(next(case for case in cases() if case.name.startswith(name))))


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_any_bytes_come_to_an_end(writer):
    rng = random.Random(0)
    marks = [joined([writer.element(tag, "")]) for tag in (ITEM, ITEM_END, SEQUENCE_END)]
    heads = [joined([writer.element(tag, vr, length=UNDEFINED)]) for tag, vr in ((ICON, "SQ"), (ICON, "UN"))]
    for _ in range(1000):
        content = b"".join(rng.choice((rng.randbytes(rng.randrange(9)), *marks, *heads)) for _ in range(20))
        found = [at for _, at, _ in walked(content, writer)]
        assert found == sorted(set(found))
        assert len(found) <= len(content) // 8

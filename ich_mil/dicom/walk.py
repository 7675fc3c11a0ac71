"""The elements of a DICOM data set, one after the other, without reading their values.

In: the bytes of a data set. Out: tag, place and length of each element of its top level. pydicom does the
same and more, at several times the time for the twenty small elements of an RSNA slice, and this pass sees
every file of a data set. Nested sequences are stepped over without recursion, however deep they go.

Source: DICOM PS3.5 7.1 (elements), 7.5 (sequences and items), 6.2.2 (UN of undefined length is implicit).
"""

from collections.abc import Iterator
from struct import Struct

from pydicom.valuerep import VR

UNDEFINED = 0xFFFFFFFF
VRS = frozenset(vr.value.encode() for vr in VR if len(vr.value) == 2)

_LONG = frozenset({b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV"})
"""VRs with a length of four bytes (PS3.5 table 7.1-1)."""
_ITEM, _END_OF_ITEM, _END_OF_SEQUENCE = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD


def walk(content: bytes, at: int, *, explicit: bool, little_endian: bool) -> Iterator[tuple[int, int, int]]:
    """The elements of the top level.

    Args:
        content: bytes that hold a data set; it may be cut off anywhere.
        at: where the data set begins.
        explicit: whether elements name their VR.
        little_endian: byte order.

    Yields:
        Tag, place of the value in `content`, and its length in bytes, `UNDEFINED` where the value has an end
        mark instead; the place may lie beyond the end of `content`.
    """
    order = "<" if little_endian else ">"
    with_vr, without_vr = Struct(f"{order}HH2sH").unpack_from, Struct(f"{order}HHL").unpack_from
    long_length = Struct(f"{order}L").unpack_from
    outer: list[bool] = []  # of each open sequence or item: whether what surrounds it is explicit
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
            # else: some writers change to implicit within a data set
        at += 8
        if not outer:
            yield tag, at, length
        if length == UNDEFINED:
            outer.append(explicit)
            if tag == _ITEM:  # UN is implicit inside, most often, and so are sequences of some writers
                explicit = explicit and content[at + 4 : at + 6] in VRS
        elif tag in (_END_OF_ITEM, _END_OF_SEQUENCE):
            explicit = outer.pop() if outer else explicit
        else:
            at += length

"""Iterator over the top-level elements of a DICOM data set, without their values.

In: the bytes of a data set. Out: tag, offset and length of each top-level element. Nested sequences of any
depth are skipped without recursion. pydicom takes several times as long for the twenty small elements of an
RSNA slice, and every file of a data set passes through this iterator.

Source: DICOM PS3.5 7.1 (elements), 7.5 (sequences and items), 6.2.2 (UN of undefined length is implicit).
"""

from collections.abc import Iterator
from struct import Struct

from pydicom.valuerep import VR

UNDEFINED = 0xFFFFFFFF
VRS = frozenset(vr.value.encode() for vr in VR if len(vr.value) == 2)

_LONG = frozenset({b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV"})
"""VRs with a four-byte length field (PS3.5 table 7.1-1)."""
_ITEM, _END_OF_ITEM, _END_OF_SEQUENCE = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD


def walk(content: bytes, at: int, *, explicit: bool, little_endian: bool) -> Iterator[tuple[int, int, int]]:
    """Iterate over the top-level elements of a data set.

    Args:
        content: bytes of a data set, possibly truncated.
        at: offset of the data set in `content`.
        explicit: True for explicit VR.
        little_endian: byte order.

    Yields:
        Tag, offset of the value in `content`, and its length [bytes] or `UNDEFINED`. The offset may lie
        beyond the end of `content`.
    """
    order = "<" if little_endian else ">"
    with_vr, without_vr = Struct(f"{order}HH2sH").unpack_from, Struct(f"{order}HHL").unpack_from
    long_length = Struct(f"{order}L").unpack_from
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
                explicit = explicit and content[at + 4 : at + 6] in VRS
        elif tag in (_END_OF_ITEM, _END_OF_SEQUENCE):
            explicit = outer.pop() if outer else explicit
        else:
            at += length

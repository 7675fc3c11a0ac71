"""How the ledger names a slice, and the file behind such a name.

In: a `SliceHeader`, or a name and the folder that it is below. Out: a name, an entry of the ledger, or a file
and the frame in it.
"""

import re
from pathlib import Path

from ich_mil.dicom.header import SliceHeader
from ich_mil.ledger import Code, LedgerEntry


def slice_name(header: SliceHeader) -> str:
    """How the ledger names a slice: its path, and of a multi-frame file the frame, counted from 0."""
    return header.path if header.pixels.frames == 1 else f"{header.path} frame {header.frame}"


def slice_file(root: Path, name: str) -> tuple[Path, int]:
    """The file below `root` and the frame in it that `slice_name` named."""
    found = re.fullmatch(r"(.*) frame (\d+)", name, re.DOTALL)
    if found and not (root / name).exists():
        return root / found[1], int(found[2])
    return root / name, 0


def slice_entry(header: SliceHeader, code: Code, detail: str) -> LedgerEntry:
    """A ledger line about one slice."""
    frame = "" if header.pixels.frames == 1 else f"frame {header.frame}: "
    return LedgerEntry(header.study_uid, header.path, code, frame + detail)

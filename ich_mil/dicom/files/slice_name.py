"""Slice names in the ledger, and the files they refer to.

In: a `SliceHeader`, or a name and its root folder. Out: a name, a ledger entry, or a path and frame index.
"""

import re
from pathlib import Path

from ich_mil.dicom.files.header import SliceHeader
from ich_mil.ledger import Code, LedgerEntry


def slice_name(header: SliceHeader) -> str:
    """Name of a slice in the ledger: path, and for a multi-frame file the frame index from 0."""
    return header.path if header.pixels.frames == 1 else f"{header.path} frame {header.frame}"


def slice_file(root: Path, name: str) -> tuple[Path, int]:
    """File below `root` and frame index for a name from `slice_name`."""
    found = re.fullmatch(r"(.*) frame (\d+)", name, re.DOTALL)
    if found and not (root / name).exists():
        return root / found[1], int(found[2])
    return root / name, 0


def slice_entry(header: SliceHeader, code: Code, detail: str) -> LedgerEntry:
    """Ledger entry for one slice."""
    frame = "" if header.pixels.frames == 1 else f"frame {header.frame}: "
    return LedgerEntry(header.study_uid, header.path, code, frame + detail)

"""JSON serialization of slice headers for the header index."""

import json
from typing import Any

from ich_mil.dicom.files.header import SliceHeader, StoredPixels
from ich_mil.ledger import Code

SEPARATORS = (",", ":")
"""JSON separators, fixed because headers are compared as text."""


def header_text(header: SliceHeader) -> str:
    """Serialize a header to JSON."""
    return json.dumps(vars(header) | {"pixels": vars(header.pixels)}, separators=SEPARATORS)


def header_of(path: str, text: str) -> SliceHeader:
    """Restore a header with the given path from JSON; lists become tuples."""
    row: dict[str, Any] = json.loads(text)
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    values["path"] = path
    values["notes"] = tuple((Code(code), detail) for code, detail in row["notes"])
    pixels = row["pixels"]
    pixels["padding"] = tuple(pixels["padding"]) if pixels["padding"] else None
    values["pixels"] = StoredPixels(**pixels)
    return SliceHeader(**values)

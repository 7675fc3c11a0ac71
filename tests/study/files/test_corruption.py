"""Random damage: a file is refused in one line, or read to HU; never does the process end."""

import random
from pathlib import Path

import numpy as np
import pytest

from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from ich_mil.study.files.header import read_headers
from ich_mil.study.pixels.read import read_slice
from tests.study.encodings import cases

PER_CASE = 3


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Cut off, or with some other bytes behind the preamble."""
    if rng.random() < 0.2:
        return content[: rng.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(rng.choice((1, 2, 8))):
        changed[rng.randrange(132, len(changed))] = rng.choice((0, 255, rng.randrange(256)))
    return bytes(changed)


def outcome(path: Path) -> str:
    """`read` or the code of the refusal."""
    try:
        for header in read_headers(path):
            hu, _ = read_slice(header)
            assert (hu.dtype, hu.shape) == (np.int16, (header.rows, header.columns))
            assert -1024 <= hu.min() <= hu.max() <= 3095
    except DicomError as error:
        is_line = str(error).startswith(f"{path}: ") and len(str(error).splitlines()) == 1
        return Code(error.code) if is_line else str(error)
    return "read"


@pytest.mark.filterwarnings("ignore")
def test_random_damage_does_no_harm(tmp_path):
    rng, path, found = random.Random(0), tmp_path / "slice.dcm", []
    for case in cases():
        for _ in range(PER_CASE):
            path.write_bytes(damaged(case.content, rng))
            found.append(outcome(path))
    assert {"read", Code.UNREADABLE} <= set(found) <= {"read", *Code}
    assert Code.NOT_OPENED not in found  # such a file is tried again by each run; a damaged one must not be

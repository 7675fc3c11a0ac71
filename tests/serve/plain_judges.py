"""Judges that import nothing, so that their process starts at once; a study's name says what they do."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

_HELD: list[bytes] = []


def answer(study: Path, out: Path) -> Sequence[Path]:
    """`swell` keeps 200 MB, `bug` raises a `KeyError`, `child` starts a process and crashes."""
    if study.name == "swell":
        _HELD.append(b"x" * 200_000_000)
    if study.name == "bug":
        raise KeyError("bug")
    if study.name == "child":
        child = subprocess.Popen(["sleep", "1000"])
        (out / "child").write_text(str(child.pid))
        os._exit(7)
    return [out / str(os.getpid())]


def good():
    """Can be used."""
    return answer


def crash():
    """Ends its process."""
    os._exit(3)


def hang():
    """Is never made."""
    time.sleep(1000)

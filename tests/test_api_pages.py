"""Examples of the API pages run as they stand."""

import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SLOW = ("model", "results")  # like scan_result, they predict a study
PAGES = [
    pytest.param(page, marks=pytest.mark.slow if page.stem in SLOW else ())
    for page in sorted((ROOT / "docs" / "api").glob("*.md"))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_example_runs(page, tmp_path, monkeypatch):
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    commands = Path(sys.executable).parent  # where ich-mil lies, though no venv may be active
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    exec(compile(example, page.name, "exec"), {})

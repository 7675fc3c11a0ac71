"""Pages that name files and symbols of the package name existing ones."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = re.compile(r"`((?:[\w.]+/)*[\w]+\.py)(?:::(\w+))?")


@pytest.mark.parametrize("page", ["architecture.md", "changing.md"])
def test_named_files_and_symbols_exist(page):
    text = (ROOT / "docs" / page).read_text()
    places = {place for place in PLACES.findall(text) if "X" not in place[0]}
    assert len(places) > 20
    files = [path for folder in ("ich_mil", "tests", "research") for path in (ROOT / folder).rglob("*.py")]
    for name, symbol in places:
        found = [path for path in files if str(path).endswith(f"/{name}")]
        assert found, name
        assert any(re.search(rf"\b{symbol}\b", path.read_text()) for path in found), (name, symbol)

"""The wheel: the bundled model and the configurations are in it."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_holds_the_configurations_and_the_bundled_model(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    for name in ("configs", "ich_mil", "checkpoints/headct-base"):
        shutil.copytree(
            ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    words = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "-w",
        "made",
        ".",
    ]
    subprocess.run([sys.executable, *words], cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "made").glob("*.whl")
    names = {*zipfile.ZipFile(wheel).namelist()}
    assert {f"ich_mil/bundled/configs/{path.name}" for path in (ROOT / "configs").iterdir()} <= names
    assert "ich_mil/bundled/headct-base/run.json" in names

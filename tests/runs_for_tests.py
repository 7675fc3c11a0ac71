"""Small runs, and the command line as a user types it."""

from pathlib import Path

import yaml

from ich_mil.cli import main, train_main
from tests import phantoms
from tests.feature_table import write_features

TINY = {
    "split": {"validation": 0.25, "test": 0.25},
    "encoder": {"size": 32},
    "training": {"learning_rate": 1e-3, "max_epochs": 2, "bags": 2},
    "head": {"n_inducing": 16, "density": "gamma"},
    "samples": 200,
    "bootstrap": 20,
    "pages": 2,
    "jobs": 1,
}
HEAD = {"n_inducing": 8, "sweeps": 5, "variance": 0.5, "bias": 0.0, "lengthscale_squared": 48.0}
"""A small head whose kernel is given: choosing it takes most of a fit."""


def run(*words) -> int:
    """Exit code of `ich-mil`, or of `train.py` for a first word `train.py`."""
    first, *rest = map(str, words)
    return train_main(rest) if first == "train.py" else main([first, *rest])


def refused(capsys, *words) -> str:
    """The one-line error of a command that must refuse."""
    capsys.readouterr()
    assert run(*words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def write_config(path: Path, settings: dict) -> list[str]:
    """Write a YAML file; the words that name it."""
    path.write_text(yaml.safe_dump(settings))
    return ["--config", str(path)]


def tiny_run(place: Path) -> Path:
    """Train on phantoms: sites `a` and `b`, configuration `tiny.yaml`, finished run `run` below `place`."""
    phantoms.rsna(place / "a", studies=16)
    phantoms.cq500(place / "b", studies=4)
    settings = TINY | {
        "out": str(place / "run"),
        "prepared": str(place / "prepared"),
        "train": {"layout": "rsna", "root": str(place / "a")},
        "external": {"layout": "cq500", "root": str(place / "b")},
    }
    assert run("train.py", *write_config(place / "tiny.yaml", settings)) == 0
    return place


def feature_run(folder: Path, *, scans: int = 40, **changes) -> list[str]:
    """Write `run.yaml` of a small head on `f.csv` of the same folder, and the table; the words of the run."""
    if not (folder / "f.csv").exists():
        write_features(folder / "f.csv", scans, 0)
    settings = {
        "out": str(folder / "run"),
        "train": {"layout": "features", "root": str(folder / "f.csv")},
        "split": {"validation": 0},
        "head": HEAD,
        "bootstrap": 20,
        "samples": 200,
    }
    return write_config(folder / "run.yaml", settings | changes)

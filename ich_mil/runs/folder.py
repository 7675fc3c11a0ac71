"""Folder of a finished run: names of its files, and `run.json`; importable without torch."""

import json
from pathlib import Path
from typing import Any

from ich_mil.errors import ConfigError, ModelError
from ich_mil.files import remove_leftovers

RUN_FORMAT = "ich_mil.run.5"
BUNDLED = "headct-base"
"""Name of the model bundled with the package."""
ENSEMBLE = "ensemble.json"
FINISHED = ("head.json", ENSEMBLE)
"""Files written last: their presence marks a finished run or ensemble."""
PREDICTIONS = "predictions.json"
REFERENCE = "reference.safetensors"
"""Reference scans of the drift test (`ich_mil.commands.drift`)."""


def run_folder(model: str | Path) -> Path:
    """Folder of a model, or of the bundled model for the name `BUNDLED`.

    Raises:
        ModelError: the bundled model is not installed.
    """
    folder = Path(model)
    if str(folder) != BUNDLED or folder.exists():
        return folder
    folder = Path(__file__).parents[1] / "bundled" / BUNDLED
    if not folder.exists():
        raise ModelError(f"{BUNDLED}: this installation has no bundled model; name the folder of a run")
    return folder


def read_run(folder: Path) -> dict[str, Any]:
    """Read `run.json`. Raises `ModelError` if it is missing, damaged or of another version."""
    path = folder / "run.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        found = about.get("format")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(
            f"{folder}: is no run of ich_mil ({error}); name the 'out' folder of a training"
        ) from error
    if found != RUN_FORMAT:
        raise ModelError(
            f"{folder}: is a run of another version ({found}, this one: {RUN_FORMAT}); train again"
        )
    config = about.get("config")
    known = set(config if isinstance(config, dict) else ())
    needed = {"cnn", "config_hash", "table", "trained_on", "versions"}
    missing = needed - set(about) | {"thickness_mm", "samples", "bootstrap", "seed"} - known
    if missing:
        raise ModelError(f"{path}: lacks {', '.join(sorted(missing))}; train again")
    return dict(about)


def derivation(about: dict[str, Any]) -> str:
    """How a model was made of finished runs: `recalibrated`, `joined`, or '' for a trained model."""
    return "recalibrated" if "site" in about else "joined" if "joined" in about else ""


def check_new(out: Path, kind: str) -> None:
    """Prepare `out` for a new model of a kind, `joined` or `recalibrated`; a killed command is repeated.

    Raises:
        ConfigError: `out` holds another run, or a finished one.
    """
    if not (out / "run.json").exists():
        return
    if any((out / name).exists() for name in FINISHED) or derivation(read_run(out)) != kind:
        raise ConfigError(f"{out}: holds a run already; choose another --out")
    remove_leftovers(out)


def check_no_run(out: Path) -> None:
    """Raise `ConfigError` if the output folder is the folder of a run."""
    if (out / "run.json").is_file():
        raise ConfigError(f"{out}: is the folder of a run; choose another --out")


def check_report(run: Path) -> dict[str, Any]:
    """Content of `run.json` of a trained run; others have no report and raise `ModelError`."""
    about = read_run(run)
    if kind := derivation(about):
        raise ModelError(f"{run}: is a {kind} model and has no report; use 'validate' or 'predict'")
    return about

"""Folder of a finished run: names of its files, and `run.json`; importable without torch."""

import os
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ich_mil.config import RunConfig
from ich_mil.errors import ConfigError, ModelError
from ich_mil.files import digest, remove_leftovers
from ich_mil.model_files import check_regular, read_json
from ich_mil.settings import build

RUN_FORMAT = "ich_mil.run.6"
BUNDLED = "headct-base"
"""Name of the model bundled with the package."""
ENSEMBLE = "ensemble.json"
FINISHED = ("head.json", ENSEMBLE)
"""Files written last: their presence marks a finished run or ensemble."""
PREDICTIONS = "predictions.json"
REFERENCE = "reference.safetensors"
"""Reference scans of the drift test (`ich_mil.model.site.drift`)."""
MODEL_FILES = (
    "config.yaml",
    "splits.csv",
    "cnn.json",
    "cnn.safetensors",
    "cnn_sigmoid.json",
    "location.safetensors",
    "head_fit.json",
    "likeness.safetensors",
    REFERENCE,
    "run.json",
    "head.safetensors",
    "head.json",
)
"""Files of the model of a run, some of them optional; the last marks it as finished."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class _Site:
    """Origin of a recalibrated model: its scans of the site, how many are positive, and its first model."""

    scans: int
    positive: int
    run: str


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class _RunFile:
    """Content of `run.json`.

    Attributes:
        format: version of the format.
        cnn: whether the run has a CNN of its own.
        table: digest of the table that it was trained on.
        config_hash: hash of the configuration.
        config: the configuration.
        trained_on: training sets, in words.
        start: `networks_digest` of the run to start from; '' for none.
        versions: versions of the libraries.
        members: folders of the members of an ensemble.
        joined: folders that the members of a joined ensemble were copied from.
        site: origin of a recalibrated model.
    """

    format: str
    cnn: bool
    table: str
    config_hash: str
    config: RunConfig
    trained_on: str
    versions: dict[str, str]
    start: str = ""
    members: list[Annotated[str, Field(pattern=r"^member_\d+$")]] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)
    site: _Site | None = None


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
    """Read `run.json`, with a whole configuration, and check that all files of the model are regular files.

    Raises:
        ModelError: a file that is missing, damaged, of another version, or no regular file.
    """
    path = folder / "run.json"
    if not os.path.lexists(path):
        raise ModelError(f"{folder}: is no run of ich_mil; name the 'out' folder of a training")
    for name in (*MODEL_FILES, ENSEMBLE):
        if os.path.lexists(folder / name):
            check_regular(folder / name)
    metadata = read_json(path, RUN_FORMAT)
    try:
        return metadata | {"config": build(_RunFile, metadata).config.as_dict()}
    except ValueError as error:
        raise ModelError(f"{path}: cannot be read ({error}); train again") from error


def run_config(folder: Path) -> RunConfig:
    """Configuration of a run that lies in `folder` now. `ModelError` as in `read_run`."""
    return replace(build(RunConfig, read_run(folder)["config"]), out=folder)


def networks_digest(folder: Path) -> str:
    """Digest of the networks of a run or ensemble, and of the scans that they learned."""
    members = sorted(folder.glob("member_*"))
    files = [place / name for place in (folder, *members) for name in ("cnn.safetensors", "splits.csv")]
    return digest(*(path.read_bytes() for path in files if path.is_file()))


def derivation(metadata: dict[str, Any]) -> str:
    """How a model was made of finished runs: `recalibrated`, `joined`, or '' for a trained model."""
    return "recalibrated" if "site" in metadata else "joined" if "joined" in metadata else ""


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
    metadata = read_run(run)
    if kind := derivation(metadata):
        raise ModelError(f"{run}: is a {kind} model and has no report; use 'validate' or 'predict'")
    return metadata

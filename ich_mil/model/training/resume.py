"""Settings of the run to start from, and the output folder of a training; importable without torch."""

from dataclasses import replace
from typing import Any

from ich_mil.config import PLACES, RunConfig
from ich_mil.errors import ConfigError
from ich_mil.families import RunHeadSettings
from ich_mil.model.folder import derivation, read_run, run_config, run_folder

MADE = ("cnn", "cnn.json", "features", "head.json")
"""Files and folders of the steps after `run.json`, by which a resumed training skips finished steps."""


def with_start_settings(config: RunConfig) -> RunConfig:
    """Take members and head of the run to start from, where the configuration leaves them at their defaults.

    Raises:
        ModelError: the run to start from cannot be read.
    """
    if config.start is None:
        return config
    folder = run_folder(config.start)
    head = config.head if config.head != RunHeadSettings() else run_config(folder).head
    members = max(config.members, len(read_run(folder).get("members", [])))
    return replace(config, head=head, members=members)


def check_folder(config: RunConfig, resume: bool) -> None:
    """Raise `ConfigError` if `out` holds another run or, without `resume`, any run."""
    if not (config.out / "run.json").is_file():
        if foreign := [name for name in MADE if (config.out / name).exists()]:
            raise ConfigError(
                f"{config.out}: holds {', '.join(foreign)} but no run.json; choose another --out"
            )
        return
    if not resume:
        raise ConfigError(
            f"{config.out}: holds a run already; add --resume to continue it, or choose another --out"
        )
    old = read_run(config.out)
    if kind := derivation(old):
        raise ConfigError(f"{config.out}: is a {kind} model, not a training; choose another --out")
    wanted = config.as_dict()
    if config.start is not None:  # the networks are those of the start, whose settings the run has stored
        wanted["encoder"] = old["config"]["encoder"] | {"freeze": wanted["encoder"]["freeze"]}
        wanted["cnn"] = old["config"]["cnn"]
    if fields := _differences(old["config"], wanted):
        also = "repeat --from, or " if "start" in fields else ""
        raise ConfigError(
            f"{config.out}: was started with other settings ({', '.join(fields)}); {also}choose another --out"
        )


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    names = []
    for name in sorted((set(old) | set(new)) - set(PLACES)):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            names += _differences(a, b, f"{prefix}{name}.")
        elif a != b:
            names.append(f"{prefix}{name}")
    return names

"""Settings from YAML and the command line into a dataclass, typed and checked.

In: words such as `--config FILE --head.beta 1.5`. Out: the dataclass; unknown keys and values out of range
are refused in one line.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

from jsonargparse import ArgumentError, ArgumentParser

from ich_mil.errors import ConfigError

C = TypeVar("C")


def check_about(path: Path, about: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the JSON file `path` is there and says anything but `about`."""
    if not path.is_file():
        return
    try:
        same = json.loads(path.read_text(encoding="utf-8")) == about
    except ValueError:
        same = False
    if not same:
        raise ConfigError(f"{path.parent}: holds results of other settings or data; choose another --out")


def read_settings(kind: type[C], arguments: Sequence[str]) -> C:
    """A dataclass of settings from `--config FILE` and overrides, as on the command line.

    Raises:
        ConfigError: unknown key, wrong type, value out of range, missing field or file; one line.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML file of this run")
    parser.add_class_arguments(kind)
    try:
        made = parser.instantiate(parser.parse_args(list(arguments)))
        return kind(**{one.name: getattr(made, one.name) for one in fields(cast(Any, kind))})
    except (ArgumentError, ValueError, TypeError) as error:
        # one line, with the file it is about where there is one
        files: list[str] = [Path(a).name for a in arguments if a.endswith((".yaml", ".yml"))]
        told = " ".join(str(error).split())
        if told.startswith("Unexpected config:"):  # the library's words for a file without a mapping
            told = "holds no settings; write lines 'name: value' as the files in configs/ do"
        raise ConfigError(": ".join([*files, told])) from error

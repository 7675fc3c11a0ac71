"""Settings from YAML and the command line into a dataclass, typed and checked.

In: words such as `--config FILE --head.beta 1.5`. Out: the dataclass; unknown keys and values out of range
are refused in one line.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from ich_mil.errors import ConfigError

C = TypeVar("C")

SEEDS = 2**32
"""Seeds lie below it; scikit-learn takes no larger ones."""


def check_seeds(name: str, *seeds: int) -> None:
    """Raise `ValueError` unless the setting `name` has at least one seed, each from 0 to below `SEEDS`."""
    check_list(name, seeds)
    for seed in seeds:
        if not 0 <= seed < SEEDS:
            raise ValueError(f"{name} must lie in 0..{SEEDS - 1}, got {seed}")


def check_list(name: str, values: Sequence[object]) -> None:
    """Raise `ValueError` unless the setting `name` has at least one value, and none twice."""
    if not values:
        raise ValueError(f"{name} needs at least one value")
    if repeated := [value for i, value in enumerate(values) if value in values[:i]]:
        raise ValueError(f"{name} has {repeated[0]!r} twice; each would count as another")


def check_least(settings: object, part: str = "", **least: float) -> None:
    """Raise `ValueError` if a field of `settings`, below its `part`, is less than this, infinite or NaN."""
    for name, bound in least.items():
        value = getattr(settings, name)
        if not bound <= value < math.inf:
            finite = " and finite" if value == math.inf else ""
            raise ValueError(f"{part}{name} must be at least {bound}{finite}, got {value}")


def filled_path(name: str, text: str) -> Path:
    """The path in the setting `name`, its `$NAME` and `~` filled in. `ConfigError` if one is not known."""
    filled = os.path.expandvars(text)
    left = re.search(r"\$(\w+|\{\w+\})", filled)
    if left:
        raise ConfigError(f"{name} {text!r}: the environment variable {left[0]} is not set")
    try:
        return Path(filled).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{name} {text!r}: there is no such home folder; name the folder itself") from error


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


def _mappings(node: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    """Every mapping of a YAML document, at any depth."""
    if isinstance(node, yaml.MappingNode):
        yield node
        for _, value in node.value:
            yield from _mappings(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _mappings(value)


def _check_names(path: str) -> None:
    """Raise `ValueError` if a name stands twice in one mapping of a YAML file: its reader takes the last."""
    try:
        document = yaml.compose(Path(path).read_text(encoding="utf-8"), yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return  # the parser says what is wrong with the file
    for mapping in _mappings(document):
        lines: dict[str, int] = {}
        for name, _ in mapping.value:
            key, line = str(name.value), name.start_mark.line + 1
            if key in lines:
                raise ValueError(
                    f"{key!r} is there twice, in line {lines[key]} and in line {line}; leave one"
                )
            lines[key] = line


def read_settings(kind: type[C], arguments: Sequence[str], *, program: str = "ich-mil", more: str = "") -> C:
    """A dataclass of settings from `--config FILE` and overrides, as on the command line.

    Args:
        kind: the dataclass.
        arguments: the words.
        program: what `--help` calls the command.
        more: what `--help` tells at its end.

    Raises:
        ConfigError: unknown key, key given twice, wrong type, value out of range, missing field or file;
            one line.
    """
    words = [part for word in arguments for part in (word.split("=", 1) if word[:2] == "--" else [word])]
    files = [value for name, value in pairwise(words) if name == "--config"]
    parser = ArgumentParser(prog=program, epilog=more, exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML file of this run")
    parser.add_class_arguments(kind)
    try:
        for file in files:
            _check_names(file)
        made = parser.instantiate(parser.parse_args(list(arguments)))
        return kind(**{one.name: getattr(made, one.name) for one in fields(cast(Any, kind))})
    except (ArgumentError, ValueError, TypeError, OverflowError) as error:
        # one line, with all that the settings come from
        given = [Path(file).name for file in files]
        given += [word for word in words if word[:2] == "--" and word != "--config"]
        told = " ".join(str(error).split())
        if told.startswith("Unexpected config:"):  # the library's words for a file without a mapping
            told = "holds no settings; write lines 'name: value' as the files in configs/ do"
        elif "argument after ** must be a mapping" in told:  # Python's, of a list
            told = "a list stands where settings have names; write lines 'name: value' below 'head:', say"
        elif isinstance(error, UnicodeDecodeError):
            told = "is no UTF-8 text; save it in UTF-8"
        elif not files and "arguments" in told:  # the library's words: required, or unrecognized ones
            told = f"{told}; settings stand in a file, such as those in configs/: --config FILE"
        raise ConfigError(f"{', '.join(given)}: {told}" if given else told) from error

"""Typed settings from YAML files and the command line.

In: command-line arguments such as `--config FILE --head.beta 1.5`. Out: an instance of a dataclass. Unknown
keys and values out of range raise a `ConfigError` of one line.
"""

import argparse
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import yaml

from ich_mil.errors import ConfigError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

C = TypeVar("C")

CONFIGS = Path(__file__).parent / "bundled" / "configs"
"""Configurations that come with the package; the same files as `configs/` of the repository."""
PROTOCOL = "protocol_"
"""Start of the names of shipped benchmark protocols."""
SEEDS = 2**32
"""Upper bound of seeds, exclusive: the limit of scikit-learn."""
YAML_NODES, YAML_DEPTH, YAML_TEXT = 10_000, 20, 4096
"""Limits of a YAML text: values with aliases written out, levels, characters of a value."""
NO_CODE = "code to import, which no setting does; write the settings themselves"
"""Reason for the refusal of classes, which jsonargparse accepts in place of settings, and would import."""


def check_seeds(name: str, *seeds: int) -> None:
    """Raise `ValueError` unless the setting `name` has one or more distinct seeds in 0..`SEEDS` - 1."""
    check_list(name, seeds)
    for seed in seeds:
        if not 0 <= seed < SEEDS:
            raise ValueError(f"{name} must lie in 0..{SEEDS - 1}, got {seed}")


def check_list(name: str, values: Sequence[object]) -> None:
    """Raise `ValueError` unless the setting `name` has one or more values without repetition."""
    if not values:
        raise ValueError(f"{name} needs at least one value")
    if repeated := [value for i, value in enumerate(values) if value in values[:i]]:
        raise ValueError(f"{name} has {repeated[0]!r} twice; each would count as another")


def check_least(settings: object, part: str = "", **least: float) -> None:
    """Raise `ValueError` if a field of `settings` is below its lower bound, infinite or NaN.

    `part` is a prefix of field names in the message, such as `training.`.
    """
    for name, bound in least.items():
        value = getattr(settings, name)
        if not bound <= value < math.inf:
            finite = " and finite" if value == math.inf else ""
            raise ValueError(f"{part}{name} must be at least {bound}{finite}, got {value}")


def filled_path(name: str, text: str) -> Path:
    """Expand `$NAME` and `~` in the path given by the setting `name`.

    Raises:
        ConfigError: an unset environment variable or unknown home folder.
    """
    filled = os.path.expandvars(text)
    left = re.search(r"\$(\w+|\{\w+\})", filled)
    if left:
        raise ConfigError(f"{name} {text!r}: the environment variable {left[0]} is not set")
    try:
        return Path(filled).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{name} {text!r}: there is no such home folder; name the folder itself") from error


def shipped_configs(prefix: str = "") -> dict[str, Path]:
    """Configurations that come with the package, by name without `prefix`; by default all but protocols."""
    names = {path.stem: path for path in sorted(CONFIGS.glob(f"{prefix}*.yaml"))}
    return {
        name.removeprefix(prefix): path
        for name, path in names.items()
        if prefix or not name.startswith(PROTOCOL)
    }


def config_file(name: str, prefix: str = "") -> Path:
    """File of a configuration, given by its path or by the name of a shipped one.

    Raises:
        ConfigError: `name` is neither a YAML file nor the name of a shipped configuration.
    """
    if Path(name).suffix in (".yaml", ".yml") or Path(name).is_file():
        return Path(name)
    shipped = shipped_configs(prefix)
    if name not in shipped:
        raise ConfigError(
            f"{name}: no such configuration{did_you_mean(name, shipped)}; name a YAML file, or one of "
            f"{', '.join(shipped)}"
        )
    return shipped[name]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the known word closest to a mistyped one, as part of an error message; '' if none is close."""
    close = get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_about(path: Path, about: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the JSON file `path` exists and differs from `about`."""
    if not path.is_file():
        return
    try:
        same = json.loads(path.read_text(encoding="utf-8")) == about
    except ValueError:
        same = False
    if not same:
        raise ConfigError(f"{path.parent}: holds results of other settings or data; choose another --out")


def _check_size(text: str) -> None:
    """Raise `ValueError` for a YAML text beyond the limits; no object is built, an alias counts in full."""
    sizes: dict[str, int] = {}  # number of nodes of each anchor
    opened: list[tuple[str, int]] = []  # anchor, and number of nodes before it
    nodes = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        assert event.start_mark is not None  # only events made by hand have none
        line, anchor = event.start_mark.line + 1, getattr(event, "anchor", None) or ""
        if isinstance(event, yaml.AliasEvent):
            if anchor in dict(opened):
                raise ValueError(f"line {line}: *{anchor} refers to itself; write out what is meant")
            nodes += sizes.get(anchor, 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            sizes[anchor] = nodes - before
        elif isinstance(event, yaml.NodeEvent):
            opened += [(anchor, nodes)] if isinstance(event, yaml.CollectionStartEvent) else []
            nodes += 1
            sizes[anchor] = 1
        if nodes > YAML_NODES or len(opened) > YAML_DEPTH or len(getattr(event, "value", "")) > YAML_TEXT:
            raise ValueError(
                f"line {line}: is more than settings need: at most {YAML_NODES:,} values, {YAML_DEPTH} "
                f"levels, {YAML_TEXT:,} characters a value"
            )


def _check_names(node: yaml.Node | None) -> None:
    """Raise `ValueError` for a key that is there twice, of which PyYAML keeps the last, or a `class_path`."""
    lines: dict[str, int] = {}
    for part in node.value if isinstance(node, yaml.CollectionNode) else ():
        if isinstance(part, tuple):
            name, part = part
            key, line = str(name.value), name.start_mark.line + 1
            if key in lines:
                raise ValueError(f"{key!r} stands twice, in lines {lines[key]} and {line}; leave one")
            if key.rpartition(".")[2] == "class_path":
                raise ValueError(f"line {line}: {key} names {NO_CODE}")
            lines[key] = line
        _check_names(part)


def _load_yaml(text: str) -> Any:
    """Parse a YAML text, a file or a value, after its checks."""
    from jsonargparse import get_loader

    _check_size(text)
    _check_names(yaml.compose(text, yaml.SafeLoader))
    return get_loader("yaml")(text)


def read_settings(kind: type[C], arguments: Sequence[str], *, program: str = "ich-mil", more: str = "") -> C:
    """Read a dataclass of settings from `--config FILE` and overrides, as on the command line.

    FILE may be the name of a shipped configuration (`config_file`). `program` is the name of the command in
    `--help`, `more` its last paragraph.

    Raises:
        ConfigError: unknown key, key given twice, wrong type, value out of range, missing field or file;
            one line.
    """
    from jsonargparse import ArgumentError  # takes half a second, and the checks above are used without

    arguments = _with_files(arguments)
    words = [part for word in arguments for part in (word.split("=", 1) if word[:2] == "--" else [word])]
    files = [value for name, value in pairwise(words) if name == "--config"]
    parser = settings_parser(kind, program=program, more=more)
    try:
        made = parser.instantiate(parser.parse_args(arguments))
        return kind(**{one.name: getattr(made, one.name) for one in fields(cast(Any, kind))})
    except (ArgumentError, ValueError, TypeError, OverflowError) as error:
        # the message starts with the files and options that the settings come from
        given = [*files]
        given += [word for word in words if word[:2] == "--" and word != "--config"]
        told = " ".join(str(error).split())
        if "import path denylist" in told:
            told = f"names {NO_CODE}"
        elif told.startswith("Unexpected config:"):  # jsonargparse, for a file without a mapping
            told = "holds no settings; write lines 'name: value' as the files in configs/ do"
        elif "argument after ** must be a mapping" in told:  # Python, for a list
            told = "a list stands where settings have names; write lines 'name: value' below 'head:', say"
        elif isinstance(error, UnicodeDecodeError):
            told = "is no UTF-8 text; save it in UTF-8"
        elif unknown := _UNKNOWN.search(told):
            name = ".".join(filter(None, unknown.groups()))
            told += did_you_mean(name, (action.dest for action in parser._actions))
        if not files and "arguments" in told:  # argparse: required or unrecognized arguments
            told = f"{told}; settings stand in a file, such as those in configs/: --config FILE"
        raise ConfigError(f"{', '.join(given)}: {told}" if given else told) from error


_UNKNOWN = re.compile(
    r"unrecognized arguments: --([\w.-]+)"
    r"|Group '(.+?)' does not accept option '(.+?)'"
    r"|Option '(.+?)' is not accepted"
)
"""Messages of argparse and jsonargparse about an unknown setting."""


def settings_parser(kind: type, *, program: str = "ich-mil", more: str = "") -> "ArgumentParser":
    """Parser of `--config FILE` and the fields of a dataclass; arguments as in `read_settings`."""
    from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_loader, set_parsing_settings

    set_parsing_settings(import_path_denylist=["*", "ich_mil.__main__"], import_path_allowlist=["ich_mil"])
    set_loader("checked", _load_yaml, (yaml.YAMLError,))

    class Help(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
        """Keeps the lines of `more`."""

    parser = ArgumentParser(
        prog=program, epilog=more, exit_on_error=False, parser_mode="checked", formatter_class=Help
    )
    parser.add_argument("--config", action="config", help="YAML file, or the name of a shipped configuration")
    parser.add_class_arguments(kind)
    return parser


def _with_files(arguments: Sequence[str]) -> list[str]:
    """The arguments, with the file of each shipped configuration in place of its name after `--config`."""
    words = list(arguments)
    for place, word in enumerate(words):
        if word.startswith("--config="):
            words[place] = f"--config={config_file(word.removeprefix('--config='))}"
        elif word == "--config" and place + 1 < len(words):
            words[place + 1] = str(config_file(words[place + 1]))
    return words

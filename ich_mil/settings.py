"""Typed settings from YAML files, the command line and stored models, checked by pydantic.

In: words such as `--config FILE --head.beta 1.5`, or plain values of a stored file. Out: an instance of a
dataclass. An unknown name, a wrong type or a value out of range is an error of one line.
"""

import inspect
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from ich_mil.errors import ConfigError
from ich_mil.yaml_files import load_yaml, read_yaml

if TYPE_CHECKING:
    from pydantic import ValidationError

C = TypeVar("C")

CONFIGS = Path(__file__).parent / "bundled" / "configs"
"""Configurations that come with the package; the same files as `configs/` of the repository."""
SEEDS = 2**32
"""Upper bound of seeds, exclusive: the limit of scikit-learn."""
IN_A_FILE = "settings stand in a file, such as those in configs/: --config FILE"


def filled_path(name: str, text: str) -> Path:
    """Expand `$NAME` and `~` in the path given by the setting `name`.

    Raises:
        ConfigError: an unset environment variable or unknown home folder.
    """
    filled = os.path.expandvars(text)
    if left := re.search(r"\$(\w+|\{\w+\})", filled):
        raise ConfigError(
            f"{name} {text!r}: the environment variable {left[0]} is not set: export it first (docs/data.md)"
        )
    try:
        return Path(filled).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{name} {text!r}: there is no such home folder; name the folder itself") from error


def shipped_configs() -> dict[str, Path]:
    """Configurations that come with the package, by name."""
    return {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


def config_file(name: str) -> Path:
    """File of a configuration, given by its path or by the name of a shipped one.

    Raises:
        ConfigError: `name` is neither a YAML file nor the name of a shipped configuration.
    """
    if Path(name).suffix in (".yaml", ".yml") or Path(name).is_file():
        return Path(name)
    shipped = shipped_configs()
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


def check_about(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the JSON file `path` exists and differs from `metadata`."""
    if not path.is_file():
        return
    try:
        same = json.loads(path.read_text(encoding="utf-8")) == metadata
    except ValueError:
        same = False
    if not same:
        raise ConfigError(f"{path.parent}: holds results of other settings or data; choose another --out")


class Setting(NamedTuple):
    """A field of a dataclass of settings: its type, its default as text ('' if required), its description."""

    hint: Any
    default: str
    help: str


def describe(kind: type, prefix: str = "") -> dict[str, Setting]:
    """All settings of a dataclass by dotted name, with those of dataclasses within, not of lists of them."""
    texts = re.findall(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", inspect.getdoc(kind) or "", re.M)
    helps = {name: " ".join(text.split()) for name, text in texts}
    hints, settings = get_type_hints(kind), {}
    for name, default in ((field.name, _default(field)) for field in fields(kind)):
        within = [part for part in alternatives(hints[name]) if is_dataclass(part)]
        settings[prefix + name] = Setting(hints[name], "" if within else default, helps.get(name, ""))
        for part in within:
            assert isinstance(part, type)
            settings |= describe(part, f"{prefix}{name}.")
    return settings


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union; a type by itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _default(field: "Field[Any]") -> str:
    if field.default_factory is not MISSING:
        return str(field.default_factory())
    return "" if field.default in (MISSING, None) else str(field.default)


def build(kind: type[C], values: Any) -> C:
    """Build a dataclass, and dataclasses within, from plain values; strict: no text becomes a number.

    Raises:
        ValueError: an unknown, missing or wrong field; one line that names it.
    """
    from pydantic import TypeAdapter, ValidationError

    if not hasattr(kind, "__pydantic_config__"):  # a dataclass of the standard library
        setattr(kind, "__pydantic_config__", {"extra": "forbid"})  # noqa: B010
    try:
        text = json.dumps(values, default=str)  # JSON has lists for tuples
        made: C = TypeAdapter(kind).validate_json(text, strict=True)
        return made
    except ValidationError as error:
        raise ValueError(_line(error, describe(kind))) from error
    except RecursionError:
        raise ValueError("is nested too deep") from None


def _line(error: "ValidationError", known: Mapping[str, Setting]) -> str:
    errors = error.errors(include_url=False)
    kind, value, path = errors[0]["type"], errors[0]["input"], errors[0]["loc"]
    name = ".".join(map(str, path))
    if kind == "value_error":  # of a check of ours
        reason = " ".join(str(errors[0]["ctx"]["error"]).split())
        return reason if name.rpartition(".")[2] in reason else f"{name}: {reason}"
    if kind == "unexpected_keyword_argument":
        return f"{name} is no setting{did_you_mean(name, known)}"
    if kind == "missing":
        return f"{name} is missing"
    alike = [other for other in errors if other["loc"][:-1] == path[:-1] and other["input"] == value]
    if len(alike) > 1 and name not in known:  # a union: each of its types has an error
        name = ".".join(map(str, path[:-1]))
    allowed = "; or ".join(dict.fromkeys(other["msg"] for other in alike))
    return f"{name or 'the settings'}: {allowed}, got {value!r:.80}"


def read_settings(kind: type[C], arguments: Sequence[str]) -> C:
    """Read a dataclass of settings from `--config FILE` and overrides, as on the command line.

    FILE may be the name of a shipped configuration (`config_file`).

    Raises:
        ConfigError: unknown or repeated name, wrong type, value out of range, missing field or file; one
            line.
    """
    options = _options(arguments)
    file = options.pop("config", None)
    sources = [] if file is None else [str(path := config_file(file))]
    sources += [f"--{name}" for name in options]
    known = describe(kind)
    try:
        values = {} if file is None else read_yaml(path)
        for name, text in options.items():
            _override(values, name, text, known)
        return build(kind, values)
    except ValueError as error:
        remedy = "" if file else f"; {IN_A_FILE}"
        raise ConfigError(f"{', '.join(sources) or 'no settings'}: {error}{remedy}") from error


def help_lines(kind: type) -> list[str]:
    """A line for each setting: its name, description and default."""
    return [
        f"  --{name}: {setting.help}{f' [default: {setting.default}]' if setting.default else ''}"
        for name, setting in describe(kind).items()
        if not any(map(is_dataclass, alternatives(setting.hint)))
    ]


def _options(words: Sequence[str]) -> dict[str, str]:
    """Values by name of `--name value` and `--name=value`."""
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise ConfigError(f"{word}: unexpected; {IN_A_FILE}")
        if not equals and (value := next(rest, "")) == "":
            raise ConfigError(f"--{name}: needs a value")
        if name in options:
            raise ConfigError(f"--{name}: stands twice; leave one")
        options[name] = value
    return options


def _override(values: dict[str, Any], name: str, text: str, known: Mapping[str, Setting]) -> None:
    """Set a value of the command line; the text of a setting that is a text or a path stays as it is."""
    if name not in known:
        raise ValueError(f"{name} is no setting{did_you_mean(name, known)}")
    hint = known[name].hint
    plain = {*alternatives(hint)} - {NoneType} <= {str, Path} and text != "null"
    *groups, last = name.split(".")
    for group in groups:
        if values.get(group) is None:
            values[group] = {}
        values = values[group]
        if not isinstance(values, dict):
            raise ValueError(f"{group} has no settings by name in the file")
    values[last] = text if plain else load_yaml(text)

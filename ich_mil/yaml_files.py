"""Plain values of YAML texts, bounded in length, values and levels.

In: a file or a text. Out: dictionaries, lists, texts, numbers. Errors are a `ValueError` of one line.
"""

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

CHARACTERS, VALUES, LEVELS = 2**16, 10_000, 20
"""Limits of a text: its length, its values with aliases written out, its levels."""
TOO_LARGE = f"holds more than settings need: at most {VALUES:,} values, {LEVELS} levels"


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number, like YAML 1.2."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Values of a YAML file by name, none of them shared by an alias.

    Raises:
        ValueError: a file that cannot be read or holds no names, or as in `load_yaml`.
    """
    try:
        with path.open(encoding="utf-8") as file:
            values = load_yaml(file.read(CHARACTERS + 1))
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror}); name a YAML file") from error
    except UnicodeDecodeError as error:
        raise ValueError("is no UTF-8 text; save it in UTF-8") from error
    if not isinstance(values, dict):
        raise ValueError("holds no settings; write lines 'name: value' as the files in configs/ do")
    return dict(json.loads(json.dumps(values, default=str)))


def load_yaml(text: str) -> Any:
    """Parse a YAML text: plain values only, and no name twice.

    Raises:
        ValueError: broken, beyond the limits, or a name twice.
    """
    if len(text) > CHARACTERS:
        raise ValueError(f"is longer than settings are: more than {CHARACTERS:,} characters")
    try:
        _check(yaml.compose(text, _Loader))
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError:
        raise ValueError(TOO_LARGE) from None


def _check(node: yaml.Node | None, level: int = 0) -> int:
    """Number of values of a node, aliases written out. `ValueError` as in `load_yaml`."""
    if node is None or not isinstance(node.value, list):
        return 1
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    names = set[str]()
    for name in (key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)):
        if name in names:
            raise ValueError(f"{name!r} stands twice below line {node.start_mark.line + 1}; leave one")
        names.add(name)
    total = 1
    for part in chain(*pairs) if pairs else node.value:
        total += _check(part, level + 1)
        if total > VALUES or level > LEVELS:
            raise ValueError(TOO_LARGE)
    return total

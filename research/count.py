"""Size of the project: lines by room, public names, settings and flags, required dependencies.

    python -m research.count [ROOT]

ROOT is a checkout, by default this one. A public name is a class or a function without underscore at the top
of a module. A setting is a field of the configuration of a run or a grid that groups no others. A flag is an
option of one or more commands.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

OPTION = re.compile(r"^ *(?:-\w, )?--([a-z][a-z-]*)(?![\w.:])", re.MULTILINE)
DEFINED = ast.ClassDef | ast.FunctionDef
SETTINGS = """
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints
from ich_mil import config
def within(hint):
    if is_dataclass(hint):
        return {hint}.union(*(within(one) for one in get_type_hints(hint).values()))
    return set().union(*map(within, get_args(hint)))
kinds = within(config.RunConfig) | within(config.GridConfig)
print(len({f"{kind.__qualname__}.{one.name}" for kind in kinds for one in fields(kind)
           if not within(get_type_hints(kind)[one.name])
           and not any(one.name in getattr(base, "__annotations__", {}) for base in kind.__mro__[1:])}))
"""
"""Program that prints the number of settings; a field that a class inherits counts for its base only."""


def lines(root: Path) -> Counter[str]:
    """Lines of the Python files by room: a folder of the package, `research` or `tests`."""
    counts: Counter[str] = Counter()
    for top in ("ich_mil", "research", "tests"):
        for path in sorted((root / top).rglob("*.py")):
            room = path.relative_to(root / top).parts[0] if top == "ich_mil" else ""
            counts[f"{top}/{room}"] += len(path.read_text(encoding="utf-8").splitlines())
    return counts


def public_names(path: Path) -> list[str]:
    """Classes and functions without underscore at the top of a module."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [node.name for node in body if isinstance(node, DEFINED) and not node.name.startswith("_")]


def output(root: Path, *words: str) -> str:
    """Standard output of Python with the package of `root`."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        text=True,
        check=True,
        stdout=-1,
    ).stdout


def flags(root: Path) -> set[str]:
    """Options of all commands, from their help, without help and completion."""
    commands = re.findall(r"^ {2,4}([a-z][a-z-]+) {2,}", output(root, "-m", "ich_mil", "--help"), re.M)
    pages = [output(root, "-m", "ich_mil", command, "--help") for command in commands]
    options = {name for page in pages for name in OPTION.findall(page.split("Settings, here")[0])}
    return options - {"help", "install-completion", "show-completion"}


def main(root: Path) -> None:
    """Print the table."""
    for room, count in lines(root).items():
        print(f"{count:7,} lines  {room}")
    files = sorted((root / "ich_mil").rglob("*.py"))
    print(f"{sum(len(public_names(path)) for path in files):7,} public names in ich_mil")
    exported = output(root, "-c", "import ich_mil; print(len(getattr(ich_mil, '__all__', ())))")
    print(f"{int(exported):7,} names in ich_mil.__all__")
    settings = int(output(root, "-c", SETTINGS))
    print(f"{settings:7,} settings, {len(options := flags(root))} flags: {settings + len(options)}")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(f"{len(project['dependencies']):7,} required dependencies")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve())

"""Hook of MkDocs: tables made from the code, and the repository's own pages in the menu.

A page with `<!-- settings: module.Class -->` or `<!-- ledger codes -->` gets that table. Changelog, model
card, citation and security stand outside `docs/`; their links are rewritten.
"""

import re
from collections.abc import Iterable
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import ich_mil
from ich_mil.ledger import Code
from ich_mil.settings import alternatives, describe

ROOT = Path(__file__).parents[1]
PAGES = {
    "model_card.md": "checkpoints/headct-base/MODEL_CARD.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}


def on_config(config: MkDocsConfig) -> None:
    """Put the version into the footer."""
    config.copyright = f"ich_mil {ich_mil.__version__} · Apache-2.0 · for research only, not for diagnosis"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that stand outside `docs/`."""
    for name, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "citation.md", content=_citation()))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables."""
    markdown = re.sub(r"<!-- settings: ([\w.]+) -->", lambda match: _settings(match[1]), markdown)
    return markdown.replace("<!-- ledger codes -->", _ledger_codes())


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [[*head], ["---"] * len([*head]), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _settings(name: str) -> str:
    """Settings of a dataclass itself, not of those within."""
    module, _, kind = name.rpartition(".")
    rows = [
        (f"`{key}`", _values(setting.hint), f"`{setting.default}`" if setting.default else "", setting.help)
        for key, setting in describe(getattr(import_module(module), kind)).items()
        if "." not in key
    ]
    return _table(("setting", "values", "default", "meaning"), rows)


def _values(hint: Any) -> str:
    """What a setting may be, from its type."""
    if get_origin(hint) is Annotated:
        base, *checks = get_args(hint)
        limits = [limit for check in checks for limit in getattr(check, "metadata", ())]
        signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
        bounds = [
            f"{sign} {getattr(one, key)}"
            for one in limits
            for key, sign in signs.items()
            if hasattr(one, key)
        ]
        return ", ".join([_values(base), *bounds])
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if len(parts := alternatives(hint)) > 1:
        return " or ".join(_values(part) for part in parts)
    if hint is type(None):
        return "none"
    if get_origin(hint) in (list, dict, tuple):
        return f"{get_origin(hint).__name__} of {', '.join(_values(part) for part in get_args(hint))}"
    if is_dataclass(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    words = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text", Path: "path"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def _ledger_codes() -> str:
    rows = [(f"`{code}`", code.kind, code.weight, code.text) for code in Code]
    return _table(("code", "kind", "weight", "meaning"), rows)


def _citation() -> str:
    """`CITATION.cff` as a page."""
    stated = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    lines = [
        "# Citation",
        "",
        f"{stated['message']}",
        "",
        f"{stated['title']}, version {stated['version']}.",
        "",
    ]
    for paper in stated["references"]:
        authors = ", ".join(f"{one['given-names']} {one['family-names']}" for one in paper["authors"])
        doi = f" [{paper['doi']}](https://doi.org/{paper['doi']})" if "doi" in paper else ""
        lines.append(f"* {authors}: {paper['title']}, {paper['year']}.{doi}")
    return "\n".join(lines) + "\n"

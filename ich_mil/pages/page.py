"""Shared HTML rendering of the report pages: templates, content security policy, file names and links.

Every text may come from a DICOM file or a label table: Jinja2 escapes all texts, and unprintable or
misleading characters are replaced (`ich_mil.pages.text`). A Content-Security-Policy allows only embedded
pictures and the page's own style sheet and script, identified by their SHA-256 digests (W3C CSP Level 3,
6.7.3).
"""

import base64
import hashlib
import math
import re
from functools import cache
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from ich_mil.ledger import NOTICE, THRESHOLD
from ich_mil.pages.text import printable

_SPACE = "\N{NO-BREAK SPACE}"


def percent(probability: float) -> str:
    """Format a probability as '87 %', or as '< 1 %' and '> 99 %' at the ends to avoid a claim of certainty.

    A value just below the threshold keeps one decimal ('49.6 %'), since a rounded '50 %' would read as
    positive.
    """
    if probability < 0.01:
        return f"<{_SPACE}1{_SPACE}%"
    if probability > 0.99:
        return f">{_SPACE}99{_SPACE}%"
    if probability < THRESHOLD <= round(probability, 2):
        return f"{math.floor(1000 * probability) / 10:.1f}{_SPACE}%"
    return f"{100 * probability:.0f}{_SPACE}%"


def interval(ends: tuple[float, float]) -> str:
    """Format an interval as '71 % to 95 %', or as '< 1 %' if both ends have the same wording."""
    return " to ".join(dict.fromkeys(map(percent, ends)))


def relative_link(address: str) -> str:
    """Percent-encode `address` as a path relative to the page. `ValueError` if it starts with a slash."""
    if PurePosixPath(address).is_absolute() or address.startswith("\\"):
        raise ValueError(f"a link in a report must be relative, got {address!r}")
    return quote(address.encode("utf-8", "replace"), safe="/._-~")


def study_file_name(scan: str) -> str:
    """File name of a scan's page: readable, deterministic, and unique for each scan."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", scan).strip("-")[:60]
    if plain == scan:
        return f"scan-{plain}.html"
    return f"scan-{plain}-{hashlib.sha256(scan.encode('utf-8', 'replace')).hexdigest()[:8]}.html"


def render(template: str, *, script: str = "", **values: Any) -> str:
    """Fill a template to one HTML document that needs no other file and no network.

    Args:
        template: file name in `templates/`.
        script: file name of the page's own script in `templates/`, if any; `light.js` is on every page.
        values: variables of the template.
    """
    environment = _environment()
    code = "\n".join(_source(name) for name in ("light.js", script) if name)
    style = _source("style.css")
    policy = f"default-src 'none'; img-src data:; style-src {_digest(style)}"
    policy += f"; script-src {_digest(code)}"
    return environment.get_template(template).render(
        **values,
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        style=Markup(style),  # our own file, contains no '<'
        script=Markup(code),
    )


def embedded(data: Any) -> Markup:
    """Serialise `data` to JSON for a `<script type="application/json">`; '<', '>' and '&' are escaped."""
    return htmlsafe_json_dumps(data, allow_nan=False, separators=(",", ":"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ich_mil.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters.update(percent=percent, interval=interval, relative=relative_link)
    environment.globals.update(notice=NOTICE, threshold=THRESHOLD)
    return environment


def _shown(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _source(name: str) -> str:
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), name)[0]


def _digest(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"

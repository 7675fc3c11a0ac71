"""Check the links between the pages of the built documentation site.

    python -m tests.site_links site

Prints each link to a file or an anchor that is not there, and fails if there is one. Links to other hosts are
not followed.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        """Read a page."""
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect `href`, `src`, `id` and `name`."""
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.append(value)


def dead_links(site: Path) -> list[str]:
    """Links to a file or an anchor that is not there, as 'page: link'."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            to = to / "index.html" if to.is_dir() else to
            anchor = unquote(parts.fragment)
            if not to.is_file() or (to in pages and anchor not in pages[to].anchors | {"__skip"}):
                dead.append(f"{path.relative_to(site.resolve())}: {link}")
    return dead


if __name__ == "__main__":
    found = dead_links(Path(sys.argv[1]))
    print("\n".join(found) or "no dead link")
    sys.exit(bool(found))

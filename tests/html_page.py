"""What tests ask of a page: its tags, addresses and text, and that it needs nothing but itself."""

import base64
import hashlib
import re
from html.parser import HTMLParser

from ich_mil.ledger import NOTICE

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '" onload="alert(1)" x=\'',
    "'><img src=https://evil.example/x.png>",
    "{{ 7 * 7 }}{% raw %}",
    "x" * 300,
    "//evil.example/a",
    "javascript:alert(1)",
    "$x_{$ & \u202e gnp \x00\udc80",
]


class Page(HTMLParser):
    """Collects tags, addresses, attribute names and text of a page; text of scripts and styles apart."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.addresses, self.attributes, self.pieces = [], [], set(), []
        self.code = {"script": [], "style": []}
        self.policy, self.alternatives = "", []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        self.attributes |= set(values)
        self.addresses += [
            v for k, v in attributes if k in ("src", "href", "srcset", "action", "data", "poster")
        ]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        if tag == "img":
            self.alternatives.append(values.get("alt"))

    def handle_data(self, data):
        if self.lasttag in self.code and self.cdata_elem:
            self.code[self.lasttag].append(data)
        else:
            self.pieces.append(data)

    @property
    def text(self):
        """All that is shown, as one text."""
        return "".join(self.pieces)


def check_offline(html):
    """Assert that a page loads nothing, runs nothing but its own script, and carries the notice."""
    page = Page(html)
    for address in page.addresses:
        assert address.startswith(("data:image/png;base64,", "data:image/jpeg;base64,")) or ":" not in address
        assert not address.startswith(("/", "\\")), address
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not [name for name in page.attributes if name.startswith("on") or name == "style"]
    assert page.policy.startswith("default-src 'none'; img-src data:; ")
    assert "unsafe" not in page.policy
    sources = [*page.code["style"], *page.code["script"][-1:]]
    digests = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in sources]
    assert re.findall(r"'sha256-([^']+)'", page.policy) == digests
    for style in page.code["style"]:
        assert "url(" not in style
        assert "@import" not in style
    assert None not in page.alternatives
    assert f"{NOTICE} The original images are unchanged. Look at the full study." in page.text
    assert not set("\u202e\x00\udc80") & set(html)
    html.encode("utf-8")
    return page

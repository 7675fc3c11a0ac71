"""Settings from files and options: what is read, and one line for what cannot be."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from ich_mil.errors import ConfigError
from ich_mil.settings import filled_path, help_lines, read_settings
from ich_mil.yaml_files import load_yaml


@dataclass(frozen=True)
class Inner:
    """A part.

    Attributes:
        beta: a number,
            on two lines.
        freeze: a union.
    """

    beta: Annotated[float, Field(gt=0)] = 1.0
    freeze: int | Literal["all", "none"] = "none"

    def __post_init__(self):
        if self.beta == 7:
            raise ValueError("beta must not be 7,\nnot at all")


@dataclass(frozen=True)
class Outer:
    """All.

    Attributes:
        out: a path.
    """

    out: Path
    name: str = ""
    inner: Inner = field(default_factory=Inner)
    other: Inner | None = None
    parts: list[Inner] = field(default_factory=list)
    pair: tuple[float, float] = (1.0, 2.0)
    names: dict[str, str] = field(default_factory=dict)
    count: int = 0


def read(tmp_path, text, *words):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return read_settings(Outer, ["--config", str(path), *words])


def test_files_and_options_become_typed_settings(tmp_path):
    text = "out: a\ninner: &i {beta: 2, freeze: 3}\nparts: [*i, {beta: 1e-3}]\npair: [3, 4]\n"
    words = (
        "--inner.beta=2.5",
        "--other.freeze",
        "all",
        "--name",
        "12",
        "--count",
        "-1",
        "--names",
        "{a: b}",
    )
    assert read(tmp_path, text, *words) == Outer(
        Path("a"),
        name="12",
        inner=Inner(2.5, 3),
        other=Inner(1.0, "all"),
        parts=[Inner(2.0, 3), Inner(1e-3)],
        pair=(3.0, 4.0),
        names={"a": "b"},
        count=-1,
    )
    assert read(tmp_path, "{out: a, other: {beta: 2}}", "--other", "null").other is None
    assert type(read(tmp_path, "{out: a, inner: {beta: 2}}").inner.beta) is float


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("name: x", (), "out is missing"),
        ("{out: a, naem: x}", (), "naem is no setting (did you mean 'name'?)"),
        ("{out: a, inner: {betta: 1}}", (), "inner.betta is no setting (did you mean 'inner.beta'?)"),
        ("{out: a, inner: {class_path: os.system}}", (), "inner.class_path is no setting"),
        ("out: a", ("--inner.betta", "1"), "inner.betta is no setting (did you mean 'inner.beta'?)"),
        ("{out: a, inner: {beta: 0}}", (), "inner.beta: Input should be greater than 0, got 0"),
        ("{out: a, inner: {beta: '1'}}", (), "inner.beta: Input should be a valid number, got '1'"),
        ("{out: a, count: 1.0}", (), "count: Input should be a valid integer, got 1.0"),
        ("{out: a, inner: {freeze: 1.5}}", (), "valid integer; or Input should be 'all' or 'none', got 1.5"),
        ("{out: a, parts: [{}, {beta: x}]}", (), "parts.1.beta: Input should be a valid number, got 'x'"),
        ("{out: a, inner: {beta: 7}}", (), "beta must not be 7, not at all"),
        ("{out: a, inner: [1]}", (), "inner: Input should be an object, got [1]"),
        ("{out: 5}", (), "out: Input should be a valid string, got 5"),
        ("{out: a, inner: {old: 1.0}}", (), "inner.old is no setting"),
        ("{out: a, parts: []}", ("--parts.beta", "1"), "parts.beta is no setting"),
        ("{out: a, other: []}", ("--other.beta", "1"), "other has no settings by name"),
        ("", (), "holds no settings; write lines 'name: value'"),
        ("- out", (), "holds no settings"),
        ("{out: a", (), "line 1"),
        ("? [a, b]\n: 1\n", (), "line 1"),
        ("out: a\ninner:\n  beta: 1\n  beta: 2\n", (), "'beta' stands twice below line 3"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(tmp_path, text, words, message):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, *words)
    sources = [str(tmp_path / "run.yaml"), *words[:1]]
    assert str(caught.value).startswith(f"{', '.join(sources)}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_words_and_files_that_cannot_be_used(tmp_path):
    (tmp_path / "latin.yaml").write_bytes("out: Läufe\n".encode("cp1252"))
    for words, message in (
        (["--name", "x"], "^--name: out is missing; settings stand in a file"),
        (["configs/demo.yaml"], "^configs/demo.yaml: unexpected; settings stand in a file"),
        (["--out"], "^--out: needs a value"),
        (["--out", "a", "--out=b"], "^--out: stands twice"),
        (["--config", str(tmp_path / "latin.yaml")], "latin.yaml: is no UTF-8 text; save it in UTF-8$"),
        (["--config", "nowhere.yaml"], r"^nowhere.yaml: cannot be read \(No such file"),
        ([], "^no settings: out is missing"),
        (["--config", "dmeo"], r"^dmeo: no such configuration \(did you mean 'demo'\?\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_settings(Outer, words)


def test_help_lists_settings():
    assert "  --inner.beta: a number, on two lines. [default: 1.0]" in help_lines(Outer)


def test_paths_are_filled_in(monkeypatch):
    monkeypatch.setenv("D", "/data")
    monkeypatch.setenv("HOME", "/home/user")
    assert filled_path("root", "$D/rsna") == Path("/data/rsna")
    assert filled_path("root", "~/rsna") == Path("/home/user/rsna")
    monkeypatch.delenv("D")
    for text, message in (("$D/x", r"variable \$D is not set"), ("~nobody_here/x", "no such home folder")):
        with pytest.raises(ConfigError, match=rf"^root '.*': .*{message}"):
            filled_path("root", text)


NINE = "[" + ", ".join(["*a{0}"] * 9) + "]"
HOSTILE = {
    "aliases": "a0: &a0 x\n" + "".join(f"a{k}: &a{k} {NINE.format(k - 1)}\n" for k in range(1, 12)),
    "merges": "a0: &a0 {x: 1}\n"
    + "".join(f"a{k}: &a{k} {{<<: {NINE.format(k - 1)}}}\n" for k in range(1, 12)),
    "itself": "head: &h {beta: *h}\n",
    "list of itself": "also: &h [*h]\n",
    "deep": "head: " + "[" * 3000 + "]" * 3000,
    "deep maps": "head: " + "{a: " * 3000 + "}" * 3000,
    "wide": f"also: [{'1, ' * 15_000}]",
    "long": f"seed: {'1:' * 100_000}1",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_one_line(name):
    with pytest.raises(ValueError, match="settings") as caught:
        load_yaml(HOSTILE[name])
    assert "\n" not in str(caught.value)

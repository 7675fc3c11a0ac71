"""Hostile configurations: nothing is imported, work is bounded, and the error is one line."""

from functools import partial

import pytest
import yaml

from ich_mil.config import read_config, read_grid
from ich_mil.errors import ConfigError
from ich_mil.serve.settings import ServeSettings
from ich_mil.settings import read_settings


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (read_config, "head: {class_path: marking.C}"),
        (read_config, "head: {class_path: ich_mil.gp.settings.HeadSettings}"),
        (read_config, "head: marking.C"),
        (read_config, "head.class_path: marking.C"),
        (read_config, "external: marking.C"),
        (read_config, "also: [{class_path: marking.C, init_args: {layout: rsna, root: r}}]"),
        (read_config, "training: sub.yaml"),
        (read_grid, "train: {class_path: marking.C}"),
        (read_grid, "grid: {beta: [{class_path: marking.C}]}"),
        (partial(read_settings, ServeSettings), "archive: {class_path: marking.C}"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_code_is_refused_before_it_is_imported(tmp_path, monkeypatch, reader, text):
    (tmp_path / "marking.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'mark')!r})\nclass C: pass\n")
    (tmp_path / "sub.yaml").write_text("class_path: marking.C\n")
    (tmp_path / "run.yaml").write_text(text + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"run\.yaml: .*names code to import"):
        reader(["--config", str(tmp_path / "run.yaml")])
    assert not (tmp_path / "mark").exists()


def test_the_program_itself_is_not_run_by_its_name(tmp_path):
    (tmp_path / "run.yaml").write_text("head: ich_mil.__main__.main\n")
    with pytest.raises(ConfigError, match="names code to import"):
        read_config(["--config", str(tmp_path / "run.yaml")])


NINE = "[" + ", ".join(["*a{0}"] * 9) + "]"
BIG, OF_ITSELF = "is more than settings need", "refers to itself"
HOSTILE = {
    "aliases": ("a0: &a0 x\n" + "".join(f"a{k}: &a{k} {NINE.format(k - 1)}\n" for k in range(1, 12)), BIG),
    "merges": (
        "a0: &a0 {x: 1}\n" + "".join(f"a{k}: &a{k} {{<<: {NINE.format(k - 1)}}}\n" for k in range(1, 12)),
        BIG,
    ),
    "chain": ("a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [*a{k - 1}]\n" for k in range(1, 1000)), BIG),
    "short chain": ("a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [*a{k - 1}]\n" for k in range(1, 135)), "a0"),
    "last alias": (f"a: &a [{'x, ' * 4990}]\nhead: [*a, *a]\n", BIG),
    "itself": ("head: &h {beta: *h}\n", OF_ITSELF),
    "list of itself": ("also: &h [*h]\n", OF_ITSELF),
    "deep": ("head: " + "[" * 3000 + "]" * 3000, BIG),
    "deep maps": ("head: " + "{a: " * 3000 + "}" * 3000, BIG),
    "deep lines": ("head:\n" + "".join(f"{' ' * k}a:\n" for k in range(1, 3000)), BIG),
    "deep and open": ("[" * 100_000, BIG),
    "wide": (f"also: [{'1, ' * 20_000}]", BIG),
    "sexagesimal": (f"seed: {'1:' * 100_000}1", BIG),
    "broken": ("head: {beta: 1", "line 1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_yaml_bomb_is_one_line_and_little_work(tmp_path, monkeypatch, name):
    """Work is counted in nodes that are built, and the error names the file with its folder."""
    text, message = HOSTILE[name]
    built = []
    construct = yaml.constructor.BaseConstructor.construct_object
    monkeypatch.setattr(
        yaml.constructor.BaseConstructor,
        "construct_object",
        lambda self, node, deep=False: built.append(1) or construct(self, node, deep),
    )
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(["--config", str(tmp_path / "run.yaml")])
    assert str(caught.value).startswith(f"{tmp_path / 'run.yaml'}: ")
    assert "\n" not in str(caught.value)
    assert len(built) < 10_000


def test_a_value_that_is_a_yaml_bomb_is_refused_on_the_command_line(tmp_path):
    (tmp_path / "good.yaml").write_text("out: x\n")
    with pytest.raises(ConfigError, match=r"good\.yaml, --head: .*is more than settings need"):
        read_config(["--config", str(tmp_path / "good.yaml"), "--head", "[" * 3000 + "]" * 3000])


def test_an_alias_stands_for_its_settings(tmp_path):
    (tmp_path / "run.yaml").write_text("out: x\ntrain: &a {layout: rsna, root: r}\nalso: [*a]\n")
    config = read_config(["--config", str(tmp_path / "run.yaml")])
    assert config.also == [config.train]

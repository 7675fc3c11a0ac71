"""Every YAML loads; unknown keys, wrong types and values out of range are refused in one line."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ich_mil.config import RunConfig, read_config, read_grid
from ich_mil.errors import ConfigError
from ich_mil.gp.head import Head
from ich_mil.reproduce.protocol import read_protocol
from ich_mil.serve.settings import ServeSettings
from ich_mil.settings import CONFIGS as CONFIGS_IN_PACKAGE
from ich_mil.settings import config_file, read_settings, shipped_configs
from ich_mil.training.set_settings import SetSettings
from ich_mil.training.settings import TrainingSettings

CONFIGS = sorted((Path(__file__).parents[1] / "configs").rglob("*.yaml"))
assert {"demo", "ctich", "features", "grid_features", "rsna"} <= {path.stem for path in CONFIGS}


BASE = {"out": "x", "train": {"layout": "rsna", "root": "r"}}


def read(path, *words, **changes):
    """The configuration `BASE` with changes, read from a file."""
    path.write_text(yaml.safe_dump(BASE | changes))
    return read_config(["--config", str(path), *words])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_yaml_loads(path):
    given = yaml.safe_load(path.read_text())
    if "archive" in given:
        settings = read_settings(ServeSettings, ["--config", str(path)])
        assert (settings.port, settings.archive.ae_title) == (given["port"], given["archive"]["ae_title"])
        return
    if "sets" in given:
        protocol = read_protocol([str(path)])
        assert str(protocol.out) == given["out"]
        assert [one.name for one in protocol.sets] == [one["name"] for one in given["sets"]]
        return
    config = (read_grid if "grid" in given else read_config)(["--config", str(path)])
    assert str(config.out) == given["out"]
    assert config.train.root == given["train"]["root"]


@pytest.mark.parametrize(
    "head",
    [
        {"density": "logistic"},
        {"density": "gamma", "alpha": 1, "beta": 2.5},
        {"preset": "paper"},
        {"preset": "public", "density": "gamma"},
        {"family": "large_margin"},
        {"family": "probit"},
        {"family": "gibbs"},
        {"learn": "kernel", "ard": True, "kernel": "MaternKernel"},
        {"precision": "mixed"},
    ],
)
def test_a_head_is_one_line(tmp_path, head):
    config = read(tmp_path / "one.yaml", head=head)
    assert {name: getattr(config.head, name) for name in head} == head
    assert Head(config.head).get_params() == vars(config.head)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "colour"),
        ({"cnn": {"image_sise": 128}}, "image_sise"),
        ({"encoder": {"size": 31}}, "encoder.size must lie in 32..1024, got 31"),
        ({"encoder": {"size": 1025}}, "encoder.size must lie in 32..1024, got 1025"),
        ({"cnn": {"chunk_slices": 1}}, "chunk_slices must be at least 2, got 1"),
        ({"cnn": {"features": 9}}, "features"),
        ({"cnn": {"dropout": 1.0}}, "dropout"),
        ({"head": {"beta": -1}}, "beta Input should be greater than 0"),
        ({"head": {"n_inducing": 1}}, "n_inducing"),
        ({"head": {"smooth_mm": 5.0}}, "smooth_mm"),
        ({"head": {"variance": 10**400}}, "variance"),
        ({"thickness_mm": 10**400}, "int too large to convert to float"),
        ({"head": {"family": "probit", "preset": "paper"}}, "preset 'paper' is a setting of family 'psi'"),
        ({"head": {"family": "multimodal", "n_inducing": 9}}, "n_inducing is a setting of Gaussian-process"),
        ({"head": {"rule": "mean"}}, "rule must be one of max, noisy_or"),
        ({"training": {"patience": 0}}, "patience must be at least 1, got 0"),
        ({"training": {"learning_rate": 0}}, "learning_rate must be positive and finite, got 0"),
        ({"training": {"learning_rate": math.inf}}, "learning_rate must be positive and finite, got inf"),
        ({"thickness_mm": math.inf}, "thickness_mm must be at least 0 and finite, got inf"),
        ({"encoder": {"channels": [[40, math.inf]]}}, "windows must be finite pairs"),
        ({"encoder": {"channels": [[math.nan, 80]]}}, "windows must be finite pairs"),
        ({"encoder": {"channels": [[40, 80, 1]]}}, "windows must be finite pairs"),
        ({"head": [1, 2]}, "a list stands where settings have names; write lines 'name: value'"),
        ({"training": {"learning_rate": "fast"}}, "learning_rate"),
        ({"split": {"validation": 0.6, "test": 0.5}}, "got 0.6 and 0.5"),
        ({"encoder": {"channels": "bones"}}, "windows must be one of papers, winners"),
        ({"train": {"layout": "nifti", "root": "r"}}, "layout"),
        ({"seed": -1}, "seed must lie in 0..4294967295, got -1"),
        ({"seed": 2**32}, "seed must lie in 0..4294967295, got 4294967296"),
        ({"head": {"random_state": 2**32}}, "random_state Input should be less than 4294967296"),
        ({"samples": 1}, "samples must be at least 2, got 1"),
    ],
)
def test_refused(tmp_path, change, message):
    with pytest.raises(ConfigError, match=r"bad\.yaml") as caught:
        read(tmp_path / "bad.yaml", **change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_fields_and_files():
    where = r"; settings stand in a file, such as those in configs/: --config FILE$"
    with pytest.raises(ConfigError, match=rf"required: .*train.*{where}"):
        read_config(["--out", "x"])
    with pytest.raises(ConfigError, match=rf"^unrecognized arguments: configs/demo\.yaml{where}"):
        read_config(["configs/demo.yaml"])
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        read_config(["--config", "nowhere.yaml"])


def test_the_shipped_configurations_are_those_of_the_repository():
    assert {**shipped_configs(), **{f"protocol_{k}": v for k, v in shipped_configs("protocol_").items()}} == {
        path.stem: CONFIGS_IN_PACKAGE / path.name for path in CONFIGS
    }
    assert config_file("demo").read_text() == (CONFIGS[0].parent / "demo.yaml").read_text()
    assert read_config(["--config=demo"]) == read_config(["--config", "demo"])
    assert read_protocol(["rsna"]).sets[0].path("root") == config_file("rsna")


@pytest.mark.parametrize(
    ("name", "prefix", "meant"), [("dmeo", "", "demo"), ("feature", "protocol_", "features"), ("x", "", None)]
)
def test_a_configuration_that_is_not_there(name, prefix, meant):
    with pytest.raises(ConfigError, match=rf"^{name}: no such configuration") as caught:
        config_file(name, prefix)
    assert (f"did you mean {meant!r}" in str(caught.value)) == (meant is not None)


def test_a_mistyped_setting_is_named_with_the_one_meant(tmp_path):
    cases = ({"hed": {"beta": 1}}, "head"), ({"head": {"betta": 1}}, "head.beta"), ({"sede": 1}, "seed")
    for change, meant in cases:
        with pytest.raises(ConfigError, match=rf"did you mean '{meant}"):
            read(tmp_path / "bad.yaml", **change)
    with pytest.raises(ConfigError, match=r"did you mean 'head\.beta'"):
        read(tmp_path / "bad.yaml", "--head.betta", "1")


def test_paths_are_filled_in(monkeypatch):
    monkeypatch.setenv("D", "/data")
    monkeypatch.setenv("HOME", "/home/one")
    assert SetSettings("rsna", "$D/rsna").path == Path("/data/rsna")
    assert SetSettings("rsna", "~/rsna").path == Path("/home/one/rsna")
    monkeypatch.delenv("D")
    with pytest.raises(ConfigError, match=r"^root '\$D/rsna': the environment variable \$D is not set$"):
        SetSettings("rsna", "$D/rsna").path  # noqa: B018
    with pytest.raises(ConfigError, match=r"^root '~nobody_here/x': there is no such home folder; name"):
        SetSettings("rsna", "~nobody_here/x").path  # noqa: B018
    protocol = read_protocol([str(CONFIGS[0].parent / "protocol_rsna.yaml")])
    with pytest.raises(ConfigError, match=r"^set 'RSNA.*': findings '\$D/cq500/reads\.csv': the environment"):
        protocol.sets[0].path("findings")


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_a_file_in_another_encoding(tmp_path, encoding):
    (tmp_path / "run.yaml").write_text("out: Läufe\n", encoding=encoding)
    with pytest.raises(ConfigError, match=r"run\.yaml: is no UTF-8 text; save it in UTF-8$"):
        read_config(["--config", str(tmp_path / "run.yaml")])


def test_a_list_is_no_name(tmp_path):
    (tmp_path / "run.yaml").write_text("? [a, b]\n: 1\n")
    with pytest.raises(ConfigError, match=r"run\.yaml: .*line 1"):
        read_config(["--config", str(tmp_path / "run.yaml")])


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "- out\n- train\n", "hello"])
def test_a_file_without_settings_says_so(tmp_path, text):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"run\.yaml: holds no settings; write lines 'name: value'"):
        read_config(["--config", str(tmp_path / "run.yaml")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nhead:\n  beta: 1\nseed: 2\n", "'seed' stands twice, in lines 1 and 4"),
        ("head:\n  beta: 1\n  seed: 0\n  beta: 2\n", "'beta' stands twice, in lines 2 and 4"),
        ("head: {beta: 1, beta: 2}\n", "'beta' stands twice, in lines 1 and 1"),
        ("windows: [[40, 80]]\nlist:\n- a: 1\n  a: 1\n", "'a' stands twice, in lines 3 and 4"),
    ],
)
def test_a_name_that_is_there_twice_is_refused(tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config([f"--config={tmp_path / 'run.yaml'}", "--out", "x"])
    assert str(caught.value).startswith(f"{tmp_path / 'run.yaml'}, --out: {message}")


def test_an_error_names_all_that_the_settings_come_from(tmp_path):
    with pytest.raises(ConfigError, match=r"good\.yaml, --head\.beta, --seed: .*beta Input should be"):
        read(tmp_path / "good.yaml", "--head.beta=-1", "--seed", "3")
    with pytest.raises(ConfigError, match=r"good\.yaml: "):
        read(tmp_path / "good.yaml", "colour")


def test_the_command_line_overrides_the_file(tmp_path):
    config = read(tmp_path / "good.yaml", "--head.bias", "1.5", "--train.root", "elsewhere")
    assert config.head.bias == 1.5
    assert config.train == SetSettings("rsna", "elsewhere")


def test_a_resolved_configuration_reads_back_equal(tmp_path):
    config = read_config(
        ["--out", "x", "--train.layout", "rsna", "--train.root", "r", "--encoder.size", "64"]
    )
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.as_dict()))
    assert read_config(["--config", str(path)]) == config


def test_the_hash_names_the_settings_not_the_place():
    config = RunConfig(Path("a"), SetSettings("rsna", "r"))
    assert replace(config, out=Path("b"), jobs=7, training=TrainingSettings(workers=7)).hash == config.hash
    assert replace(config, training=TrainingSettings(workers=7, bags=5)).hash != config.hash
    assert replace(config, seed=1).hash != config.hash


def test_more_sets_to_train_on_and_their_pictures(tmp_path):
    also = [
        {"layout": "slices", "root": "b", "window": [40, 80]},
        {"layout": "rsna", "root": "c", "slice_labels": True},
    ]
    path = tmp_path / "one.yaml"
    config = read(path, also=also)
    wanted = [SetSettings("slices", "b", window=[40, 80]), SetSettings("rsna", "c", slice_labels=True)]
    assert config.also == wanted
    assert config.training_sets == {"train": config.train, "also_1": wanted[0], "also_2": wanted[1]}
    path.write_text(yaml.safe_dump(config.as_dict()))
    assert read_config(["--config", str(path)]) == config
    assert replace(config, also=wanted[:1]).hash != config.hash


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"also": [{"layout": "features", "root": "b"}]}, "also: only sets of pictures"),
        ({"also": [{"layout": "rsna", "root": "b", "window": [40, 80]}]}, "window is for layout slices"),
        ({"also": [{"layout": "slices", "root": "b", "window": [40, -80]}]}, "width > 0"),
        ({"external": {"layout": "rsna", "root": "b", "slice_labels": True}}, "external: slice_labels"),
        (
            {
                "also": [{"layout": "rsna", "root": "b", "slice_labels": True}],
                "training": {"controls": 0.1},
            },
            "slice_labels",
        ),
    ],
)
def test_sets_that_do_not_fit_together_are_refused(tmp_path, changes, named):
    with pytest.raises(ConfigError, match=rf"one\.yaml.*{named}"):
        read(tmp_path / "one.yaml", **changes)

"""Every YAML loads; unknown keys, wrong types and values out of range are refused in one line."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ich_mil.config import RunConfig, read_config, read_grid
from ich_mil.errors import ConfigError
from ich_mil.gp.head import Head
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.settings import CONFIGS as CONFIGS_IN_PACKAGE
from ich_mil.settings import config_file, shipped_configs

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
        ({"colour": "red"}, "colour is no setting"),
        ({"cnn": {"image_sise": 128}}, "cnn.image_sise is no setting"),
        ({"encoder": {"size": 31}}, "encoder.size"),
        ({"cnn": {"features": 9}}, "cnn.features: Input should be 8, 32 or 128, got 9"),
        ({"head": {"beta": -1}}, "beta"),
        ({"head": {"family": "probit", "preset": "paper"}}, "preset 'paper' is a setting of family 'psi'"),
        ({"training": {"learning_rate": "fast"}}, "training.learning_rate"),
        ({"training": {"learning_rate": math.inf}}, "learning_rate"),
        ({"encoder": {"channels": [[40, math.inf]]}}, "windows must be finite pairs"),
        ({"split": {"validation": 0.6, "test": 0.5}}, "got 0.6 and 0.5"),
        ({"split": {"validation": 1.0}}, "split.validation: Input should be less than 1, got 1.0"),
        ({"train": {"layout": "nowhere", "root": "r"}}, "train.layout: Input should be 'rsna'"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0, got -1"),
        ({"seed": 2**32}, "seed: Input should be less than 4294967296"),
        ({"seed": 2**32 - 1, "members": 2}, "of the last member"),
        ({"samples": 1}, "samples: Input should be greater than or equal to 2, got 1"),
        ({"pages": True}, "pages: Input should be a valid integer, got True"),
        ({"encoders": [{"size": 64}]}, "encoders is for the members of an ensemble"),
        ({"train": {"layout": "rsna", "root": "r", "learn": "heads"}}, "no network could be trained"),
        ({"train": {"layout": "rsna", "root": "r", "learn": "boxes"}}, "boxes are of layout slices"),
        ({"thickness_mm": 5.0}, "thickness_mm is no setting"),
    ],
)
def test_refused(tmp_path, change, message):
    with pytest.raises(ConfigError, match=r"bad\.yaml") as caught:
        read(tmp_path / "bad.yaml", **change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_shipped_configurations_are_those_of_the_repository():
    assert shipped_configs() == {path.stem: CONFIGS_IN_PACKAGE / path.name for path in CONFIGS}
    assert config_file("demo").read_text() == (CONFIGS[0].parent / "demo.yaml").read_text()
    assert read_config(["--config=demo"]) == read_config(["--config", "demo"])


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
    ],
)
def test_sets_that_do_not_fit_together_are_refused(tmp_path, changes, named):
    with pytest.raises(ConfigError, match=rf"one\.yaml.*{named}"):
        read(tmp_path / "one.yaml", **changes)

"""Who is trained on and who is scored: folds of bags, networks of pictures, what is refused."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.datasets import load_digits

from ich_mil.errors import ConfigError, DataError
from ich_mil.gp.inference.folds import folds_of
from ich_mil.sets.features import read_feature_table
from research.reproduce import tasks as module
from research.reproduce.mil import digit_bags, read_musk
from research.reproduce.protocol import read_protocol
from research.reproduce.tasks import HELD_OUT, read_bags, tasks_of
from tests.feature_table import name_patients, write_features
from tests.research.reproduce.test_reproduce import protocol


@pytest.fixture
def place(tmp_path):
    write_features(tmp_path / "train.csv", 40, 0)
    write_features(tmp_path / "other.csv", 12, 1)
    return tmp_path


def read(place, **changes):
    config = read_protocol([str(protocol(place, **changes))])
    return config.sets[0], config


def test_folds_follow_the_seed_and_keep_patients(place):
    name_patients(place / "train.csv", lambda b: f"p{b // 4}{b % 2}")
    one, config = read(place, folds=3, seeds=[4, 5])
    bags = read_feature_table(place / "train.csv")
    tasks = list(tasks_of(one, config))
    assert [(task.seed, task.fold) for task in tasks] == [(s, f) for s in (4, 5) for f in (0, 1, 2, -1)]
    for task in tasks:
        assert (task.set, task.width, task.validation) == ("home", 3, None)
        if task.fold < 0:
            assert (task.train.scans, list(task.scored)) == (bags.scans, ["away"])
            continue
        learn, held = folds_of(bags.labels, bags.patients, folds=3, seed=task.seed)[task.fold]
        assert task.train.scans == [bags.scans[b] for b in learn]
        assert task.scored[HELD_OUT].scans == [bags.scans[b] for b in held]
        assert not {*task.train.patients} & {*task.scored[HELD_OUT].patients}


def test_too_many_folds_are_told_with_their_set(place):
    with pytest.raises(DataError, match=r"^home: 21 folds need at least 21 patients of each label"):
        list(tasks_of(*read(place, folds=21)))


@pytest.mark.parametrize("shared", ["patient", "scan"])
def test_patients_of_the_training_set_are_refused(place, shared):
    if shared == "scan":
        table = pd.read_csv(place / "other.csv")
        table.bag_name = table.bag_name.str.replace("s1-", "s0-")
        table.to_csv(place / "other.csv", index=False)
    for name in ("train", "other"):
        name_patients(place / f"{name}.csv", lambda b, name=name: b if shared == "patient" else f"{name}{b}")
    with pytest.raises(DataError, match="home, away: 12 of its patients were trained or calibrated on"):
        list(tasks_of(*read(place)))


def test_a_renamed_training_scan_is_refused(place):
    table, other = (pd.read_csv(place / f"{name}.csv") for name in ("train", "other"))
    twin = table[table.bag_name == "s0-3"].iloc[::-1].assign(bag_name="new")
    pd.concat([other, twin]).to_csv(place / "other.csv", index=False)
    with pytest.raises(DataError, match=r"away: 1 of its scans have .* calibrated on: new \(those of s0-3\)"):
        list(tasks_of(*read(place)))
    pd.concat([table, twin.assign(bag_name="twin")]).to_csv(place / "train.csv", index=False)
    other.to_csv(place / "other.csv", index=False)
    for task in tasks_of(*read(place)):  # within a table both are on one side
        if task.fold >= 0:
            assert len({"twin", "s0-3"} & {*task.train.scans}) in (0, 2)


def test_bags_of_each_kind(place, monkeypatch):
    x, bag = np.arange(16.0).reshape(8, 2), np.repeat(np.arange(4), 2)
    np.savez(place / "musk.npz", X=x, bag=bag, label=np.array([0, 1, 0, 1]))
    images, digits = load_digits(return_X_y=True)
    roots = []
    monkeypatch.setattr(module, "read_mnist", lambda root: roots.append(root) or (images[::-1], digits[::-1]))
    for kind, root, wanted in (
        ("features", "train.csv", read_feature_table(place / "train.csv")),
        ("musk", "musk.npz", read_musk(place / "musk.npz")),
        ("digits", "", digit_bags(images, digits, seed=5)),
        ("mnist", "idx", digit_bags(images[::-1], digits[::-1], seed=5)),
    ):
        sets = [{"name": "a", "kind": kind} | ({"root": str(place / root)} if root else {})]
        found = read_bags(*read(place, sets=sets, seeds=[5, 6]))
        assert found.scans == wanted.scans
        assert np.array_equal(found.x, wanted.x)
    assert roots == [place / "idx"]


def networks(place, listed="", **changes):
    """A protocol of four networks, on scans that nobody has prepared."""
    base = {
        "out": "unused",
        "train": {"layout": "rsna", "root": str(place)},
        "external": {"layout": "cq500", "root": str(place)},
        "split": {"validation": 0.25, "test": 0.25},
        "seed": 3,
    }
    (place / "run.yaml").write_text(yaml.safe_dump(base | changes))
    one = {"name": "heads", "kind": "pictures", "root": str(place / "run.yaml"), "external_name": "away"}
    return read(place, sets=[one | {"scans": listed, "widths": [8, 32], "cnn_seeds": [0, 1]}], jobs=2)


@pytest.fixture
def scans(monkeypatch):
    """Scans as if they were prepared."""
    labels = [b % 2 for b in range(24)]
    scans = pd.DataFrame({"patient": [f"p{b}" for b in range(24)], "label": labels, "content": ""})
    scans.index = [f"s{b}" for b in range(24)]
    monkeypatch.setattr(module, "prepare_training", lambda *_, **__: SimpleNamespace(scans=scans))
    return scans


def test_pictures_that_leave_nothing_to_score_are_refused(place, scans):
    with pytest.raises(ConfigError, match=r"split\.test is 0 and no list of scans is named"):
        list(tasks_of(*networks(place, split={"validation": 0.25})))
    listed = scans.rename_axis("scan").assign(split="train")
    listed.to_csv(place / "listed.csv")
    with pytest.raises(ConfigError, match="neither test scans nor an external set"):
        list(tasks_of(*networks(place, listed=str(place / "listed.csv"), external=None)))
    with pytest.raises(ConfigError, match="trains no network"):
        list(tasks_of(*networks(place, train={"layout": "features", "root": "x"}, external=None)))

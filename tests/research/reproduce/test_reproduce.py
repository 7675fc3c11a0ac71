"""A protocol end to end: no leak, numbers against direct computation, resuming, refusals in one line."""

import sys

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.metrics import log_loss, roc_auc_score

from ich_mil.errors import ConfigError
from ich_mil.gp.bags import Bags
from ich_mil.gp.head import Head
from ich_mil.gp.predict import predict
from ich_mil.sets.features import read_feature_table
from ich_mil.sets.preparation.prepare import prepare
from research.reproduce.__main__ import main
from research.reproduce.protocol import PROTOCOLS, read_protocol
from research.reproduce.run import models_of, reproduce
from research.reproduce.scoring import Model, read_scored, scored_file
from research.reproduce.statistics import drift_rates, feature_baselines
from research.reproduce.statistics.subgroups import series_groups
from research.reproduce.tables import facts_of
from research.reproduce.tasks import HELD_OUT, tasks_of
from tests import phantoms
from tests.feature_table import write_features


def protocol(folder, **changes):
    given = {
        "title": "A test",
        "out": str(folder / "out"),
        "sets": [
            {
                "name": "home",
                "kind": "features",
                "root": str(folder / "train.csv"),
                "external": str(folder / "other.csv"),
                "external_name": "away",
            }
        ],
        "heads": {"VGPMIL": {"sweeps": 4}, "G-VGPMIL": {"density": "gamma", "sweeps": 4}},
        "main": "G-VGPMIL",
        "main_inducing": 8,
        "n_inducing": [6, 8],
        "folds": 2,
        "seeds": [4, 5],
        "resamples": 20,
        "samples": 50,
        "simulations": 5,
        "sensitivity": 0.8,
        "specificity": 0.8,
        "confidence": 0.8,
        "jobs": 1,
    }
    path = folder / "protocol.yaml"
    path.write_text(yaml.safe_dump(given | changes))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    write_features(folder / "train.csv", 40, 0)
    write_features(folder / "other.csv", 44, 1)
    return folder


@pytest.fixture(scope="module")
def config(place):
    return read_protocol([str(protocol(place))])


@pytest.fixture(scope="module")
def done(config):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift_rates, "DRAWS", 5)
        patch.setattr(drift_rates, "STEPS", (0.0, 0.25))
        patch.setattr(feature_baselines, "PENALTIES", np.array([0.01, 1.0]))
        reproduce(config)
        yield config.out


def test_the_table_holds_every_model_on_every_set(config, done):
    table = pd.read_csv(done / "home" / "results.csv")
    found = set(zip(table.scored, table.model, table.n_inducing, strict=True))
    assert found == {
        (scored, model.name, model.n_inducing) for scored in (HELD_OUT, "away") for model in models_of(config)
    }
    page = (done / "report.md").read_text()
    for title in (
        "Three-way triage",
        "Where the uncertainty is higher",
        "Recalibration",
        "Rate of drift alarms",
    ):
        assert f"### {title}" in page
    for line in page.splitlines():
        if line.startswith("!["):
            picture = done / line[line.index("(") + 1 : -1]
            assert picture.read_bytes().startswith(b"\x89PNG")


def test_table_values_are_those_of_the_estimator(config, done, place):
    learn, others = (read_feature_table(place / name) for name in ("train.csv", "other.csv"))
    every, losses = [], []
    for seed in config.seeds:
        head = Head(density="gamma", sweeps=4, n_inducing=8, random_state=seed)
        head.fit(learn.x, learn.offsets, learn.labels, groups=learn.patients)
        model = head.model_
        found = predict(
            model,
            Bags(others.x.double(), others.offsets, ids=others.scans),
            samples=50,
            seed=seed,
            calibration=model.calibration,
        )
        every.append(roc_auc_score(others.labels, found.scan_mean))
        losses.append(log_loss(others.labels, found.scan_mean))
    table = pd.read_csv(done / "home" / "results.csv")
    table = table[(table.model == "G-VGPMIL") & (table.n_inducing == 8) & (table.level == "scan")]
    rows = table[table.scored == "away"].set_index("metric")
    assert rows["mean"]["auc"] == pytest.approx(np.mean(every), abs=1e-12)
    assert rows["std"]["auc"] == pytest.approx(np.std(every, ddof=1), abs=1e-12)
    assert rows["mean"]["log_loss"] == pytest.approx(np.mean(losses), abs=1e-12)


def test_held_out_folds_are_put_together_by_scan(config, done, place):
    bags = read_feature_table(place / "train.csv")
    labels, every = dict(zip(bags.scans, bags.labels.tolist(), strict=True)), []
    for seed in config.seeds:
        scores = {}
        for task in tasks_of(config.sets[0], config):
            if task.seed == seed and task.fold >= 0:
                found, _ = read_scored(scored_file(done / "fits", Model("G-VGPMIL", 8), task))
                scores |= dict(zip(task.scored[HELD_OUT].scans, found[HELD_OUT].scan, strict=True))
        every.append(roc_auc_score([labels[scan] for scan in scores], list(scores.values())))
    table = pd.read_csv(done / "home" / "results.csv")
    table = table[(table.model == "G-VGPMIL") & (table.n_inducing == 8) & (table.scored == HELD_OUT)]
    row = table[(table.level == "scan") & (table.metric == "auc")].iloc[0]
    assert row["mean"] == pytest.approx(np.mean(every), abs=1e-12)
    assert row["std"] == pytest.approx(np.std(every, ddof=1), abs=1e-12)


def test_started_again_only_what_is_missing_is_fitted(config, done):
    fits = sorted((done / "fits").rglob("*.safetensors"))
    results = pd.read_csv(done / "home" / "results.csv").drop(columns="seconds")
    before = {path: path.stat().st_mtime_ns for path in fits}
    gone = scored_file(done / "fits", Model("VGPMIL", 6), next(tasks_of(config.sets[0], config)))
    gone.unlink()
    reproduce(config)
    assert {path for path in fits if path.stat().st_mtime_ns != before[path]} == {gone}
    after = pd.read_csv(done / "home" / "results.csv").drop(columns="seconds")
    pd.testing.assert_frame_equal(after, results)


def test_other_settings_need_another_folder(done, place, capsys):
    assert main([str(protocol(place)), "--folds", "3"]) == 2
    assert "other settings" in capsys.readouterr().err


PICTURES = {"name": "a", "kind": "pictures", "root": "x"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"main": "LM"}, "main must be one of the heads"),
        ({"heads": {"G-VGPMIL": {"colour": 1}}}, "colour"),
        ({"folds": 1}, "folds: Input should be greater than or equal to 2"),
        ({"seeds": [0, 0]}, "repeats a value"),
        ({"sets": [{"name": "a", "kind": "musk"}]}, "root is missing"),
        ({"sets": [{"name": "../a", "kind": "digits"}]}, "sets.0.name"),
        ({"sets": [PICTURES | {"components": 3}]}, "components is not used by kind 'pictures'"),
        ({"sets": [PICTURES | {"kind": "features", "external_name": "held out"}]}, "is taken"),
        ({"sets": [PICTURES | {"kind": "features", "findings": "y"}]}, "findings need an external set"),
        ({"sets": [PICTURES | {"kind": "features", "cnn_seeds": [0, 1]}]}, "cnn_seeds of features need"),
    ],
)
def test_protocols_that_are_refused(place, tmp_path, change, message):
    path = tmp_path / "protocol.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(protocol(place).read_text()) | change))
    with pytest.raises(ConfigError) as caught:
        read_protocol([str(path)])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_are_told_first(place, tmp_path, capsys):
    one = yaml.safe_load(protocol(place).read_text())["sets"][0]
    for what in ("root", "external", "findings"):
        sets = [one | {what: str(tmp_path / "nowhere.csv")}]
        path = protocol(place, out=str(tmp_path / "out"), sets=sets)
        assert main([str(path)]) == 2
        assert f"set 'home': {what} {tmp_path / 'nowhere.csv'}: no such file" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_missing_torchmil_is_told_first(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torchmil.models", None)
    path = protocol(place, out=str(tmp_path / "out"), attention_mil=True)
    assert main([str(path)]) == 2
    assert "pip install 'ich-mil[bench]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_unknown_protocol_names_those_there_are(capsys):
    assert main(["nothing"]) == 2
    error = capsys.readouterr().err
    assert "nothing" in error
    assert "digits, features, mnist, musk, rsna" in error
    assert main([]) == 0
    assert "MUSK" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(PROTOCOLS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_protocols_load(path):
    given, config = yaml.safe_load(path.read_text()), read_protocol([path.stem])
    assert str(config.out) == given["out"]
    assert [one.name for one in config.sets] == [one["name"] for one in given["sets"]]


def test_digits_are_projected_inside_each_fold(place, tmp_path):
    path = protocol(
        place, sets=[{"name": "digits", "kind": "digits", "components": 5}], out=str(tmp_path / "o")
    )
    config = read_protocol([str(path), "--seeds", "[0, 2]"])
    tasks = list(tasks_of(config.sets[0], config))
    assert len(tasks) == 4
    assert sorted(tasks[0].train.scans) != sorted(tasks[2].train.scans)
    for task in tasks:
        assert task.width == task.train.x.shape[1] == task.scored[HELD_OUT].x.shape[1] == 5
        # components are centred on the training images, so held-out ones are not
        assert np.allclose(task.train.x.double().mean(0), 0, atol=1e-4)
        assert not np.allclose(task.scored[HELD_OUT].x.double().mean(0), 0, atol=1e-4)


@pytest.mark.slow
def test_pictures_train_a_network_for_each_seed(tmp_path):
    root, other = (
        phantoms.rsna(tmp_path / "rsna", studies=14),
        phantoms.cq500(tmp_path / "cq500", studies=10, seed=9),
    )
    run = {
        "out": "unused",
        "prepared": str(tmp_path / "prepared"),
        "train": {"layout": "rsna", "root": str(root)},
        "external": {"layout": "cq500", "root": str(other)},
        "split": {"validation": 0.25},
        "encoder": {"size": 32},
        "training": {"max_epochs": 1},
        "head": {"calibration": "none"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    sets = [
        {
            "name": "RSNA",
            "kind": "pictures",
            "root": str(tmp_path / "run.yaml"),
            "scans": str(tmp_path / "scans.csv"),
            "external_name": "CQ500",
            "cnn_seeds": [0, 1],
        }
    ]
    scans = prepare("rsna", root, tmp_path / "prepared" / "train", jobs=1).scans
    test = [scans.index[scans.label == label][0] for label in (0, 1)]
    rows = [(scan, "test" if scan in test else "train") for scan in scans.index] + [(test[0], "train")]
    studies = pd.DataFrame(rows, columns=["scan", "split"])
    studies.to_csv(tmp_path / "scans.csv", index=False)
    config = read_protocol([str(protocol(tmp_path, sets=sets))])
    facts = " ".join(facts_of(config))
    assert "RSNA: one split" in facts
    assert "seeds 0, 1 (of the network and k-means)" in facts
    assert "folds by patient" not in facts
    tasks = list(tasks_of(config.sets[0], config))
    assert [(task.seed, task.width, list(task.scored)) for task in tasks] == [
        (0, 8, ["test", "CQ500"]),
        (1, 8, ["test", "CQ500"]),
    ]
    first, second = tasks
    assert list(first.ledgers) == ["test", "CQ500"]
    tilted = series_groups(first.ledgers["CQ500"], first.scored["CQ500"].scans)["tilted gantry"]
    assert 0 < tilted.sum() <= len(tilted)
    assert first.train.scans == second.train.scans
    assert set(first.scored["test"].scans) == set(test)
    assert not np.array_equal(first.train.x, second.train.x)
    left_out = pd.read_csv(tmp_path / "out" / "networks" / "RSNA_left_out.csv")
    assert left_out.values.tolist()[0] == [test[0], "train", "is a test scan too"]
    assert set(left_out.reason[1:]) <= {"its patient has a test scan"}
    assert not set(left_out.scan[1:]) & set(first.train.scans)

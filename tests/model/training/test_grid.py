"""The grid: its table against single fits, resuming after a kill, folds by patient, refusals in one line."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from ich_mil.config import read_grid
from ich_mil.errors import ConfigError
from ich_mil.files import alone, write_csv
from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.predict import mean_logits
from ich_mil.gp.settings import HeadSettings
from ich_mil.model.training import grid as module
from ich_mil.sets.features import read_feature_table
from tests.feature_table import name_patients, write_features
from tests.runs_for_tests import refused, run, write_config


@pytest.fixture
def place(tmp_path):
    write_features(tmp_path / "train.csv", 30, 0)
    write_features(tmp_path / "other.csv", 16, 1)
    config = {
        "out": str(tmp_path / "out"),
        "train": {"layout": "features", "root": str(tmp_path / "train.csv")},
        "external": {"layout": "features", "root": str(tmp_path / "other.csv")},
        "folds": 3,
        "seeds": [4, 5],
        "grid": {"n_inducing": [6, 8], "beta": [1.0, 4.0]},
        "head": {"density": "gamma", "sweeps": 5},
    }
    write_config(tmp_path / "grid.yaml", config)
    return tmp_path


@pytest.fixture
def words(place):
    return "grid", "--config", place / "grid.yaml"


def change(place, **changes):
    config = yaml.safe_load((place / "grid.yaml").read_text()) | changes
    (place / "grid.yaml").write_text(yaml.safe_dump(config))


def fitted(part, **settings):
    return fit(Bags(part.x, part.offsets, part.labels), HeadSettings(density="gamma", sweeps=5, **settings))


def test_the_table_is_that_of_single_fits_and_a_killed_grid_completes_it(place, words, monkeypatch, capsys):
    assert run(*words) == 0
    path = place / "out" / "grid.csv"
    table = pd.read_csv(path)
    keys = ["n_inducing", "beta", "seed", "fold"]
    assert len(table) == len(table[keys].drop_duplicates()) == 2 * 3 * 4
    assert "held_scan_auc" in capsys.readouterr().out
    features, other = (read_feature_table(place / f"{name}.csv") for name in ("train", "other"))
    splits = StratifiedKFold(3, shuffle=True, random_state=5).split(features.scans, features.labels)
    train, held = list(splits)[1]
    part, out = (features.select([features.scans[b] for b in chosen]) for chosen in (train, held))
    model, report = fitted(part, n_inducing=8, beta=4.0, random_state=5)
    chosen = (table.n_inducing == 8) & (table.beta == 4.0) & (table.seed == 5) & (table.fold == 1)
    (row,) = table[chosen].to_dict("records")
    for name, one in (("held", out), ("external", other)):
        z = mean_logits([model], Bags(one.x, one.offsets))[0]
        scans = [float(scan.max()) for scan in z.split(one.offsets.diff().tolist())]
        assert row[f"{name}_scan_auc"] == pytest.approx(roc_auc_score(one.labels, scans), rel=1e-12)
        assert row[f"{name}_slice_auc"] == pytest.approx(roc_auc_score(one.slice_labels, z), rel=1e-12)
        assert row[f"{name}_slice_f1"] == pytest.approx(f1_score(one.slice_labels, z > 0), rel=1e-12)
    assert row["elbo"] == pytest.approx(report.elbo[-1], rel=1e-9)
    assert row["stopped"] == report.stopped

    class KilledError(Exception):
        pass

    written = []

    def write_some(target: Path, rows: pd.DataFrame) -> None:
        if len(written) == 9:
            raise KilledError
        written.append(target)
        write_csv(target, rows)

    path.unlink()
    monkeypatch.setattr(module, "write_csv", write_some)
    with pytest.raises(KilledError):
        run(*words)
    monkeypatch.undo()
    assert len(pd.read_csv(path)) == 9
    capsys.readouterr()
    assert run(*words) == 0
    assert "9 of 24 fits are in" in capsys.readouterr().out
    # the rest of a group is smaller, its products differ, so not to the bit
    whole, again = (
        one.drop(columns="seconds").sort_values(keys, ignore_index=True) for one in (table, pd.read_csv(path))
    )
    pd.testing.assert_frame_equal(again, whole, rtol=1e-9)


def test_fits_side_by_side_are_those_of_one_process(place, words):
    keys = ["n_inducing", "beta", "seed", "fold"]
    tables = []
    for jobs in ("1", "2"):
        assert run(*words, "--jobs", jobs, "--out", place / jobs) == 0
        table = pd.read_csv(place / jobs / "grid.csv").drop(columns="seconds")
        tables.append(table.sort_values(keys, ignore_index=True))
    pd.testing.assert_frame_equal(*tables, rtol=1e-9)
    about = [json.loads((place / jobs / "grid.json").read_text()) for jobs in ("1", "2")]
    assert about[0] == about[1]  # a grid goes on with another number of processes


def test_with_folds_0_it_trains_on_everything(place, words):
    assert run(*words, "--folds", "0", "--seeds", "[1]") == 0
    table = pd.read_csv(place / "out" / "grid.csv")
    assert len(table) == 4
    assert not [name for name in table if name.startswith("held_")]
    features, other = (read_feature_table(place / f"{name}.csv") for name in ("train", "other"))
    model, _ = fitted(features, n_inducing=6, beta=1.0, random_state=1)
    scans = [
        float(z.max())
        for z in mean_logits([model], Bags(other.x, other.offsets))[0].split(other.offsets.diff().tolist())
    ]
    (row,) = table[(table.n_inducing == 6) & (table.beta == 1.0)].to_dict("records")
    assert row["external_scan_auc"] == pytest.approx(roc_auc_score(other.labels, scans), rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": {"alpha": [0.0]}}, "alpha"),
        ({"grid": {"colour": [1]}}, "'colour' is no setting of a head"),
        ({"head": {"density": "gamma", "random_state": 3}}, "leave out random_state"),
        ({"grid": {"alpha": []}}, "alpha needs one or more different values"),
        ({"grid": {"alpha": [1, 2.0, 1.0]}}, "alpha needs one or more different values"),
        ({"grid": {"kernel": ["RBFKernel", "RBF"]}}, "no kernel 'RBF'"),
        ({"folds": 1}, "folds must be 0 (train on everything) or at least 2, got 1"),
        ({"folds": 16}, "train.csv: 16 folds need at least 16 patients of each label"),
        ({"folds": 0, "external": None}, "an external set is needed"),
        ({"seeds": [3, 1, 3]}, "seeds needs one or more different values"),
        ({"seeds": [-1]}, "seeds.0: Input should be greater than or equal to 0, got -1"),
        ({"train": {"layout": "rsna", "root": "x"}}, "a grid needs sets of layout 'features'"),
        ({"train": {"layout": "features", "root": "/absent.csv"}}, "/absent.csv: no such file"),
    ],
)
def test_settings_that_cannot_be_used(place, words, changes, message, capsys):
    change(place, **changes)
    assert message in refused(capsys, *words)
    assert not (place / "out" / "grid.json").exists()


def test_another_grid_or_other_data_do_not_mix_with_the_old_table(place, words, capsys):
    first = (*words, "--seeds", "[4]")
    assert run(*first) == 0
    assert "choose another --out" in refused(capsys, *words)
    with alone(place / "out", doing="holding"):
        assert "another process" in refused(capsys, *first)
    table = pd.read_csv(place / "train.csv")
    table.assign(feature_0=0.0).to_csv(place / "train.csv", index=False)
    assert "choose another --out" in refused(capsys, *first)
    (place / "out" / "grid.json").write_text(json.dumps({"format": "x"}))
    assert "choose another --out" in refused(capsys, *first)


def test_an_external_set_of_training_scans_or_patients_or_another_width_is_refused(place, words, capsys):
    table, other = (pd.read_csv(place / f"{name}.csv") for name in ("train", "other"))
    twin = table[table.bag_name == "s0-3"].assign(bag_name="new")
    for given, message in (
        (table, "30 of its patients were trained or calibrated on"),
        (pd.concat([other, twin]), "1 of its scans have the slices of one that was trained"),
        (other.drop(columns="feature_2"), "other.csv: has 2 features"),
    ):
        given.to_csv(place / "other.csv", index=False)
        assert message in refused(capsys, *words)
    other.to_csv(place / "other.csv", index=False)
    for name in ("train", "other"):  # other scans, some of the same patients
        name_patients(place / f"{name}.csv", lambda b: f"p{b}")
    assert "16 of its patients were trained" in refused(capsys, *words)
    assert not (place / "out").exists()


def test_numbers_of_the_grid_keep_their_type(place):
    cells = read_grid(["--config", str(place / "grid.yaml")]).cells()
    assert {type(cell["n_inducing"]) for cell in cells} == {int}
    assert {type(cell["beta"]) for cell in cells} == {float}
    with pytest.raises(ConfigError, match="sweeps"):
        read_grid(["--config", str(place / "grid.yaml"), "--head.sweeps", "0"])

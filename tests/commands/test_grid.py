"""The grid: its table against single fits, resuming after a kill, folds by patient, refusals in one line."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from ich_mil import cli
from ich_mil.commands import grid as module
from ich_mil.config import read_grid
from ich_mil.data.features import read_feature_csv
from ich_mil.errors import ConfigError
from ich_mil.files import alone, write_text
from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.predict import mean_logits
from ich_mil.gp.settings import HeadSettings
from tests.feature_table import name_patients, write_features


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
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def words(place):
    return ["grid", "--config", str(place / "grid.yaml")]


def test_the_table_is_that_of_single_fits(place, capsys):
    assert cli.main(words(place)) == 0
    table = pd.read_csv(place / "out" / "grid.csv")
    assert len(table) == 2 * 3 * 4
    assert len(table[["n_inducing", "beta", "seed", "fold"]].drop_duplicates()) == 24
    features, other = (read_feature_csv(place / f"{name}.csv") for name in ("train", "other"))
    splits = StratifiedKFold(3, shuffle=True, random_state=5).split(features.scans, features.labels)
    train, held = list(splits)[1]
    part, out = (features.select([features.scans[b] for b in chosen]) for chosen in (train, held))
    settings = HeadSettings(density="gamma", sweeps=5, n_inducing=8, beta=4.0, seed=5)
    model, report = fit(Bags(part.x, part.offsets, part.labels), settings)
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
    assert row["held_scan_auc"] > 0.7
    assert "held_scan_auc" in capsys.readouterr().out


def test_a_killed_grid_goes_on_to_the_same_table(place, monkeypatch, capsys):
    assert cli.main(words(place)) == 0
    path = place / "out" / "grid.csv"
    whole = pd.read_csv(path).drop(columns="seconds")

    class KilledError(Exception):
        pass

    written = []

    def write_some(target: Path, text: str) -> None:
        if len(written) == 9:
            raise KilledError
        written.append(target)
        write_text(target, text)

    path.unlink()
    monkeypatch.setattr(module, "write_text", write_some)
    with pytest.raises(KilledError):
        cli.main(words(place))
    monkeypatch.undo()
    assert len(pd.read_csv(path)) == 9
    capsys.readouterr()
    assert cli.main(words(place)) == 0
    assert "9 of 24 fits are in" in capsys.readouterr().out
    again = pd.read_csv(path).drop(columns="seconds")
    # what is left of a group is smaller, its products other, so not to the bit
    keys = ["n_inducing", "beta", "seed", "fold"]
    pd.testing.assert_frame_equal(
        again.sort_values(keys, ignore_index=True), whole.sort_values(keys, ignore_index=True), rtol=1e-9
    )
    assert cli.main(words(place)) == 0
    assert "24 of 24 fits are in" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "beta,seed\n1.0,0\n"])
def test_a_damaged_table_is_told(place, capsys, text):
    assert cli.main(words(place)) == 0
    path = place / "out" / "grid.csv"
    path.write_text(text)
    capsys.readouterr()
    assert cli.main(words(place)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: cannot be read as a grid (")
    assert error.endswith("; delete it to fit again\n")
    assert path.read_text() == text


def test_with_folds_0_it_trains_on_everything(place):
    assert cli.main([*words(place), "--folds", "0", "--seeds", "[1]"]) == 0
    table = pd.read_csv(place / "out" / "grid.csv")
    assert len(table) == 4
    assert not [name for name in table if name.startswith("held_")]
    features, other = (read_feature_csv(place / f"{name}.csv") for name in ("train", "other"))
    settings = HeadSettings(density="gamma", sweeps=5, n_inducing=6, beta=1.0, seed=1)
    model, _ = fit(Bags(features.x, features.offsets, features.labels), settings)
    scans = [
        float(z.max())
        for z in mean_logits([model], Bags(other.x, other.offsets))[0].split(other.offsets.diff().tolist())
    ]
    (row,) = table[(table.n_inducing == 6) & (table.beta == 1.0)].to_dict("records")
    assert row["external_scan_auc"] == pytest.approx(roc_auc_score(other.labels, scans), rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {"alpha": [0.0]}}, "alpha must be a finite number above 0, got 0"),
        ({"grid": {"colour": [1]}}, "grid names 'colour', which is no setting of a head"),
        ({"grid": {"seed": [1]}}, "grid names 'seed'"),
        ({"head": {"density": "gamma", "seed": 3}}, "head.seed is 3, but a grid has a list of its own"),
        ({"grid": {}}, "grid needs at least one setting"),
        ({"grid": {"alpha": [1.0]}, "head": {}}, "grid names 'alpha', which a logistic density has not"),
        ({"grid": {"density": ["gamma", "logistic"], "beta": [1.0]}}, "beta 1.0 is of the Gamma density"),
        ({"grid": {"alpha": []}}, "grid needs at least one setting"),
        ({"folds": 1}, "folds must be 0 (train on everything) or at least 2, got 1"),
        ({"seeds": [0, -1]}, "seeds must lie in 0..4294967295, got -1"),
        ({"seeds": []}, "seeds needs at least one value"),
        ({"seeds": [3, 1, 3]}, "seeds has 3 twice; each would count as another"),
        ({"grid": {"alpha": [1, 2.0, 1.0]}}, "grid: alpha has 1.0 twice"),
        ({"folds": 0, "external": None}, "with folds: 0 an external set is needed"),
        ({"train": {"layout": "rsna", "root": "x"}}, "a grid needs sets of layout 'features'"),
        ({"grid": {"kernel": ["RBFKernel", "RBF"]}}, "head.kernel: gpytorch.kernels has no kernel 'RBF'"),
        ({"grid": {"kernel": ["PolynomialKernel"]}}, "PolynomialKernel cannot be made from its name alone"),
        ({"grid": {"smooth_mm": [0.0, 5.0]}}, "smooth_mm is 5"),
        ({"folds": 16}, "train.csv: 16 folds need at least 16 patients of each label, there are 15 of one"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(place, change, message, capsys):
    config = yaml.safe_load((place / "grid.yaml").read_text()) | change
    (place / "grid.yaml").write_text(yaml.safe_dump(config))
    assert cli.main(words(place)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (place / "out" / "grid.json").exists()


def test_another_grid_does_not_mix_with_the_old_one(place, capsys):
    assert cli.main([*words(place), "--seeds", "[4]"]) == 0
    capsys.readouterr()
    assert cli.main(words(place)) == 2
    assert "holds results of other settings or data; choose another --out" in capsys.readouterr().err
    about = place / "out" / "grid.json"
    about.write_text(json.dumps({"format": "x"}))
    assert cli.main([*words(place), "--seeds", "[4]"]) == 2


def test_a_grid_does_not_go_on_with_other_data(place, capsys):
    words_of = [*words(place), "--seeds", "[5]"]
    assert cli.main(words_of) == 0
    table = pd.read_csv(place / "train.csv")
    table.assign(feature_0=0.0).to_csv(place / "train.csv", index=False)
    capsys.readouterr()
    assert cli.main(words_of) == 2
    assert "holds results of other settings or data" in capsys.readouterr().err
    with alone(place / "out", doing="holding"):
        assert cli.main(words_of) == 2
    assert "another process is writing it" in capsys.readouterr().err


def test_an_external_set_with_patients_of_the_training_set_is_refused(place, capsys):
    config = yaml.safe_load((place / "grid.yaml").read_text())
    config["external"]["root"] = config["train"]["root"]
    (place / "grid.yaml").write_text(yaml.safe_dump(config))
    assert cli.main(words(place)) == 2
    assert "30 of its patients were trained or calibrated on" in capsys.readouterr().err
    config["external"]["root"] = str(place / "other.csv")  # other scans, some of the same patients
    (place / "grid.yaml").write_text(yaml.safe_dump(config))
    for name in ("train", "other"):
        name_patients(place / f"{name}.csv", lambda b: f"p{b}")
    assert cli.main(words(place)) == 2
    assert "16 of its patients were trained or calibrated on" in capsys.readouterr().err
    assert not (place / "out").exists()


def test_an_external_set_with_a_scan_of_the_training_set_under_another_name_is_refused(place, capsys):
    table, other = (pd.read_csv(place / f"{name}.csv") for name in ("train", "other"))
    pd.concat([other, table[table.bag_name == "s0-3"].assign(bag_name="new")]).to_csv(
        place / "other.csv", index=False
    )
    assert cli.main(words(place)) == 2
    assert "1 of its scans have the slices of one that was trained or calibrated on: new (those of s0-3)" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("left", [["feature_0"], ["feature_0", "feature_1"]])
def test_an_external_set_of_another_width_is_refused_before_anything_is_written(place, left, capsys):
    table = pd.read_csv(place / "other.csv")
    table.drop(columns=sorted({"feature_0", "feature_1", "feature_2"} - {*left})).to_csv(
        place / "other.csv", index=False
    )
    assert cli.main(words(place)) == 2
    error = capsys.readouterr().err
    assert f"other.csv: has {len(left)} features a slice, the head is fitted to 3; extract both" in error
    assert error.count("\n") == 1
    assert not (place / "out").exists()


def test_numbers_of_the_grid_keep_their_type(place):
    cells = read_grid(["--config", str(place / "grid.yaml")]).cells()
    assert {type(cell["n_inducing"]) for cell in cells} == {int}
    assert {type(cell["beta"]) for cell in cells} == {float}
    with pytest.raises(ConfigError, match="sweeps"):
        read_grid(["--config", str(place / "grid.yaml"), "--head.sweeps", "0"])

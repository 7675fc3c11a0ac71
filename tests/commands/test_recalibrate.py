"""A model recalibrated to a site: what changes, what stays, and what is refused."""

import json
from dataclasses import replace
from shutil import copyfile, copytree

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from ich_mil import cli
from ich_mil.commands import recalibrate
from ich_mil.data.features import read_feature_csv
from ich_mil.data.splits import COLUMNS
from ich_mil.data.views import Views
from ich_mil.errors import DataError
from ich_mil.evaluate.baselines import CNN_SIGMOID
from ich_mil.evaluate.deployment.recalibration import cross_fitted, fit_intercept, refitted_differences
from ich_mil.evaluate.metrics import scan_metrics
from ich_mil.files import alone
from ich_mil.gp.bags import Bags
from ich_mil.gp.calibration import Calibration, smoothed_targets
from ich_mil.gp.predict import scan_samples
from ich_mil.gp.storage import load_head, save_head
from ich_mil.runs.model import load_model
from tests import phantoms
from tests.feature_table import write_features

TINY = {
    "split": {"validation": 0.25, "test": 0.25},
    "encoder": {"size": 32},
    "training": {"max_epochs": 1, "bags": 2},
    "head": {"n_inducing": 16},
    "samples": 200,
    "bootstrap": 50,
    "jobs": 1,
}
SAMPLES, SEED = 200, 3


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run on features, tables of two sites with fewer bleeds, and the run recalibrated to the first."""
    place = tmp_path_factory.mktemp("recalibrate")
    write_features(place / "a.csv", 40, 0)
    table = pd.read_csv(place / "a.csv")
    table.assign(bag_cnn_probability=0.3 + 0.4 * table.bag_label).to_csv(place / "a.csv", index=False)
    for name, seed in (("site", 1), ("new", 2)):
        write_features(place / f"{name}.csv", 120, seed)
        table = pd.read_csv(place / f"{name}.csv")
        number = table.bag_name.str.split("-").str[1].astype(int)
        table["bag_cnn_probability"] = 0.5 + 0.2 * table.bag_label + number % 7 / 35
        table[(number % 2 == 0) | (number % 12 == 1)].to_csv(place / f"{name}.csv", index=False)
    config = {
        "out": str(place / "run"),
        "train": {"layout": "features", "root": str(place / "a.csv")},
        "split": {"validation": 0},
        "head": {"n_inducing": 16, "sweeps": 10},
        "samples": SAMPLES,
        "bootstrap": 50,
        "seed": SEED,
    }
    (place / "run.yaml").write_text(yaml.safe_dump(config))
    assert cli.main(["train", "--config", str(place / "run.yaml")]) == 0
    assert cli.main(["recalibrate", *words(place, "site", "run"), "--out", str(place / "ours")]) == 0
    return place


def words(place, site, model):
    return [str(place / f"{site}.csv"), "--layout", "features", "--model", str(place / model)]


def refused(command, capsys):
    capsys.readouterr()
    assert cli.main([str(word) for word in command]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def measured(place, model, site, out):
    assert cli.main(["validate", *words(place, site, model), "--out", str(out)]) == 0
    table = pd.read_csv(out / "metrics.csv")
    rows = table[(table.model == "Gaussian-process head") & (table.level == "scan")]
    return rows.set_index("metric").value


def test_the_intercept_alone_changes_and_fits_the_site(place):
    run, ours = load_head(place / "run"), load_head(place / "ours")
    assert (place / "run" / "head.safetensors").read_bytes() == (
        place / "ours" / "head.safetensors"
    ).read_bytes()
    site = read_feature_csv(place / "site.csv")
    logits, _ = scan_samples(
        run,
        Bags(site.x.double(), site.offsets, None, None, site.scans),
        samples=SAMPLES,
        seed=load_model(place / "run").seed,
    )
    expected = fit_intercept(logits, site.labels, slope=run.calibration.slope)
    assert ours.calibration.intercept == pytest.approx(expected, rel=1e-12)
    assert ours.calibration.intercept < run.calibration.intercept - 0.5
    labels = site.labels.numpy()
    divided = [cross_fitted(logits, labels, site.patients, run.calibration, seed=k) for k in range(20)]
    table = pd.read_csv(place / "ours" / "recalibration.csv").set_index("metric")
    for metric in ("log_loss", "brier", "ece"):
        mean = np.mean([scan_metrics(labels, p)[metric] for p in divided])
        assert table.after[metric] == pytest.approx(mean, rel=1e-9)
    assert (place / "ours" / "config.yaml").read_text() == (place / "run" / "config.yaml").read_text()
    for name in ("slope", "rule", "slice_slope", "slice_intercept"):
        assert getattr(ours.calibration, name) == getattr(run.calibration, name)
    p = load_model(place / "ours").predict(Views.of([site])).scan_mean
    assert float(p.mean()) == pytest.approx(float(smoothed_targets(site.labels).mean()), rel=1e-9)
    before, after = (load_model(str(place / name)).logits(Views.of([site]))[0] for name in ("run", "ours"))
    assert torch.equal(before, after)


def test_other_scans_of_the_site_get_better_probabilities_and_its_own_are_refused(place, tmp_path, capsys):
    before, after = (measured(place, model, "new", tmp_path / model) for model in ("run", "ours"))
    assert after.log_loss < before.log_loss - 0.02
    assert after.auc == pytest.approx(before.auc, abs=0.01)
    error = refused(["validate", *words(place, "site", "ours"), "--out", tmp_path / "own"], capsys)
    assert "70 of its patients were trained or calibrated on" in error
    model = json.loads((tmp_path / "ours" / "predictions.json").read_text())["model"]
    assert model["calibration"] == (
        "sigmoid, its intercept fitted to 70 labelled scans of the site, 10 of them positive"
    )
    assert model["weights"] != load_model(place / "run").provenance.weights


def test_the_sigmoid_of_the_cnn_is_set_right_by_the_same_scans(place, tmp_path):
    site = read_feature_csv(place / "site.csv")
    own, new = (json.loads((place / name / CNN_SIGMOID).read_text()) for name in ("run", "ours"))
    assert new["slope"] == own["slope"]
    p = site.cnn_scan.double().numpy()
    told = 1 / (1 + np.exp(-own["slope"] * np.log(p / (1 - p)) - new["intercept"]))
    # Platt's targets of 10 positive and 60 negative scans are 11/12 and 1/62
    assert told.mean() == pytest.approx((10 * 11 / 12 + 60 / 62) / 70, rel=1e-9)
    losses = []
    for model in ("run", "ours"):
        measured(place, model, "new", tmp_path / model)
        table = pd.read_csv(tmp_path / model / "metrics.csv")
        rows = table[(table.model == "CNN alone, calibrated") & (table.level == "scan")]
        losses.append(rows.set_index("metric").value.log_loss)
    assert losses[1] < losses[0] - 0.02


def test_without_a_cnn_on_the_site_nothing_is_told_of_a_calibrated_one(place, tmp_path):
    table = pd.read_csv(place / "site.csv").drop(columns="bag_cnn_probability")
    table.to_csv(place / "bare.csv", index=False)
    assert cli.main(["recalibrate", *words(place, "bare", "run"), "--out", str(tmp_path / "ours")]) == 0
    assert not (tmp_path / "ours" / CNN_SIGMOID).exists()


def test_the_table_compares_scans_that_were_not_fitted(place):
    table = pd.read_csv(place / "ours" / "recalibration.csv").set_index("metric")
    assert table.index.tolist() == ["log_loss", "brier", "ece"]
    site = read_feature_csv(place / "site.csv")
    labels = site.labels.numpy()
    before, after = (
        scan_metrics(labels, load_model(place / model).predict(Views.of([site])).scan_mean.numpy())
        for model in ("run", "ours")
    )
    for metric in table.index:
        assert table.before[metric] == pytest.approx(before[metric], abs=1e-12)
        # of its own scans the recalibrated model is a little too good
        assert table.after[metric] == pytest.approx(after[metric], abs=0.02)
    assert table.after["log_loss"] > after["log_loss"] + 1e-4
    assert (table.low < table.after - table.before).all()
    assert table.better["log_loss"] > 0.9
    assert table.iloc[0][["n", "positives", "patients"]].tolist() == [70, 10, 70]
    assert table.auc.iloc[0] == pytest.approx(before["auc"])


def test_scans_of_one_patient_are_fitted_and_measured_together(place):
    model, site = load_model(place / "run"), read_feature_csv(place / "site.csv")
    own, labels = model.calibration, site.labels.numpy()
    patients = [f"P{n // 2}" for n in range(site.n_scans)]
    logits = model.logits(Views.of([site]))[0]
    table = recalibrate._table(logits, replace(site, patients=patients), own, SEED).set_index("metric")
    divided = [cross_fitted(logits, labels, patients, own, seed=k) for k in range(20)]
    resampled = refitted_differences(logits, labels, patients, own, seed=SEED)
    for metric in table.index:
        mean = np.mean([scan_metrics(labels, p)[metric] for p in divided])
        assert table.after[metric] == pytest.approx(mean, rel=1e-9)
        low, high = np.percentile(resampled[metric], [2.5, 97.5])
        assert (table.low[metric], table.high[metric]) == pytest.approx((low, high), rel=1e-9)
    assert set(table.patients) == {35}


def test_what_it_changes_in_words():
    facts = {"n": 40, "positives": 6, "patients": 35, "auc": 0.9}
    rows = [("log_loss", 0.5, 0.4, -0.15, -0.05, 0.97), ("brier", 0.1, 0.125, -0.01, 0.04, 0.2)]
    table = pd.DataFrame(rows, columns=["metric", "before", "after", "low", "high", "better"]).assign(**facts)
    old, new = (Calibration(rule="max", intercept=intercept) for intercept in (1.0, -0.25))
    told = recalibrate._told(table, old, new).splitlines()
    assert told[0].startswith("40 labelled scans of 35 patients, 6 positive (15%); ")
    assert told[1] == "The intercept goes from 1.000 to -0.250."
    assert told[3:5] == [
        "  log-loss 0.500 -> 0.400, -0.100 [-0.150, -0.050], better in 97% of resamples",
        "  Brier    0.100 -> 0.125, +0.025 [-0.010, +0.040], better in 20% of resamples",
    ]
    assert told[5].startswith("A resample measures on a third of the patients")
    assert told[6].startswith("Go by the log-loss: chance adds to an ECE")
    assert "15% of them positive" in told[7]


def test_twenty_patients_are_enough_and_five_scans_of_a_label(place):
    site = read_feature_csv(place / "site.csv")
    order = [*site.labels.argsort(descending=True)[:5].tolist(), *site.labels.argsort().tolist()]
    few, enough = (site.select([site.scans[b] for b in order[:n]]) for n in (19, 20))
    recalibrate._check_site(enough, "site.csv")
    with pytest.raises(DataError, match="of at least 20 patients, these are of 19"):
        recalibrate._check_site(few, "site.csv")


def test_a_model_that_ranks_scans_as_a_coin_would_is_refused():
    with pytest.raises(DataError, match=r"does not tell these scans apart \(AUC 0\.500\)"):
        recalibrate._check_order(pd.DataFrame({"auc": [0.5]}), "site.csv")


def test_no_scan_of_a_patient_of_the_site_is_held_out(place):
    site = read_feature_csv(place / "site.csv")
    one = site.select(site.scans[:1])
    splits = pd.DataFrame(
        [
            ("other", one.patients[0], 0, "test", "c2"),
            ("third", "P3", 1, "test", "c3"),
            ("fourth", "P4", 0, "train", ""),
            ("twin", "P5", 0, "test", one.table.content.iloc[0]),
            ("kin", f"P6 = {one.patients[0]}", 0, "test", "c6"),
        ],
        columns=COLUMNS,
    )
    after = recalibrate._splits(splits, one.table)
    assert after[["scan", "split", "content"]].values.tolist() == [
        ["third", "test", "c3"],
        ["fourth", "train", ""],
        [one.scans[0], "validation", one.table.content.iloc[0]],
    ]


def test_scans_the_run_held_out_may_be_used_and_then_are_held_out_no_more(place, tmp_path):
    config = yaml.safe_load((place / "run.yaml").read_text()) | {"split": {"validation": 0, "test": 0.6}}
    config["train"]["root"] = str(place / "b.csv")
    write_features(place / "b.csv", 80, 5)
    config["out"] = str(place / "halves")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    assert cli.main(["train", "--config", str(tmp_path / "run.yaml")]) == 0
    splits = pd.read_csv(place / "halves" / "splits.csv")
    table = pd.read_csv(place / "b.csv")
    held = splits[splits.split == "test"].scan[:30]
    table[table.bag_name.isin(held)].to_csv(place / "held.csv", index=False)
    assert cli.main(["recalibrate", *words(place, "held", "halves"), "--out", str(tmp_path / "ours")]) == 0
    after = pd.read_csv(tmp_path / "ours" / "splits.csv").set_index("scan").split
    assert after.index.is_unique
    assert set(after[held]) == {"validation"}
    rest = splits[~splits.scan.isin(held)].set_index("scan").split
    assert (after[rest.index] == rest).all()


def test_what_cannot_be_used_is_refused_and_makes_no_run(place, tmp_path, capsys):
    out = ["--out", str(tmp_path / "x")]
    table = pd.read_csv(place / "site.csv")
    some = table.bag_name.unique()
    table[table.bag_name.isin(some[:19])].to_csv(place / "few.csv", index=False)
    assert "labelled scans of at least 20 patients, these are of 19" in refused(
        ["recalibrate", *words(place, "few", "run"), *out], capsys
    )
    positive = table.bag_name[table.bag_label == 1].unique()
    table[~table.bag_name.isin(positive[4:])].to_csv(place / "four.csv", index=False)
    assert "at least 5 scans of each label, 4 of 64 are positive" in refused(
        ["recalibrate", *words(place, "four", "run"), *out], capsys
    )
    swapped = table.drop(columns="instance_label").assign(bag_label=1 - table.bag_label)
    swapped[~swapped.bag_name.isin(positive[4:])].to_csv(place / "four.csv", index=False)
    assert "at least 5 scans of each label, 60 of 64 are positive" in refused(
        ["recalibrate", *words(place, "four", "run"), *out], capsys
    )
    swapped.to_csv(place / "swapped.csv", index=False)
    assert "does not tell these scans apart (AUC 0.0" in refused(
        ["recalibrate", *words(place, "swapped", "run"), *out], capsys
    )
    assert "40 of its patients were trained or calibrated on" in refused(
        ["recalibrate", *words(place, "a", "run"), *out], capsys
    )
    wide = table.assign(feature_3=0.0)
    wide.to_csv(place / "wide.csv", index=False)
    assert "wide.csv: has 4 features a slice, the head is fitted to 3" in refused(
        ["recalibrate", *words(place, "wide", "run"), *out], capsys
    )
    table.assign(feature_0=table.feature_0.replace(table.feature_0[4], 1e9)).to_csv(
        place / "far.csv", index=False
    )
    assert f"{place / 'far.csv'}: scan '{table.bag_name[4]}': feature 0 of slice" in refused(
        ["recalibrate", *words(place, "far", "run"), *out], capsys
    )
    with alone(tmp_path / "x", doing="holding"):
        told = refused(["recalibrate", *words(place, "site", "run"), *out], capsys)
    assert "another process is writing it" in told
    assert not (tmp_path / "x" / "run.json").exists()
    for taken in ("run", "ours"):
        command = ["recalibrate", *words(place, "new", "run"), "--out", place / taken]
        assert "holds a run already" in refused(command, capsys)
    (tmp_path / "unfinished").mkdir()
    copyfile(place / "run" / "run.json", tmp_path / "unfinished" / "run.json")
    command = ["recalibrate", *words(place, "new", "run"), "--out", tmp_path / "unfinished"]
    assert "holds a run already" in refused(command, capsys)
    assert "is a recalibrated model and has no report" in refused(["report", place / "ours"], capsys)
    command = ["train", "--config", place / "run.yaml", "--out", place / "ours", "--resume"]
    assert "is a recalibrated model, not a training" in refused(command, capsys)


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_folder_with_the_parts_of_some_other_run_is_not_trained_into(place, tmp_path, capsys, resume):
    out = tmp_path / "parts"
    out.mkdir()
    copyfile(place / "run" / "head.json", out / "head.json")
    command = ["train", "--config", place / "run.yaml", "--out", out, *resume]
    assert f"{out}: holds head.json but no run.json" in refused(command, capsys)
    assert {path.name for path in out.iterdir()} == {"head.json"}


def test_a_run_that_is_not_calibrated_is_refused(place, tmp_path, capsys):
    head = load_head(place / "run")
    head.calibration = None
    save_head(head, tmp_path / "raw")
    for name in ("run.json", "splits.csv"):
        (tmp_path / "raw" / name).write_bytes((place / "run" / name).read_bytes())
    site = words(place, "site", "run")
    site[-1] = str(tmp_path / "raw")
    assert "probabilities are uncalibrated" in refused(
        ["recalibrate", *site, "--out", tmp_path / "x"], capsys
    )


def test_a_killed_recalibration_goes_on_and_is_no_training(place, tmp_path, capsys, monkeypatch):
    command = ["recalibrate", *words(place, "site", "run"), "--out", str(tmp_path / "ours")]

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(recalibrate, "save_calibration", killed)
    with pytest.raises(KeyboardInterrupt):
        cli.main(command)
    monkeypatch.undo()
    for resume in ([], ["--resume"]):
        words_of_train = ["train", "--config", place / "run.yaml", "--out", tmp_path / "ours", *resume]
        assert "holds a run" in (told := refused(words_of_train, capsys)) or "is a recalibrated model" in told
    (tmp_path / "ours" / ".head.json.1.tmp").touch()
    assert cli.main(command) == 0
    assert not list((tmp_path / "ours").glob("*.tmp"))
    for name in ("head.json", "head.safetensors", "splits.csv", "recalibration.csv", "run.json"):
        assert (tmp_path / "ours" / name).read_bytes() == (place / "ours" / name).read_bytes()


def test_a_model_that_changes_meanwhile_is_refused(place, tmp_path, capsys, monkeypatch):
    copytree(place / "run", tmp_path / "run")
    site = words(place, "site", "run")
    site[-1] = str(tmp_path / "run")
    prepared = recalibrate.external_set

    def exchanged(*args, **places):
        head = load_head(tmp_path / "run")
        head.calibration = Calibration(rule="max", intercept=3.0)
        save_head(head, tmp_path / "run")
        return prepared(*args, **places)

    monkeypatch.setattr(recalibrate, "external_set", exchanged)
    assert "became another model meanwhile" in refused(
        ["recalibrate", *site, "--out", tmp_path / "ours"], capsys
    )


def test_a_run_with_other_samples_is_another_model(place, tmp_path):
    copytree(place / "run", tmp_path / "run")
    about = json.loads((place / "run" / "run.json").read_text())
    about["config"]["samples"] += 1
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    one, other = (load_model(folder).provenance.weights for folder in (place / "run", tmp_path / "run"))
    assert one != other


def test_isotonic_regression_gives_way_to_its_sigmoid(place, tmp_path, capsys):
    head = load_head(place / "run")
    sigmoid = head.calibration
    head.calibration = replace(sigmoid, method="isotonic", knots=((0.1, 0.05), (0.9, 0.95)))
    copytree(place / "run", tmp_path / "run")
    save_head(head, tmp_path / "run")
    site = words(place, "site", "run")
    site[-1] = str(tmp_path / "run")
    capsys.readouterr()
    assert cli.main(["recalibrate", *site, "--out", str(tmp_path / "ours")]) == 0
    assert "Isotonic regression gives way to the sigmoid beneath it." in capsys.readouterr().out
    assert load_head(tmp_path / "ours").calibration == load_head(place / "ours").calibration


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:probabilities are")
def test_pictures_of_a_site(tmp_path, capsys):
    phantoms.rsna(tmp_path / "a", studies=16)
    phantoms.cq500(tmp_path / "b", studies=24)
    config = TINY | {
        "out": str(tmp_path / "run"),
        "prepared": str(tmp_path / "prepared"),
        "train": {"layout": "rsna", "root": str(tmp_path / "a")},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(config))
    assert cli.main(["train", "--config", str(tmp_path / "tiny.yaml")]) == 0
    head = load_head(tmp_path / "run")
    head.calibration = Calibration(rule="max", intercept=3.0)  # so small a run may have none
    save_head(head, tmp_path / "run")
    reads = pd.read_csv(tmp_path / "b" / "reads.csv")  # so small a network ranks scans the wrong way round
    readers = [f"R{i}:ICH" for i in (1, 2, 3)]
    reads[readers] = 1 - reads[readers]
    reads.to_csv(tmp_path / "b" / "reads.csv", index=False)
    command = ["recalibrate", tmp_path / "b", "--layout", "cq500", "--jobs", "1"]
    command = [str(word) for word in (*command, "--model", tmp_path / "run", "--out", tmp_path / "ours")]
    assert cli.main(command) == 0
    assert "24 labelled scans" in capsys.readouterr().out
    assert set(pd.read_csv(tmp_path / "ours" / "recalibration.csv").n) == {24}

    study = next(path for path in sorted((tmp_path / "b").iterdir()) if path.is_dir())
    for model in ("run", "ours"):
        words = [
            "predict",
            study,
            "--model",
            tmp_path / model,
            "--out",
            tmp_path / f"p-{model}",
            "--jobs",
            "1",
        ]
        assert cli.main([str(word) for word in words]) == 0
    tables = {name: pd.read_csv(tmp_path / f"p-{name}" / "predictions.csv") for name in ("run", "ours")}
    p = {name: table[table.level == "scan"].probability.item() for name, table in tables.items()}
    assert p["ours"] < p["run"]  # an intercept of 3 was too much
    slices = [table[table.level == "slice"].probability for table in tables.values()]
    assert (slices[1] <= slices[0] + 1e-6).all()

    again = phantoms.second_name(study, tmp_path / "again")
    name = pd.read_csv(tmp_path / "p-ours" / "predictions.csv").scan[0] + "9"
    (again / "labels.csv").write_text(f"scan,label\n{name},0\n")
    command = ["validate", again, "--layout", "folder", "--model", tmp_path / "ours", "--out", tmp_path / "v"]
    assert cli.main([str(word) for word in command]) == 2
    assert (
        "1 of its scans have the slices of one that was trained or calibrated on" in capsys.readouterr().err
    )

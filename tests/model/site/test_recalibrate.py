"""A model recalibrated to a site: what changes, what stays, and what is refused."""

import json
from dataclasses import replace
from shutil import copyfile, copytree

import numpy as np
import pandas as pd
import pytest
import torch

from ich_mil.evaluate.baselines import CNN_SIGMOID
from ich_mil.evaluate.deployment.recalibration import cross_fitted, fit_intercept, refitted_differences
from ich_mil.evaluate.metrics import scan_metrics
from ich_mil.files import alone
from ich_mil.gp.calibration import Calibration, smoothed_targets
from ich_mil.gp.storage import load_head, save_head
from ich_mil.model.site import recalibrate
from ich_mil.model.storage import load_model
from ich_mil.sets.features import read_feature_table
from ich_mil.sets.views import Views
from tests import phantoms
from tests.feature_table import name_patients, write_features
from tests.runs_for_tests import feature_run, refused, run

SEED = 3


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run on features, tables of two sites with fewer bleeds, and the run recalibrated to the first."""
    place = tmp_path_factory.mktemp("recalibrate")
    write_features(place / "f.csv", 40, 0)
    table = pd.read_csv(place / "f.csv")
    table.assign(bag_cnn_probability=0.3 + 0.4 * table.bag_label).to_csv(place / "f.csv", index=False)
    for name, seed in (("site", 1), ("new", 2)):
        write_features(place / f"{name}.csv", 120, seed)
        table = pd.read_csv(place / f"{name}.csv")
        number = table.bag_name.str.split("-").str[1].astype(int)
        table["bag_cnn_probability"] = 0.5 + 0.2 * table.bag_label + number % 7 / 35
        table[(number % 2 == 0) | (number % 12 == 1)].to_csv(place / f"{name}.csv", index=False)
    assert run("train", *feature_run(place, seed=SEED)) == 0
    assert run(*recalibrates(place, "site"), "--out", place / "ours") == 0
    return place


def recalibrates(place, site, model=None):
    return ("recalibrate", place / f"{site}.csv", "--layout", "features", "--model", model or place / "run")


def measured(place, model, out, row="Gaussian-process head"):
    words = (place / "new.csv", "--layout", "features", "--model", place / model)
    assert run("validate", *words, "--out", out) == 0
    table = pd.read_csv(out / "metrics.csv")
    return table[(table.model == row) & (table.level == "scan")].set_index("metric").value


@pytest.fixture
def logits(place):
    """Model, site, and the sampled logits of the site's scans."""
    model, site = load_model(place / "run"), read_feature_table(place / "site.csv")
    return model, site, model.logits(Views.of([site]))[0]


def test_intercept_and_prevalence_fit_the_site(place, logits):
    model, site, z = logits
    run, ours = load_head(place / "run"), load_head(place / "ours")
    for name in ("head.safetensors", "config.yaml"):
        assert (place / "run" / name).read_bytes() == (place / "ours" / name).read_bytes()
    expected = fit_intercept(z, site.labels, slope=run.calibration.slope)
    assert ours.calibration.intercept == pytest.approx(expected, rel=1e-12)
    assert ours.calibration.intercept < run.calibration.intercept - 0.5
    assert ours.calibration.prevalence == pytest.approx(10 / 70)
    own = replace(run.calibration, intercept=ours.calibration.intercept, prevalence=10 / 70)
    assert ours.calibration == own
    new = load_model(place / "ours")
    p = new.predict(Views.of([site])).scan_mean
    assert float(p.mean()) == pytest.approx(float(smoothed_targets(site.labels).mean()), rel=1e-9)
    assert torch.equal(z, new.logits(Views.of([site]))[0])
    assert new.provenance.calibration == (
        "sigmoid, its intercept fitted to 70 labelled scans of the site, 10 of them positive"
    )
    assert new.provenance.weights != model.provenance.weights


def test_the_table_compares_scans_that_were_not_fitted(place, logits):
    model, site, z = logits
    own, labels = model.calibration, site.labels.numpy()
    table = pd.read_csv(place / "ours" / "recalibration.csv").set_index("metric")
    assert table.index.tolist() == ["log_loss", "brier", "ece"]
    divided = [cross_fitted(z, labels, site.patients, own, seed=k) for k in range(20)]
    before = scan_metrics(labels, model.predict(Views.of([site])).scan_mean.numpy())
    for metric in table.index:
        mean = np.mean([scan_metrics(labels, p)[metric] for p in divided])
        assert table.after[metric] == pytest.approx(mean, rel=1e-9)
        assert table.before[metric] == pytest.approx(before[metric], abs=1e-12)
    assert (table.low < table.after - table.before).all()
    assert table.better["log_loss"] > 0.9
    assert table.iloc[0][["n", "positives", "patients"]].tolist() == [70, 10, 70]
    assert table.auc.iloc[0] == pytest.approx(before["auc"])


def test_scans_of_one_patient_are_fitted_and_measured_together(place, logits, tmp_path):
    model, site, z = logits
    own, labels = model.calibration, site.labels.numpy()
    copyfile(place / "site.csv", tmp_path / "kin.csv")
    name_patients(tmp_path / "kin.csv", lambda b: f"P{b // 4}")
    assert run(*recalibrates(tmp_path, "kin", place / "run"), "--out", tmp_path / "ours") == 0
    table = pd.read_csv(tmp_path / "ours" / "recalibration.csv").set_index("metric")
    patients = read_feature_table(tmp_path / "kin.csv").patients
    assert set(table.patients) == {len(set(patients))}
    divided = [cross_fitted(z, labels, patients, own, seed=k) for k in range(20)]
    resampled = refitted_differences(z, labels, patients, own, seed=SEED)
    for metric in table.index:
        mean = np.mean([scan_metrics(labels, p)[metric] for p in divided])
        assert table.after[metric] == pytest.approx(mean, rel=1e-9)
        low, high = np.percentile(resampled[metric], [2.5, 97.5])
        assert (table.low[metric], table.high[metric]) == pytest.approx((low, high), rel=1e-9)


def test_other_scans_of_the_site_get_better_probabilities_and_its_own_are_refused(place, tmp_path, capsys):
    before, after = (measured(place, model, tmp_path / model) for model in ("run", "ours"))
    assert after.log_loss < before.log_loss - 0.02
    assert after.auc == pytest.approx(before.auc, abs=0.01)
    words = (place / "site.csv", "--layout", "features", "--model", place / "ours", "--out", tmp_path / "own")
    assert "70 of its patients were trained" in refused(capsys, "validate", *words)


def test_the_sigmoid_of_the_cnn_is_fitted_to_the_same_scans(place, tmp_path):
    site = read_feature_table(place / "site.csv")
    own, new = (json.loads((place / name / CNN_SIGMOID).read_text()) for name in ("run", "ours"))
    assert new["slope"] == own["slope"]
    p = site.cnn_scan.double().numpy()
    calibrated = 1 / (1 + np.exp(-own["slope"] * np.log(p / (1 - p)) - new["intercept"]))
    # Platt's targets of 10 positive and 60 negative scans are 11/12 and 1/62
    assert calibrated.mean() == pytest.approx((10 * 11 / 12 + 60 / 62) / 70, rel=1e-9)
    row = "CNN alone, calibrated"
    before, after = (measured(place, model, tmp_path / model, row) for model in ("run", "ours"))
    assert after.log_loss < before.log_loss - 0.02
    pd.read_csv(place / "site.csv").drop(columns="bag_cnn_probability").to_csv(
        place / "bare.csv", index=False
    )
    assert run(*recalibrates(place, "bare"), "--out", tmp_path / "bare") == 0
    assert not (tmp_path / "bare" / CNN_SIGMOID).exists()


def test_no_scan_of_a_patient_of_the_site_is_held_out(place, tmp_path):
    site = read_feature_table(place / "site.csv")
    one = site.table.iloc[0]
    copytree(place / "run", tmp_path / "run")
    rows = [
        ("other", one.patient, 0, "test", "c2"),
        ("third", "P3", 1, "test", "c3"),
        ("fourth", "P4", 0, "train", ""),
        ("fifth", "P7", 1, "train", "c7"),
        ("twin", "P5", 0, "test", one.content),
        ("kin", f"P6 = {one.patient}", 0, "test", "c6"),
        ("earlier", "P8", 0, "inherited", "c8"),
    ]
    table = pd.DataFrame(rows, columns=["scan", "patient", "label", "split", "content"])
    table.assign(learn="all").to_csv(tmp_path / "run" / "splits.csv", index=False)
    words = recalibrates(place, "site", tmp_path / "run")
    assert run(*words, "--out", tmp_path / "ours") == 0
    after = pd.read_csv(tmp_path / "ours" / "splits.csv").set_index("scan").split
    assert after.index.is_unique
    kept = {"third": "test", "fourth": "train", "fifth": "train", "earlier": "inherited"}
    assert after.iloc[:4].to_dict() == kept
    assert after.index.tolist()[4:] == site.scans
    assert set(after[site.scans]) == {"validation"}


def test_data_that_cannot_be_used_is_refused_and_makes_no_run(place, tmp_path, capsys):
    table = pd.read_csv(place / "site.csv")
    scans, positive = table.bag_name.unique(), table.bag_name[table.bag_label == 1].unique()
    order = [*positive[:5], *(scan for scan in scans if scan not in positive)]
    swapped = table.drop(columns="instance_label").assign(bag_label=1 - table.bag_label)
    far = table.feature_0.replace(table.feature_0[4], 1e9)
    cases = {
        "at least 20 patients": table[table.bag_name.isin(order[:19])],
        "4 of 64 are positive": table[~table.bag_name.isin(positive[4:])],
        "60 of 64 are positive": swapped[~swapped.bag_name.isin(positive[4:])],
        "(AUC 0.0": swapped,
        "40 of its patients were trained": pd.read_csv(place / "f.csv"),
        "has 4 features": table.assign(feature_3=0.0),
        f"scan '{table.bag_name[4]}': feature 0 of slice": table.assign(feature_0=far),
    }
    for message, given in cases.items():
        given.to_csv(tmp_path / "given.csv", index=False)
        error = refused(capsys, *recalibrates(tmp_path, "given", place / "run"), "--out", tmp_path / "x")
        assert message in error
        assert error.startswith(f"error: {tmp_path / 'given.csv'}: ")
    table[table.bag_name.isin(order[:20])].to_csv(tmp_path / "given.csv", index=False)  # just enough
    assert run(*recalibrates(tmp_path, "given", place / "run"), "--out", tmp_path / "enough") == 0
    with alone(tmp_path / "x", doing="holding"):
        assert "another process" in refused(capsys, *recalibrates(place, "site"), "--out", tmp_path / "x")
    assert not (tmp_path / "x" / "run.json").exists()


def test_recalibrated_and_unfinished_runs_are_not_overwritten_reported_or_trained_on(place, tmp_path, capsys):
    (tmp_path / "unfinished").mkdir()
    copyfile(place / "run" / "run.json", tmp_path / "unfinished" / "run.json")
    for taken in (place / "run", place / "ours", tmp_path / "unfinished"):
        assert "holds a run already" in refused(capsys, *recalibrates(place, "new"), "--out", taken)
    assert "is a recalibrated model" in refused(capsys, "report", place / "ours")
    train = ("train", "--config", place / "run.yaml", "--out", place / "ours")
    assert "is a recalibrated model" in refused(capsys, *train, "--resume")
    assert "holds a run" in refused(capsys, *train)


def test_a_run_that_is_not_calibrated_is_refused(place, tmp_path, capsys):
    copytree(place / "run", tmp_path / "raw")
    head = load_head(place / "run")
    head.calibration = None
    save_head(head, tmp_path / "raw")
    error = refused(capsys, *recalibrates(place, "site", tmp_path / "raw"), "--out", tmp_path / "x")
    assert f"{tmp_path / 'raw'}: is not calibrated" in error


def test_a_killed_recalibration_goes_on(place, tmp_path, capsys, monkeypatch):
    command = (*recalibrates(place, "site"), "--out", tmp_path / "ours")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(recalibrate, "save_calibration", killed)
    with pytest.raises(KeyboardInterrupt):
        run(*command)
    monkeypatch.undo()
    train = ("train", "--config", place / "run.yaml", "--out", tmp_path / "ours", "--resume")
    assert "is a recalibrated model" in refused(capsys, *train)
    (tmp_path / "ours" / ".head.json.1.tmp").touch()
    assert run(*command) == 0
    assert not list((tmp_path / "ours").glob("*.tmp"))
    for name in ("head.json", "head.safetensors", "splits.csv", "recalibration.csv", "run.json"):
        assert (tmp_path / "ours" / name).read_bytes() == (place / "ours" / name).read_bytes()


@pytest.mark.slow
def test_pictures_of_a_site(tiny, tmp_path, capsys):
    phantoms.cq500(tmp_path / "b", studies=24)
    copytree(tiny / "run", tmp_path / "run")
    head = load_head(tmp_path / "run")
    head.calibration = Calibration(rule="max", intercept=3.0)  # so small a run may have none
    save_head(head, tmp_path / "run")
    words = ("--layout", "cq500", "--jobs", 1, "--model", tmp_path / "run")
    if run("recalibrate", tmp_path / "b", *words, "--out", tmp_path / "ours") != 0:
        reads = pd.read_csv(
            tmp_path / "b" / "reads.csv"
        )  # so small a network ranks scans the wrong way round
        readers = [f"R{i}:ICH" for i in (1, 2, 3)]
        reads[readers] = 1 - reads[readers]
        reads.to_csv(tmp_path / "b" / "reads.csv", index=False)
        assert run("recalibrate", tmp_path / "b", *words, "--out", tmp_path / "ours") == 0
    assert set(pd.read_csv(tmp_path / "ours" / "recalibration.csv").n) == {24}

    study, tables = next(path for path in sorted((tmp_path / "b").iterdir()) if path.is_dir()), {}
    for model in ("run", "ours"):
        out = tmp_path / f"p-{model}"
        assert run("predict", study, "--model", tmp_path / model, "--out", out, "--jobs", 1) == 0
        tables[model] = [pd.read_csv(out / f"{level}.csv") for level in ("scans", "slices")]
    before, after = (scans.probability.item() for scans, _ in tables.values())
    assert after < before  # an intercept of 3 was too much
    slices = [own.probability for _, own in tables.values()]
    assert (slices[1] <= slices[0] + 1e-6).all()

    again = phantoms.second_name(study, tmp_path / "again")
    (again / "labels.csv").write_text(f"scan,label\n{tables['ours'][0].scan[0]}9,0\n")
    words = (again, "--layout", "folder", "--model", tmp_path / "ours", "--out", tmp_path / "v")
    assert "1 of its scans have the slices" in refused(capsys, "validate", *words)

"""The commands as a user types them: bad input ends in one line and exit code 2, nothing half-written."""

import errno
import json
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import pytest
import torch
from joblib.externals.loky.process_executor import TerminatedWorkerError
from pydicom import dcmread

from ich_mil import cli
from ich_mil.cli import train_main
from ich_mil.config import read_config
from ich_mil.files import alone
from ich_mil.gp.head import Head
from ich_mil.ledger import Code
from ich_mil.model.maps import read_maps
from ich_mil.model.predictions import read_results
from ich_mil.pages.page import study_file_name
from ich_mil.ranks import Ranks
from ich_mil.sets.features import read_feature_table
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.sets.splits import draw_splits, patient_key
from ich_mil.sets.store import PreparedSet, open_prepared
from ich_mil.study.files.header import read_headers
from tests import phantoms
from tests.feature_table import name_patients, write_features
from tests.html_page import check_offline
from tests.runs_for_tests import HEAD, TINY, feature_run, refused, run

# a head fitted to a handful of tiny scans may rank its validation scans no better than chance, and says so
pytestmark = pytest.mark.filterwarnings("ignore:probabilities are")


def test_a_run_leaves_metrics_predictions_pages_and_a_report(tiny):
    out = tiny / "run"
    splits = pd.read_csv(out / "splits.csv")
    for name in ("validation", "test", "external"):
        metrics = pd.read_csv(out / name / "metrics.csv")
        assert {"Gaussian-process head", "CNN alone", "position only"} <= set(metrics.model)
        assert ("slice prevalence" in set(metrics.model)) == (name != "external")  # which has no slice labels
        scans, slices = (pd.read_csv(out / name / f"{level}.csv") for level in ("scans", "slices"))
        for table in (scans, slices):
            assert table[["probability", "low", "high"]].apply(lambda c: c.between(0, 1).all()).all()
            assert (table.low <= table.high).all()
            assert (table["std"] > 0).all()
        tree = json.loads((out / name / "predictions.json").read_text())
        assert [scan["scan"] for scan in tree["scans"]] == list(scans.scan)
        assert tree["model"]["config"] == read_config(["--config", str(tiny / "tiny.yaml")]).hash
        assert sum(len(scan["slices"]) for scan in tree["scans"]) == len(slices)
        others = set(splits.scan) - {scan["scan"] for scan in tree["scans"]}
        assert others.isdisjoint(line["scan"] for line in tree["ledger"])
    codes = Counter(line["code"] for part in (tree, *tree["scans"]) for line in part["ledger"])
    report = (out / "report.html").read_text()
    assert "not for diagnosis" in report
    pages = list((out / "studies").iterdir())
    assert len(pages) == TINY["pages"]
    assert all(f"studies/{page.name}" in report for page in pages)
    assert codes  # of the external set, the last
    assert all(f'<td>{code}</td><td class="number">{count}</td>' in report for code, count in codes.items())
    assert splits.groupby("patient").split.nunique().eq(1).all()


def earlier_pages(out):
    """Files of an earlier prediction."""
    paths = [
        out / "scan-old.html",
        out / "maps" / "old.safetensors",
        out / "dicom" / "scan-old" / "key-1.dcm",
    ]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def test_predict_on_an_export_with_several_studies(tiny, tmp_path, monkeypatch):
    """Whole studies in one folder, with junk between them: the same numbers as in the run itself."""
    export, out = tmp_path / "export", tmp_path / "out"
    for scan in sorted((tiny / "b").glob("CQ500CT*"))[:2]:
        shutil.copytree(scan, export / scan.name)
    (export / "readme.txt").write_text("not a picture")
    old = earlier_pages(out)
    opened = Counter()
    hu = PreparedSet.hu
    monkeypatch.setattr(PreparedSet, "hu", lambda self, scan: (opened.update([scan]), hu(self, scan))[1])
    words = ("--model", tiny / "run", "--jobs", 1, "--dicom")
    assert run("predict", export, "--out", out, *words) == 0
    assert set(opened.values()) == {2}  # features; then maps, page and DICOM results
    assert len(pd.read_csv(out / "scans.csv")) == 2
    assert len(list(out.glob("scan-*.html"))) == len(list(out.glob("dicom/*/report-1.dcm"))) == 2
    assert not any(path.exists() for path in old)
    results = read_results(out)
    assert [line.code for line in results.ledger if line.file == "readme.txt"] == ["not-dicom"]
    assert all(read_maps(out, scan, results.model) is None for scan in results.scans)  # trained without boxes

    # slices are named by their SOP instance UID here and there; their CNN features and so means agree to the
    # posterior samples, whose noise is keyed by the scan's id, which differs: compare within sampling error
    external = pd.read_csv(tiny / "run" / "external" / "slices.csv").set_index("name")
    slices = pd.read_csv(out / "slices.csv")
    difference = slices.probability.to_numpy() - external.probability[slices.name].to_numpy()
    assert abs(difference).max() < 5 * slices["std"].max() / TINY["samples"] ** 0.5


def test_pages_of_the_most_probable_scans(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    assert run("predict", tiny / "b", "--model", tiny / "run", "--out", out, "--jobs", 1, "--pages", 1) == 0
    said = capsys.readouterr()
    rows = pd.read_csv(out / "scans.csv").sort_values("probability", ascending=False)
    assert len(rows) > 2
    assert [path.name for path in out.glob("scan-*.html")] == [study_file_name(rows.scan.iloc[0])]
    unlike = (rows.unlikeness > 1).sum()
    assert f"{unlike} of {len(rows)} scans are {Code.UNLIKE.text}" in said.out.splitlines()
    assert f"pages of 1 of {len(rows)} scans; of another: ich-mil report" in said.out + said.err
    assert run("report", out, "--scan", rows.scan.iloc[-1]) == 0
    assert len(list(out.glob("scan-*.html"))) == 2


@pytest.mark.slow
def test_thresholds_are_not_calibrated_on_training_scans(tiny, tmp_path, capsys):
    assert run("predict", tiny / "a", "--model", tiny / "run", "--out", tmp_path / "out", "--jobs", 1) == 0
    splits = pd.read_csv(tiny / "run" / "splits.csv").set_index("scan").split
    scans = read_results(tmp_path / "out").scans
    found = {one.scan for one in scans if Code.LEARNED_FROM in {entry.code for entry in one.ledger}}
    assert found == set(splits.index[splits != "test"])
    assert found < {one.scan for one in scans}
    rows = [f"{one.scan},{i % 2}" for i, one in enumerate(scans)]
    (tmp_path / "labels.csv").write_text("\n".join(["scan,label", *rows]))
    error = refused(capsys, "triage", tmp_path / "out", "--labels", tmp_path / "labels.csv")
    assert f"patients of {len(found)} of its scans" in error


@pytest.mark.slow
def test_validating_again_sees_changed_labels(tiny, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(tiny / "b", site)

    def validated(name, model):
        words = (site, "--layout", "cq500", "--out", tmp_path / name, "--jobs", 1, "--model", model)
        assert run("validate", *words) == 0
        return pd.read_csv(tmp_path / name / "scans.csv")

    old = earlier_pages(tmp_path / "out")
    first = validated("out", tiny / "run")
    assert not any(path.exists() for path in old)
    again, own = (pd.read_csv(path / "metrics.csv") for path in (tmp_path / "out", tiny / "run" / "external"))
    pd.testing.assert_frame_equal(again, own)
    reads = pd.read_csv(site / "reads.csv")
    readers = [f"R{i}:ICH" for i in (1, 2, 3)]
    reads[readers] = 1 - reads[readers]
    reads.to_csv(site / "reads.csv", index=False)
    second = validated("out", tiny / "run")
    assert (second.label == 1 - first.label).all()
    assert (second.probability == first.probability).all()


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["head", "features", "splits.csv", "run.json"])
def test_a_run_killed_at_any_step_resumes_to_the_same_numbers(tiny, tmp_path, lost):
    """The state after a kill is made by removing what comes later; the folder was moved, too."""
    copy = tmp_path / "moved"
    shutil.copytree(tiny / "run", copy)
    made = ["head.json", "external", "test", "validation", "report.html"]
    if lost != "head":
        made += ["features", "cnn.json"]
    if lost in ("splits.csv", "run.json"):
        made += [lost, "cnn.safetensors", "cnn"]
    for path in (copy / name for name in made):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert run("train.py", "--config", tiny / "tiny.yaml", "--out", copy, "--resume") == 0
    for name in ("cnn.safetensors", "head.safetensors", "external/slices.csv", "test/metrics.csv"):
        assert (copy / name).read_bytes() == (tiny / "run" / name).read_bytes(), name


@pytest.mark.slow
def test_a_study_that_cannot_be_read_at_all_is_reported(tiny, tmp_path, capsys):
    export, out = tmp_path / "export", tmp_path / "out"
    good, bad = sorted((tiny / "b").glob("CQ500CT*"))[:2]
    shutil.copytree(good, export / "good")
    shutil.copytree(min((bad / "Unknown Study").iterdir()), export / "bad")
    broken = list((export / "bad").iterdir())
    for path in broken:
        path.write_bytes(path.read_bytes()[:-3000])
    one = next((export / "good").rglob("*.dcm"))
    phantoms.rewrite(one, export / "nameless.dcm", StudyInstanceUID="", SOPInstanceUID="1.2.3")
    (export / "good" / "packed.zip").write_bytes(b"PK")
    capsys.readouterr()
    assert run("predict", export, "--model", tiny / "run", "--out", out, "--jobs", 1) == 0
    told = capsys.readouterr().out
    assert [line.split(": ")[0] for line in told.splitlines()[-2:]] == ["written", "next"]
    for part in ("no slice could be used", "never called negative: ", "nameless.dcm"):
        assert part in told
    tree = json.loads((out / "predictions.json").read_text())
    assert len(tree["scans"]) == 1
    assert sum(line["code"] == "unreadable" for line in tree["ledger"]) == len(broken)


def test_a_run_on_all_scans_ends_well_and_has_no_report(tmp_path, capsys):
    assert run("train.py", *feature_run(tmp_path)) == 0
    told = capsys.readouterr().out
    assert "no scans are held out" in told
    assert told.splitlines()[-2:] == [
        f"written: {tmp_path / 'run'}",
        f"next: ich-mil validate TABLE.csv --layout features --model {tmp_path / 'run'}",
    ]
    assert str(tmp_path / "run") in refused(capsys, "report", tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("out", ["link/x", "site"])
@pytest.mark.parametrize("command", ["predict", "validate --layout cq500", "recalibrate --layout cq500"])
def test_results_are_not_written_into_the_studies(tmp_path, monkeypatch, capsys, command, out):
    """Nor by a link; the default is beside the folder (`default_out`)."""
    (tmp_path / "site").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    error = refused(capsys, *command.split(), "site", "--model", "none", "--out", out)
    assert "choose another --out" in error
    assert list((tmp_path / "site").iterdir()) == []


@pytest.mark.parametrize("command", ["predict", "validate --layout cq500"])
def test_results_are_not_written_among_the_files_of_a_run(tmp_path, capsys, command):
    (tmp_path / "site").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    words = (*command.split(), tmp_path / "site", "--model", tmp_path / "run", "--out", tmp_path / "run")
    assert f"{tmp_path / 'run'}: is the folder of a run" in refused(capsys, *words)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


def test_two_processes_do_not_write_one_folder(tiny, tmp_path, capsys):
    with alone(tmp_path, doing="holding"):
        words = ("predict", tiny / "b", "--model", tiny / "run", "--out", tmp_path)
        assert f"{tmp_path}: another process" in refused(capsys, *words)
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}


def test_pictures_and_features_do_not_mix(tiny, tmp_path, capsys):
    write_features(tmp_path / "f.csv", 2, 0)
    words = ("validate", tmp_path / "f.csv", "--layout", "features", "--model", tiny / "run")
    assert f"{tiny / 'run'}: has a CNN" in refused(capsys, *words, "--out", tmp_path / "out")


def test_a_validation_ends_with_a_page_that_links_its_worst_errors(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    (out / "studies").mkdir(parents=True)
    for old in (out / "studies" / "scan-old.html", out / "drift.json"):
        old.touch()
    words = ("--model", tiny / "run", "--jobs", 1, "--out", out)
    capsys.readouterr()
    assert run("validate", tiny / "b", "--layout", "cq500", *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(out / "metrics.html")
    unlike = (pd.read_csv(out / "scans.csv").unlikeness > 1).sum()
    assert f"{unlike} of 4 scans are {Code.UNLIKE.text}" in lines
    assert not (out / "drift.json").exists()
    page = check_offline((out / "metrics.html").read_text())
    studies = [address for address in page.addresses if address.startswith("studies/")]
    assert {*studies} == {f"studies/{path.name}" for path in (out / "studies").iterdir()}
    assert len({*studies}) == 4
    assert "../metrics.html" in (out / studies[0]).read_text()
    for part in ("ROC curve", "Precision and recall", "Calibration", "Risk and coverage", "Decision curve"):
        assert part in page.text


@pytest.mark.slow
def test_training_scans_are_no_external_set_whatever_their_patients_are_called(tiny, tmp_path, capsys):
    for name in ("a", "b"):
        shutil.copytree(tiny / name, tmp_path / name)
    words = ("--model", tiny / "run", "--jobs", 1, "--out")
    seen = ("validate", tmp_path / "a", "--layout", "rsna", *words, tmp_path / "seen")
    assert "trained or calibrated on: P" in refused(capsys, *seen)
    for path in [*(tmp_path / "a").rglob("*.dcm"), *(tmp_path / "b").rglob("*.dcm")]:
        phantoms.rewrite(path, PatientID=None)
    assert "trained or calibrated on: ID_" in refused(capsys, *seen)
    for path in (tmp_path / "a").rglob("*.dcm"):  # of people under other names
        phantoms.rewrite(path, PatientID=f"NEW-{read_headers(path)[0].study_uid}")
    assert "trained or calibrated on: ID_" in refused(capsys, *seen)
    capsys.readouterr()
    assert run("validate", tmp_path / "b", "--layout", "cq500", *words, tmp_path / "new") == 0
    assert "scans name no patient (CQ500-CT-" in capsys.readouterr().out
    prepared = open_prepared(tmp_path / "new" / "prepared")
    assert set(prepared.ledger.scan[prepared.ledger.code == "patient-missing"]) == set(prepared.scans.index)


def test_patients_of_feature_tables_stay_together_and_are_known_again(tmp_path, capsys):
    for table, seed in (("f", 0), ("g", 1)):
        write_features(tmp_path / f"{table}.csv", 40, seed)
        name_patients(tmp_path / f"{table}.csv", lambda b, table=table: f"{table}{b // 8}{b % 2}")
    assert run("train.py", *feature_run(tmp_path, split={"validation": 0.3}, seed=3)) == 0
    splits = pd.read_csv(tmp_path / "run" / "splits.csv")
    assert splits.groupby("patient").split.nunique().tolist() == [1] * 10
    drawn = draw_splits(splits.set_index("scan"), validation=0.3, test=0, seed=3)
    assert splits.split.tolist() == drawn.split.tolist()
    report = json.loads((tmp_path / "run" / "head_fit.json").read_text())
    assert report["validation_log_loss"], "not stopped on the validation scans"
    words = ("validate", tmp_path / "g.csv", "--layout", "features", "--model", tmp_path / "run", "--out")
    assert run(*words, tmp_path / "out") == 0
    assert "40 scans (20 positive) of 10 patients" in capsys.readouterr().out
    # a scan with a name of its own
    name_patients(tmp_path / "g.csv", lambda b: "f31" if b == 7 else f"g{b}")
    error = refused(capsys, *words, tmp_path / "other")
    assert f"g.csv: 1 of its patients were trained or calibrated on: {patient_key('f31')};" in error
    assert not (tmp_path / "other").exists()


def test_a_report_is_of_the_data_that_are_there_now(tmp_path, capsys):
    write_features(tmp_path / "g.csv", 40, 1)
    table = pd.read_csv(tmp_path / "g.csv").assign(bag_cnn_probability=0.4)
    table.to_csv(tmp_path / "g.csv", index=False)
    words = feature_run(tmp_path, external={"layout": "features", "root": str(tmp_path / "g.csv")})
    assert run("train.py", *words) == 0
    metrics = tmp_path / "run" / "external" / "metrics.csv"
    before, report = metrics.read_bytes(), (tmp_path / "run" / "report.html").read_text()
    assert run("report", tmp_path / "run") == 0
    assert (metrics.read_bytes(), (tmp_path / "run" / "report.html").read_text()) == (before, report)
    table.assign(feature_0=0.0).to_csv(tmp_path / "g.csv", index=False)
    assert run("report", tmp_path / "run") == 0
    assert metrics.read_bytes() != before
    log = tmp_path / "run" / "cnn" / "log.csv"
    log.parent.mkdir()
    log.write_text("train_loss\n0.5\n")
    assert f"{log}: cannot be read" in refused(capsys, "report", tmp_path / "run")
    log.write_text("epoch,train_loss\n0,0.5\n")
    assert run("report", tmp_path / "run") == 0
    pd.read_csv(tmp_path / "f.csv").assign(feature_0=5.0).to_csv(tmp_path / "f.csv", index=False)
    assert "slices now" in refused(capsys, "report", tmp_path / "run")


@pytest.mark.slow
def test_a_report_does_not_show_pixels_that_were_not_judged(tiny, tmp_path, capsys):
    """Files of a test scan that changed under the same UIDs, and were prepared again for another run."""
    splits = pd.read_csv(tiny / "run" / "splits.csv").set_index("scan").split
    prepared = tiny / "prepared" / "train"
    files = prepared_study(open_prepared(prepared), splits.index[splits == "test"][0]).files
    for folder in (prepared, tiny / "a"):
        shutil.copytree(folder, tmp_path / folder.name)
    report = (tiny / "run" / "report.html").read_text()
    for path in files:
        phantoms.rewrite(path, PixelData=dcmread(path, force=True).pixel_array[::-1].tobytes())
    assert run("prepare", tiny / "a", "--layout", "rsna", "--out", prepared, "--jobs", 1) == 0
    written, following = capsys.readouterr().out.splitlines()[-2:]
    assert f"{prepared / 'ledger.csv'}" in written
    assert f"--out {prepared}" in following
    assert "1 scans are gone or have another patient, label or slices" in refused(
        capsys, "report", tiny / "run"
    )
    assert (tiny / "run" / "report.html").read_text() == report
    for folder in (prepared, tiny / "a"):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / folder.name, folder)
    old = tiny / "run" / "studies" / "scan-old.html"
    old.touch()
    assert run("report", tiny / "run") == 0
    assert not old.exists()


@pytest.mark.slow
def test_a_finished_run_is_not_overwritten_and_resumes_in_place(tiny, capsys):
    words = ("train.py", "--config", tiny / "tiny.yaml")
    made = [*(tiny / "run").rglob("*.safetensors"), tiny / "run" / "external" / "slices.csv"]
    before = {path: path.read_bytes() for path in made if path.parent.name != "maps"}
    assert "--resume" in refused(capsys, *words)
    assert "other settings (seed)" in refused(capsys, *words, "--resume", "--seed", "5")
    with alone(tiny / "run", doing="holding"):
        assert f"{tiny / 'run'}: another process" in refused(capsys, *words, "--resume")
    assert run(*words, "--resume") == 0
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("run.json", '"samples"', '"sample"', "sample is no setting"),
        ("run.json", '"config"', '"configuration"', "config is missing"),
        ("run.json", "ich_mil.run.6", "ich_mil.run.0", "another version ('ich_mil.run.0'"),
        ("cnn.json", None, None, "cnn.json is not there"),
        ("run.json", None, None, "is no run of ich_mil"),
        ("splits.csv", None, None, "what the model learned from is unknown"),
    ],
)
def test_models_that_cannot_be_used(tiny, tmp_path, capsys, name, old, new, message):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in [path for path in (tiny / "run").iterdir() if path.is_file()]:
        shutil.copy(path, copy)
    if old is None:
        (copy / name).unlink()
    else:
        (copy / name).write_text((copy / name).read_text().replace(old, new))
    error = refused(capsys, "predict", tiny / "b", "--out", tmp_path / "out", "--model", copy)
    assert message in error
    assert str(copy) in error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_head_of_another_width_than_the_cnn(tiny, tmp_path, capsys):
    copy, other = tmp_path / "copy", tmp_path / "other"
    shutil.copytree(tiny / "run", copy)
    words = ("--config", tiny / "tiny.yaml", "--out", other, "--cnn.features", 32, "--training.max_epochs", 1)
    assert run("train", *words) == 0
    for name in ("cnn.json", "cnn.safetensors"):
        shutil.copy(other / name, copy / name)
    error = refused(capsys, "predict", tiny / "b", "--model", copy, "--out", tmp_path / "out")
    assert "8 features" in error
    assert "32" in error


def test_folders_that_hold_no_study(tiny, tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    words = ("predict", empty, "--model", tiny / "run", "--out", tmp_path / "out", "--jobs", 1)
    assert f"{empty}: holds no DICOM file" in refused(capsys, *words)
    (empty / "a.dcm").write_bytes(b"nonsense" * 100)
    assert "none of its 1 files is a CT slice" in refused(capsys, *words)


def test_a_feature_run_without_validation_scans_is_the_cross_fitted_head(tmp_path):
    write_features(tmp_path / "b.csv", 12, 1)
    external = {"layout": "features", "root": str(tmp_path / "b.csv")}
    assert run("train.py", *feature_run(tmp_path, scans=30, external=external, samples=1000)) == 0
    assert set(pd.read_csv(tmp_path / "run" / "splits.csv").split) == {"train"}
    features, other = (read_feature_table(tmp_path / f"{name}.csv") for name in "fb")
    head = Head(**HEAD).fit(features.x, features.offsets, features.labels)
    scans = pd.read_csv(tmp_path / "run" / "external" / "scans.csv").set_index("scan").probability
    p, std = head.predict_bag_proba(other.x, other.offsets, return_std=True)
    # the noise of a run is keyed by scan ids, that of the estimator by the features: within 5 standard errors
    assert (abs(scans[other.scans].to_numpy() - p) < 5 * 1.5 * std / 1000**0.5 + 1e-9).all()
    card = (tmp_path / "run" / "report.html").read_text()
    assert "Platt scaling on held-out scans" in card
    assert f"torch {torch.__version__}, gpytorch " in card


@pytest.mark.parametrize("what", ["training scans", "names with line ends", "fewer features"])
def test_an_external_table_that_cannot_be_used_is_refused_before_the_fit(tmp_path, capsys, what):
    write_features(tmp_path / "f.csv", 40, 0)
    table = pd.read_csv(tmp_path / "f.csv")
    told = "40 of its patients were trained or calibrated on: s0-0"
    if what == "names with line ends":
        table.assign(bag_name=table.bag_name + "\nof\ra").to_csv(tmp_path / "f.csv", index=False)
        table, told = pd.read_csv(tmp_path / "f.csv"), f"{told} of a, "
    elif what == "fewer features":
        table, told = table.drop(columns="feature_2"), "has 2 features"
    table.to_csv(tmp_path / "g.csv", index=False)
    words = feature_run(tmp_path, external={"layout": "features", "root": str(tmp_path / "g.csv")})
    error = refused(capsys, "train", *words)
    assert error.startswith(f"error: {tmp_path / 'g.csv'}: ")
    assert told in error
    assert not (tmp_path / "run").exists()


def test_a_run_on_features_does_not_go_on_with_others(tmp_path, capsys):
    words = ("train", *feature_run(tmp_path))
    assert run(*words) == 0
    head = tmp_path / "run" / "head.json"
    written = head.stat().st_mtime_ns
    machine = ["--jobs", "2", "--training.workers", "3"]  # another one, with memory for other numbers
    for more in ([], machine):
        assert run(*words, "--resume", *more) == 0
        assert head.stat().st_mtime_ns == written, "fitted again"
    assert "(head.sweeps)" in refused(capsys, *words, "--resume", *machine, "--head.sweeps", "11")
    pd.read_csv(tmp_path / "f.csv").assign(feature_0=0.0).to_csv(tmp_path / "f.csv", index=False)
    assert f"{tmp_path / 'f.csv'}: rows, labels of slices, boxes" in refused(capsys, *words, "--resume")


@pytest.mark.realdata
@pytest.mark.slow
def test_a_complete_real_study_from_folder_to_page(tiny, shared_data, tmp_path):
    """The GE study: 28 of 28 slices get a probability; corrections are listed in the JSON."""
    study = shared_data / "ge_head_ct"
    assert run("predict", study, "--model", tiny / "run", "--out", tmp_path, "--jobs", 1) == 0
    (scan,) = json.loads((tmp_path / "predictions.json").read_text())["scans"]
    assert len(scan["slices"]) == 28
    assert all("already-hu" in one["corrections"] for one in scan["slices"])
    assert {"spacing-changes", "tilted", "padding"} <= {line["code"] for line in scan["ledger"]}
    name = read_headers(study / "01.dcm")[0].patient_id
    for path in Path(tmp_path).rglob("*.*"):
        if path.suffix in (".json", ".csv", ".html", ".jsonl"):
            assert not name or name not in path.read_text(), path


def test_prepare_explains_a_scan(tiny, capsys):
    prepared = tiny / "prepared" / "external"
    scan = open_prepared(prepared).scans.index[0]
    capsys.readouterr()
    assert run("prepare", "--explain", scan, "--out", prepared) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == scan
    assert " slices in " in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--explain", "CQ500-CT-77"], "is no prepared set"),
        (["--layout", "cq500"], "prepare needs a folder and --layout"),
        (["."], "prepare needs a folder and --layout"),
        ([".", "--layout", "rsna", "--window", "40", "80"], "--window: "),
    ],
)
def test_prepare_with_wrong_arguments(tmp_path, capsys, words, message):
    assert message in refused(capsys, "prepare", *words, "--out", tmp_path / "set")


def test_torchrun_is_for_train_alone(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert "'grid'" in refused(capsys, "grid", "--config", "grid_features", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_as_if_killed_by_sigint():
    program = """
        import os, signal, sys
        from ich_mil import config
        config.read_config = lambda *_: os.kill(os.getpid(), signal.SIGINT)
        from ich_mil.cli import train_main
        sys.exit(train_main(["--out", "x"]))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr == "stopped\n"
    assert ended.returncode == -signal.SIGINT


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (OSError(errno.ENOSPC, "x", "/out/log"), "/out/log: No space left on device"),
        (OSError(errno.EACCES, "x", "/in/labels.csv"), "/in/labels.csv: Permission denied"),
        (OSError(errno.EMFILE, "x"), "Too many open files"),
        (MemoryError(), "out of memory; "),
        (MemoryError("15 MiB"), "out of memory (15 MiB)"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB.\nSee"),
            "(CUDA out of memory. Tried 2 GiB.)",
        ),
        (TerminatedWorkerError("x"), "a worker process was killed"),
    ],
)
def test_trouble_of_the_machine_is_one_line(monkeypatch, capsys, trouble, message):
    def fail(*_):
        raise trouble

    monkeypatch.setattr("ich_mil.config.read_config", fail)
    assert message in refused(capsys, "train.py", "--out", "x")


def test_errors_of_the_program_are_not_hidden(monkeypatch):
    monkeypatch.setattr("ich_mil.config.read_config", lambda *_: Path("/absent/file").read_text())
    with pytest.raises(FileNotFoundError):
        train_main(["--out", "x"])


def test_closed_output_is_no_error(tmp_path):
    phantoms.cq500(tmp_path / "b", studies=1)
    program = "import sys; from ich_mil.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", program, "prepare", str(tmp_path / "b"), "--layout", "cq500"]
    line = shlex.join([*words, "--out", str(tmp_path / "out"), "--jobs", "1"])
    assert subprocess.run(["sh", "-c", f"{line} >&- 2>&-"], check=False).returncode == 0
    assert len(open_prepared(tmp_path / "out").scans) == 1


def test_python_runs_the_package_as_the_command(tmp_path, monkeypatch, capsys):
    def ended(*words):
        monkeypatch.setattr(sys, "argv", ["/somewhere/__main__.py", *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("ich_mil", run_name="__main__")
        return ended.value.code, *capsys.readouterr()

    code, _, error = ended("report", str(tmp_path / "none"))
    assert code == 2
    assert str(tmp_path / "none") in error
    assert train_main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: train.py [")


@pytest.mark.parametrize(("work", "code"), [("", 0), ("raise ConfigError('no')", 2), ("1 / 0", 1)])
def test_a_process_ends_with_its_code_after_what_others_left_for_the_end(work, code):
    program = f"""
import atexit
from ich_mil import cli
from ich_mil.errors import ConfigError
def run(*_):
    atexit.register(print, "removed")
    {work}
cli._run = run
cli.program()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, "removed\n")


@pytest.mark.filterwarnings("always:left uncalibrated")
@pytest.mark.parametrize("rank", [0, 1])
def test_of_several_processes_the_first_alone_prints_measures_and_reports(
    rank, tmp_path, monkeypatch, capsys
):
    done = []

    def fitted(*_, **__):
        print("all sweeps done")
        warnings.warn_explicit("left uncalibrated", UserWarning, str(Path(cli.__file__)), 1)

    monkeypatch.setattr("ich_mil.ranks.joined", lambda: nullcontext(Ranks(rank, 2)))
    monkeypatch.setattr("ich_mil.model.training.train.train", fitted)
    monkeypatch.setattr("ich_mil.output.run_report.validate_and_report", lambda *_: done.append("report"))
    write_features(tmp_path / "f.csv", 8, 0)
    words = ("--train.layout", "features", "--train.root", tmp_path / "f.csv", "--out", tmp_path / "out")
    assert run("train.py", *words) == 0
    told = capsys.readouterr()
    assert told.err == ("" if rank else "warning: left uncalibrated\n")
    assert told.out.splitlines()[:1] == ([] if rank else ["all sweeps done"])
    assert done == ([] if rank else ["report"])


def test_predict_on_a_zip_and_in_the_folder_of_a_study(tiny, tmp_path, monkeypatch, capsys):
    studies = sorted((tiny / "b").glob("CQ500CT*"))[:2]
    export = tmp_path / "export"
    for scan in studies:
        shutil.copytree(scan, export / "2024-02" / scan.name)
    shutil.make_archive(str(export), "zip", export)
    words = ("--model", tiny / "run", "--jobs", 1)
    monkeypatch.chdir(tmp_path)
    assert run("predict", "export.zip", *words, "--dicom", "--names") == 0
    out = tmp_path / "predictions" / "export"
    scans = {Path(*Path(one.folder).parts[:2]): one for one in read_results(out).scans}
    assert {*scans} == {Path("2024-02") / path.name for path in studies}
    assert len(list(out.glob("dicom/*/report-1.dcm"))) == 2
    assert all("<dt>Patient" in page.read_text() for page in out.glob("scan-*.html"))
    assert run("report", out, "--dicom") == 0

    monkeypatch.chdir(export / "2024-02" / studies[0].name)
    assert run("predict", ".", *words) == 0
    (alone,) = read_results(export / "2024-02" / "predictions" / studies[0].name).scans
    first = scans[Path("2024-02") / studies[0].name]
    assert (alone.scan, alone.probability) == (first.scan, first.probability)


def test_labels_are_matched_before_the_model_is_loaded(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ich_mil.output.run_report.load_model", None)  # must not be reached
    monkeypatch.setattr("ich_mil.model.site.recalibrate.load_model", None)
    table = tmp_path / "list.csv"
    table.write_text("Liste\nAcc. No.;ICH\n4711;ja\n")
    words = (
        tiny / "b",
        "--layout",
        "folder",
        "--model",
        tiny / "run",
        "--out",
        tmp_path / "out",
        "--jobs",
        1,
    )
    words += ("--labels", table, "--id-column", "Acc. No.", "--label-column", "ICH")
    assert "4711 (line 3)" in refused(capsys, "validate", *words)
    assert "4711 (line 3)" in refused(capsys, "recalibrate", *words)

"""The commands as a user types them: bad input ends in one line and exit code 2, nothing half-written."""

import errno
import json
import os
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
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from joblib.externals.loky.process_executor import TerminatedWorkerError
from pydicom import dcmread

from ich_mil import cli
from ich_mil.cli import main, train_main
from ich_mil.config import RunConfig, SetSettings, read_config
from ich_mil.data.features import read_feature_csv
from ich_mil.data.preparation.identifying_texts import source_files
from ich_mil.data.splits import draw_splits, patient_key
from ich_mil.data.store import open_prepared
from ich_mil.dicom.files.header import read_headers
from ich_mil.files import alone
from ich_mil.gp.head import Head
from ich_mil.ledger import Code
from ich_mil.ranks import Ranks
from ich_mil.report.maps import read_maps
from ich_mil.runs.predictions import read_results
from tests import phantoms
from tests.feature_table import name_patients, write_features

# a head fitted to a handful of tiny scans may rank its validation scans no better than chance, and says so
pytestmark = pytest.mark.filterwarnings("ignore:probabilities are")

TINY = {
    "split": {"validation": 0.25, "test": 0.25},
    "encoder": {"size": 32},
    "training": {"learning_rate": 1e-3, "max_epochs": 3, "bags": 2},
    "head": {"n_inducing": 16, "density": "gamma"},
    "samples": 200,
    "bootstrap": 50,
    "pages": 2,
    "jobs": 1,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny site a and b, a configuration, and a finished run in `run`."""
    place = tmp_path_factory.mktemp("cli")
    phantoms.rsna(place / "a", studies=16)
    phantoms.cq500(place / "b", studies=8)
    settings = TINY | {
        "out": str(place / "run"),
        "prepared": str(place / "prepared"),
        "train": {"layout": "rsna", "root": str(place / "a")},
        "external": {"layout": "cq500", "root": str(place / "b")},
    }
    (place / "tiny.yaml").write_text(yaml.safe_dump(settings))
    assert train_main(["--config", str(place / "tiny.yaml")]) == 0
    return place


def run(words, capsys) -> tuple[int, str]:
    """Exit code and standard error of `ich-mil`."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    return code, capsys.readouterr().err


def refused(words, capsys) -> str:
    """The one-line error of a command that must refuse."""
    code, error = run(words, capsys)
    assert code == 2
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, error
    return lines[0]


@pytest.mark.slow
def test_a_run_leaves_all_that_it_promises(place):
    out = place / "run"
    splits = pd.read_csv(out / "splits.csv")
    for name in ("validation", "test", "external"):
        metrics = pd.read_csv(out / name / "metrics.csv")
        assert {"Gaussian-process head", "CNN alone", "position only"} <= set(metrics.model)
        assert ("slice prevalence" in set(metrics.model)) == (name != "external")  # which has no slice labels
        table = pd.read_csv(out / name / "predictions.csv")
        assert table[["probability", "low", "high"]].apply(lambda c: c.between(0, 1).all()).all()
        assert (table.low <= table.high).all()
        assert (table["std"] > 0).all()
        tree = json.loads((out / name / "predictions.json").read_text())
        assert [scan["scan"] for scan in tree["scans"]] == list(table[table.level == "scan"].scan)
        assert tree["model"]["config"] == read_config(["--config", str(place / "tiny.yaml")]).hash
        assert sum(len(scan["slices"]) for scan in tree["scans"]) == (table.level == "slice").sum()
        others = set(splits.scan) - {scan["scan"] for scan in tree["scans"]}
        assert others.isdisjoint(line["scan"] for line in tree["ledger"])
    codes = Counter(line["code"] for part in (tree, *tree["scans"]) for line in part["ledger"])
    report = (out / "report.html").read_text()
    assert "not for diagnosis" in report
    pages = list((out / "studies").iterdir())
    assert len(pages) == 2
    assert all(f"studies/{page.name}" in report for page in pages)
    assert codes  # of the external set, the last
    assert all(f'<td>{code}</td><td class="number">{count}</td>' in report for code, count in codes.items())
    assert splits.groupby("patient").split.nunique().eq(1).all()


def earlier_pages(out):
    """Files as an earlier prediction shows itself by."""
    paths = [
        out / "scan-old.html",
        out / "maps" / "old.safetensors",
        out / "dicom" / "scan-old" / "report-1.dcm",
    ]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


@pytest.mark.slow
def test_predict_on_an_export_with_several_studies(place, tmp_path, capsys):
    """Whole studies in one folder, with junk between them: the same numbers as in the run itself."""
    export = tmp_path / "export"
    for scan in sorted((place / "b").glob("CQ500CT*"))[:2]:
        shutil.copytree(scan, export / scan.name)
    (export / "readme.txt").write_text("not a picture")
    old = earlier_pages(tmp_path / "out")
    code, _ = run(
        ["predict", export, "--model", place / "run", "--out", tmp_path / "out", "--jobs", 1], capsys
    )
    assert code == 0
    table = pd.read_csv(tmp_path / "out" / "predictions.csv")
    scans = table[table.level == "scan"]
    assert len(scans) == 2
    assert len(list((tmp_path / "out").glob("scan-*.html"))) == 2
    assert not any(path.exists() for path in old)
    tree = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert [line["code"] for line in tree["ledger"] if line["file"] == "readme.txt"] == ["not-dicom"]
    results = read_results(tmp_path / "out")
    for scan in results.scans:
        likely = sorted(scan.slices, key=lambda one: -one.probability)[:8]
        maps = read_maps(tmp_path / "out", scan, results.model)
        assert maps.slices.tolist() == sorted(one.slice for one in likely)

    # slices are named by their SOP instance UID here and there; their CNN features and so means agree to the
    # posterior samples, whose noise is keyed by the scan's id, which differs: compare within sampling error
    external = pd.read_csv(place / "run" / "external" / "predictions.csv").set_index("name")
    slices = table[table.level == "slice"]
    difference = slices.probability.to_numpy() - external.probability[slices.name].to_numpy()
    assert abs(difference).max() < 5 * slices["std"].max() / TINY["samples"] ** 0.5


@pytest.mark.slow
def test_thresholds_are_not_calibrated_on_predictions_of_scans_that_were_learned_from(
    place, tmp_path, capsys
):
    words = ["predict", place / "a", "--model", place / "run", "--out", tmp_path / "out", "--jobs", 1]
    assert run(words, capsys)[0] == 0
    splits = pd.read_csv(place / "run" / "splits.csv").set_index("scan").split
    scans = read_results(tmp_path / "out").scans
    told = {one.scan for one in scans if Code.LEARNED_FROM in {entry.code for entry in one.ledger}}
    assert told == set(splits.index[splits != "test"])
    assert told < {one.scan for one in scans}
    (tmp_path / "labels.csv").write_text(
        "scan,label\n" + "".join(f"{one.scan},{i % 2}\n" for i, one in enumerate(scans))
    )
    error = refused(["triage", tmp_path / "out", "--labels", tmp_path / "labels.csv"], capsys)
    assert f"trained or calibrated on patients of {len(told)} of its scans" in error


@pytest.mark.slow
def test_validate_measures_another_set(place, tmp_path, capsys):
    words = [
        "validate",
        place / "b",
        "--layout",
        "cq500",
        "--model",
        place / "run",
        "--out",
        tmp_path,
        "--jobs",
        1,
    ]
    old = earlier_pages(tmp_path)
    assert main([str(word) for word in words]) == 0
    assert capsys.readouterr().out.split()[-1] == str(tmp_path / "metrics.csv")
    assert not any(path.exists() for path in old)
    again, first = (pd.read_csv(folder / "metrics.csv") for folder in (tmp_path, place / "run" / "external"))
    pd.testing.assert_frame_equal(again, first)


@pytest.mark.slow
def test_validating_again_sees_changed_labels_and_another_model(place, tmp_path, capsys):
    site = tmp_path / "site"
    shutil.copytree(place / "b", site)
    words = ["validate", site, "--layout", "cq500", "--out", tmp_path / "out", "--jobs", 1, "--model"]
    assert run([*words, place / "run"], capsys)[0] == 0
    first = pd.read_csv(tmp_path / "out" / "predictions.csv")
    reads = pd.read_csv(site / "reads.csv")
    readers = [f"R{i}:ICH" for i in (1, 2, 3)]
    reads[readers] = 1 - reads[readers]
    reads.to_csv(site / "reads.csv", index=False)
    assert run([*words, place / "run"], capsys)[0] == 0
    second = pd.read_csv(tmp_path / "out" / "predictions.csv")
    scans = first.level == "scan"
    assert (second.label[scans] == 1 - first.label[scans]).all()
    assert (second.probability == first.probability).all()

    other = tmp_path / "other"
    words_other = ["--config", str(place / "tiny.yaml"), "--out", str(other), "--seed", "1"]
    assert main(["train", *words_other, "--training.max_epochs", "1"]) == 0
    assert run([*words, other], capsys)[0] == 0
    fresh = [*words[:5], tmp_path / "fresh", *words[6:]]
    assert run([*fresh, other], capsys)[0] == 0
    after, alone = (pd.read_csv(tmp_path / name / "predictions.csv") for name in ("out", "fresh"))
    pd.testing.assert_frame_equal(after, alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost",
    [
        ["head.json"],
        ["head.json", "head.safetensors", "features", "cnn.json"],
        ["splits.csv", "cnn.json", "cnn.safetensors", "cnn", "features", "head.json"],
        ["run.json", "cnn.json", "cnn.safetensors", "cnn", "features", "head.json"],
    ],
    ids=["head", "features", "splits", "run.json"],
)
def test_a_run_killed_at_any_step_resumes_to_the_same_numbers(place, tmp_path, lost):
    """The state after a kill is made by removing what comes later; the folder was moved, too."""
    copy = tmp_path / "moved"
    shutil.copytree(place / "run", copy)
    for name in [*lost, "external", "test", "validation", "report.html"]:
        if (copy / name).is_dir():
            shutil.rmtree(copy / name)
        else:
            (copy / name).unlink()
    assert train_main(["--config", str(place / "tiny.yaml"), "--out", str(copy), "--resume"]) == 0
    for name in ("cnn.safetensors", "head.safetensors", "external/predictions.csv", "test/metrics.csv"):
        assert (copy / name).read_bytes() == (place / "run" / name).read_bytes(), name


@pytest.mark.slow
def test_a_study_that_cannot_be_read_at_all_is_told(place, tmp_path, capsys):
    export = tmp_path / "export"
    scans = sorted((place / "b").glob("CQ500CT*"))
    shutil.copytree(scans[0], export / "good")
    series = next(iter(sorted((scans[1] / "Unknown Study").iterdir())))
    shutil.copytree(series, export / "bad")
    for path in (export / "bad").iterdir():
        path.write_bytes(path.read_bytes()[:-3000])
    one = next((export / "good").rglob("*.dcm"))
    phantoms.rewrite(one, export / "nameless.dcm", StudyInstanceUID="", SOPInstanceUID="1.2.3")
    (export / "good" / "packed.zip").write_bytes(b"PK")
    words = ["predict", export, "--model", place / "run", "--out", tmp_path / "out", "--jobs", 1]
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    told = capsys.readouterr().out
    assert "no slice could be used" in told
    assert "; never called negative: could not be opened\n" in told
    assert "files of no known study, which were not judged: 1; the first: nameless.dcm: " in told
    tree = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert len(tree["scans"]) == 1
    assert sum(line["code"] == "unreadable" for line in tree["ledger"]) == len(
        list((export / "bad").iterdir())
    )


def feature_run(folder, **changes):
    """`run.yaml` of a small head on `f.csv` of the same folder."""
    config = {
        "out": str(folder / "run"),
        "train": {"layout": "features", "root": str(folder / "f.csv")},
        "split": {"validation": 0},
        "head": {"n_inducing": 16, "sweeps": 10},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config | changes))


def test_a_run_on_all_scans_ends_well_and_has_no_report(tmp_path, capsys):
    write_features(tmp_path / "f.csv", 40, 0)
    feature_run(tmp_path, split={"validation": 0, "test": 0})
    assert train_main(["--config", str(tmp_path / "run.yaml")]) == 0
    told = capsys.readouterr().out
    assert f"{tmp_path / 'run'}: no scans are held out to measure it on; 'ich-mil validate' takes" in told
    assert "so there is nothing to report" in refused(["report", tmp_path / "run"], capsys)


@pytest.mark.parametrize(
    ("command", "out"),
    [
        ("predict", ["--out", "link/x"]),
        ("predict", ["--out", "site"]),
        ("predict", []),
        ("validate --layout cq500", ["--out", "link/x"]),
        ("validate --layout cq500", []),
        ("recalibrate --layout cq500", ["--out", "link/x"]),
    ],
)
def test_results_are_not_written_into_the_studies(tmp_path, monkeypatch, capsys, command, out):
    """Nor by a link, nor by default, where somebody stands in the folder."""
    (tmp_path / "site").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "site")
    monkeypatch.chdir(tmp_path if out else tmp_path / "site")
    error = refused([*command.split(), "site" if out else ".", "--model", "none", *out], capsys)
    assert "lies in the folder that is read (" in error
    assert "choose another --out" in error
    assert list((tmp_path / "site").iterdir()) == []


@pytest.mark.parametrize("command", ["predict", "validate --layout cq500"])
def test_results_are_not_written_among_the_files_of_a_run(tmp_path, capsys, command):
    (tmp_path / "site").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    run = tmp_path / "run"
    error = refused([*command.split(), tmp_path / "site", "--model", run, "--out", run], capsys)
    assert error == f"error: {run}: is the folder of a run; choose another --out"
    assert [path.name for path in run.iterdir()] == ["run.json"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "validate"])
def test_two_do_not_write_one_folder(place, tmp_path, capsys, command):
    words = [command, place / "b", "--model", place / "run", "--out", tmp_path]
    layout = ["--layout", "cq500"] if command == "validate" else []
    with alone(tmp_path, doing="holding"):
        error = refused([*words, *layout], capsys)
    assert f"{tmp_path}: another process is writing it; wait for that one, or choose another folder" in error
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}


@pytest.mark.slow
def test_pictures_and_features_do_not_mix(place, tmp_path, capsys):
    path = tmp_path / "f.csv"
    path.write_text("feature_0,bag_label,instance_name,bag_name\n1,0,i,A\n2,1,j,B\n")
    words = ["validate", path, "--layout", "features", "--model", place / "run", "--out", tmp_path / "out"]
    assert "has a CNN of its own" in refused(words, capsys)


@pytest.mark.slow
def test_patients_of_the_training_set_are_no_external_set(place, tmp_path, capsys):
    error = refused(
        [
            "validate",
            place / "a",
            "--layout",
            "rsna",
            "--model",
            place / "run",
            "--out",
            tmp_path,
            "--jobs",
            1,
        ],
        capsys,
    )
    assert "of its patients were trained or calibrated on: P" in error


@pytest.mark.slow
def test_scans_without_a_patient_are_known_by_their_own_id(place, tmp_path, capsys):
    for name in ("a", "b"):
        shutil.copytree(place / name, tmp_path / name)
        for path in (tmp_path / name).rglob("*.dcm"):
            phantoms.rewrite(path, PatientID=None)
    words = ["--model", place / "run", "--jobs", 1, "--out"]
    error = refused(["validate", tmp_path / "a", "--layout", "rsna", *words, tmp_path / "seen"], capsys)
    assert "of its patients were trained or calibrated on: ID_" in error
    for path in (tmp_path / "a").rglob("*.dcm"):  # of people under other names
        phantoms.rewrite(path, PatientID=f"NEW-{read_headers(path)[0].study_uid}")
    error = refused(["validate", tmp_path / "a", "--layout", "rsna", *words, tmp_path / "seen"], capsys)
    assert "of its patients were trained or calibrated on: ID_" in error
    words = ["validate", tmp_path / "b", "--layout", "cq500", *words, tmp_path / "new"]
    assert main([str(word) for word in words]) == 0
    assert "scans name no patient (CQ500-CT-" in capsys.readouterr().out
    ledger = open_prepared(tmp_path / "new" / "prepared").ledger
    assert set(ledger.scan[ledger.code == "patient-missing"]) == set(
        open_prepared(tmp_path / "new" / "prepared").scans.index
    )


def test_patients_of_feature_tables_stay_together_and_are_known_again(tmp_path, capsys):
    for table, seed in (("f", 0), ("g", 1)):
        write_features(tmp_path / f"{table}.csv", 40, seed)
        name_patients(tmp_path / f"{table}.csv", lambda b, table=table: f"{table}{b // 8}{b % 2}")
    feature_run(tmp_path, split={"validation": 0.3}, bootstrap=50, seed=3)
    assert train_main(["--config", str(tmp_path / "run.yaml")]) == 0
    splits = pd.read_csv(tmp_path / "run" / "splits.csv")
    assert splits.groupby("patient").split.nunique().tolist() == [1] * 10
    drawn = draw_splits(splits.set_index("scan"), validation=0.3, test=0, seed=3)
    assert splits.split.tolist() == drawn.split.tolist()
    report = json.loads((tmp_path / "run" / "head_fit.json").read_text())
    assert report["validation_log_loss"], "not stopped on the validation scans"
    words = ["validate", tmp_path / "g.csv", "--layout", "features", "--model", tmp_path / "run"]
    assert cli.main([*map(str, words), "--out", str(tmp_path / "out")]) == 0
    assert "40 scans (20 positive) of 10 patients" in capsys.readouterr().out
    name_patients(
        tmp_path / "g.csv", lambda b: "f31" if b == 7 else f"g{b}"
    )  # its scan has a name of its own
    error = refused([*words, "--out", tmp_path / "other"], capsys)
    assert f"g.csv: 1 of its patients were trained or calibrated on: {patient_key('f31')};" in error
    assert not (tmp_path / "other").exists()


def test_a_report_does_not_mix_two_versions_of_the_data(tmp_path, capsys):
    for name, seed in (("f", 0), ("g", 1)):
        write_features(tmp_path / f"{name}.csv", 40, seed)
    table = pd.read_csv(tmp_path / "g.csv").assign(bag_cnn_probability=0.4)
    number = table.bag_name.str.split("-").str[1].astype(int)
    table["patient"] = "P" + (number // 2).astype(str)
    table.to_csv(tmp_path / "g.csv", index=False)
    feature_run(tmp_path, external={"layout": "features", "root": str(tmp_path / "g.csv")}, bootstrap=50)
    assert train_main(["--config", str(tmp_path / "run.yaml")]) == 0
    for column, value in (
        ("bag_label", 1),
        ("feature_0", 5.0),
        ("patient", "P7"),
        ("bag_cnn_probability", 0.6),
        ("bag_name", "another"),
    ):
        table[column] = table[column].where(number > 0, value)  # of the first scan
        table.to_csv(tmp_path / "g.csv", index=False)
        error = refused(["report", tmp_path / "run"], capsys)
        told = "scans, patients, labels or CNN probabilities have changed since it was measured"
        assert f"external: its {told}; run train.py with --resume to validate again" in error
        assert train_main(["--config", str(tmp_path / "run.yaml"), "--resume"]) == 0
        assert main(["report", str(tmp_path / "run")]) == 0


def test_a_report_tells_of_a_damaged_log_of_the_training(tmp_path, capsys):
    for name, seed in (("f", 0), ("g", 1)):
        write_features(tmp_path / f"{name}.csv", 40, seed)
    feature_run(tmp_path, external={"layout": "features", "root": str(tmp_path / "g.csv")}, bootstrap=50)
    assert train_main(["--config", str(tmp_path / "run.yaml")]) == 0
    log = tmp_path / "run" / "cnn" / "log.csv"
    log.parent.mkdir()
    for text in ("", "train_loss\n0.5\n"):
        log.write_text(text)
        error = refused(["report", tmp_path / "run"], capsys)
        assert f"{log}: cannot be read as the log of a training (" in error
        assert "delete it" in error


@pytest.mark.slow
def test_a_report_does_not_show_pixels_that_were_not_judged(place, tmp_path, capsys):
    """Files of a test scan that changed under the same UIDs, and were prepared again for another run."""
    splits = pd.read_csv(place / "run" / "splits.csv").set_index("scan").split
    scan = splits.index[splits == "test"][0]
    prepared = place / "prepared" / "train"
    files = source_files(open_prepared(prepared), scan)
    for folder in (prepared, place / "a"):
        shutil.copytree(folder, tmp_path / folder.name)
    prepare = ["prepare", place / "a", "--layout", "rsna", "--out", prepared, "--jobs", 1]
    report = (place / "run" / "report.html").read_text()
    for change in ("upside down", "fewer"):
        for path in files:
            pixels = dcmread(path, force=True).pixel_array
            phantoms.rewrite(path, PixelData=pixels[::-1].tobytes())
        if change == "fewer":
            for path in files[: len(files) // 2]:
                path.unlink()
        assert run(prepare, capsys)[0] == 0
        error = refused(["report", place / "run"], capsys)
        assert f"train: the slices of 1 scans are not those of the predictions ({scan}); predict or" in error
        assert (place / "run" / "report.html").read_text() == report
    for folder in (prepared, place / "a"):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / folder.name, folder)
    assert run(["report", place / "run"], capsys)[0] == 0


@pytest.mark.slow
def test_a_finished_run_is_not_overwritten_and_resumes_in_place(place, capsys):
    words = ["--config", str(place / "tiny.yaml")]
    before = {path: path.read_bytes() for path in (place / "run").rglob("*.safetensors")}
    assert train_main(words) == 2
    assert "holds a run already; add --resume" in capsys.readouterr().err
    assert train_main([*words, "--resume", "--seed", "5"]) == 2
    assert "was started with other settings (seed)" in capsys.readouterr().err
    with alone(place / "run", doing="holding"):
        assert train_main([*words, "--resume"]) == 2
    assert f"{place / 'run'}: another process is writing it; wait for that one" in capsys.readouterr().err
    predictions = (place / "run" / "external" / "predictions.csv").read_bytes()
    assert train_main([*words, "--resume"]) == 0
    assert {path: path.read_bytes() for path in (place / "run").rglob("*.safetensors")} == before
    assert (place / "run" / "external" / "predictions.csv").read_bytes() == predictions


@pytest.mark.slow
def test_models_that_cannot_be_used(place, tmp_path, capsys):
    words = ["predict", place / "b", "--jobs", 1, "--out", tmp_path / "out", "--model"]
    assert "is no run of ich_mil" in refused([*words, tmp_path], capsys)
    for name, old, new, message in (
        ("run.json", '"cnn": true', '"dnn": true', "lacks cnn; train again"),
        ("run.json", '"samples"', '"sample"', "lacks samples; train again"),
        ("run.json", '"trained_on"', '"learned"', "lacks trained_on; train again"),
        ("run.json", '"versions"', '"version"', "lacks versions; train again"),
        ("run.json", '"table"', '"tables"', "lacks table; train again"),
        ("run.json", '"config"', '"configuration"', "lacks bootstrap, samples, seed, thickness_mm"),
        ("run.json", "{", "[", "is no run of ich_mil"),
        ("run.json", "ich_mil.run.5", "ich_mil.run.0", "run.0, this one: ich_mil.run.5); train again"),
        ("cnn.json", "ich_mil.cnn.2", "ich_mil.cnn.0", "is of version ich_mil.cnn.0"),
        ("head.json", "ich_mil.head.2", "ich_mil.head.0", "ich_mil.head.0"),
        ("cnn.json", '"features": 8', '"features": 32', "its CNN cannot be read"),
    ):
        copy = tmp_path / "copy"
        shutil.copytree(place / "run", copy)
        (copy / name).write_text((copy / name).read_text().replace(old, new))
        error = refused([*words, copy], capsys)
        assert message in error
        assert str(copy) in error
        shutil.rmtree(copy)
    for name in ("cnn.json", "head.safetensors"):
        copy = tmp_path / "copy"
        shutil.copytree(place / "run", copy)
        (copy / name).unlink()
        error = refused([*words, copy], capsys)
        assert f"{copy}: its training is not finished, {name} is not there; go on with --resume" in error
        shutil.rmtree(copy)
    assert not (tmp_path / "out").exists()


def test_a_head_of_another_width_than_the_cnn(place, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(place / "run", copy)
    other = tmp_path / "other"
    words = ["--config", str(place / "tiny.yaml"), "--out", str(other), "--cnn.features", "32"]
    assert train_main([*words, "--training.max_epochs", "1"]) == 0
    for name in ("cnn.json", "cnn.safetensors"):
        shutil.copy(other / name, copy / name)
    error = refused(["predict", place / "b", "--model", copy, "--out", tmp_path / "out"], capsys)
    assert "the head was trained on 8 features a slice, these have 32" in error


def test_folders_and_configurations_that_cannot_be_used(place, tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    words = ["--model", place / "run", "--out", tmp_path / "out", "--jobs", 1]
    assert f"{empty}: holds no DICOM file; name" in refused(["predict", empty, *words], capsys)
    (empty / "a.dcm").write_bytes(b"nonsense" * 100)
    assert "none of its 1 files is a CT slice" in refused(["predict", empty, *words], capsys)
    assert "no such folder" in refused(["predict", tmp_path / "nowhere", *words], capsys)
    assert "nowhere: no such folder; name that of a val" in refused(["report", tmp_path / "nowhere"], capsys)
    assert "nowhere.yaml" in refused(["train", "--config", "nowhere.yaml"], capsys)
    error = refused(["train", "--config", place / "tiny.yaml", "--cnn.image_sise", "3"], capsys)
    assert "image_sise" in error
    error = refused(
        [
            "train",
            "--config",
            place / "tiny.yaml",
            "--out",
            tmp_path / "x",
            "--train.root",
            tmp_path / "nowhere",
        ],
        capsys,
    )
    assert f"{tmp_path / 'nowhere'}: no such file or folder" in error
    assert not (tmp_path / "x").exists()


def test_a_feature_run_without_validation_scans_is_the_cross_fitted_head(tmp_path):
    write_features(tmp_path / "a.csv", 30, 0)
    write_features(tmp_path / "b.csv", 12, 1)
    config = {
        "out": str(tmp_path / "run"),
        "train": {"layout": "features", "root": str(tmp_path / "a.csv")},
        "external": {"layout": "features", "root": str(tmp_path / "b.csv")},
        "split": {"validation": 0},
        "head": {"n_inducing": 16, "sweeps": 10},
        "bootstrap": 20,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    assert train_main(["--config", str(tmp_path / "run.yaml")]) == 0
    splits = pd.read_csv(tmp_path / "run" / "splits.csv")
    assert set(splits.split) == {"train"}
    features, other = (read_feature_csv(tmp_path / f"{name}.csv") for name in "ab")
    head = Head(n_inducing=16, sweeps=10).fit(features.x, features.offsets, features.labels)
    got = pd.read_csv(tmp_path / "run" / "external" / "predictions.csv")
    scans = got[got.level == "scan"].set_index("scan").probability
    p, std = head.predict_bag_proba(other.x, other.offsets, return_std=True)
    # the noise of a run is keyed by scan ids, that of the estimator by the features: within 5 standard errors
    assert (abs(scans[other.scans].to_numpy() - p) < 5 * 1.5 * std / 1000**0.5 + 1e-9).all()
    card = (tmp_path / "run" / "report.html").read_text()
    assert "Platt scaling on held-out scans" in card
    assert f"torch {torch.__version__}, gpytorch " in card


def test_no_more_workers_start_than_there_are_cores_for_this_process():
    cores = os.sched_getaffinity(0)
    config = RunConfig(Path("a"), SetSettings("rsna", "r"))
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert (cli._jobs("0"), config.workers) == (1, 1)
        assert (cli._jobs("3"), replace(config, jobs=3).workers) == (3, 3)
    finally:
        os.sched_setaffinity(0, cores)


def test_an_error_is_one_line_where_names_are_not(tmp_path, capsys):
    write_features(tmp_path / "f.csv", 20, 0)
    table = pd.read_csv(tmp_path / "f.csv")
    table.assign(bag_name=table.bag_name + "\nof\ra").to_csv(tmp_path / "f.csv", index=False)
    feature_run(tmp_path, external={"layout": "features", "root": str(tmp_path / "f.csv")})
    code, error = run(["train", "--config", tmp_path / "run.yaml"], capsys)
    assert code == 2
    assert len(error.splitlines()) == 1
    assert "20 of its patients were trained or calibrated on: s0-0 of a, s0-1" in error


@pytest.mark.parametrize("what", ["the training scans", "fewer features"])
def test_an_external_table_that_cannot_be_used_is_refused_before_the_fit(tmp_path, capsys, what):
    write_features(tmp_path / "f.csv", 40, 0)
    table = pd.read_csv(tmp_path / "f.csv")
    told = "of its patients were trained or calibrated on"
    if what == "fewer features":
        table = table.drop(columns="feature_2")
        told = "has 2 features a slice, the head is fitted to 3; extract both with one network"
    table.to_csv(tmp_path / "g.csv", index=False)
    feature_run(tmp_path, external={"layout": "features", "root": str(tmp_path / "g.csv")})
    error = refused(["train", "--config", tmp_path / "run.yaml"], capsys)
    assert error.startswith(f"error: {tmp_path / 'g.csv'}: ")
    assert told in error
    assert not (tmp_path / "run").exists()


def test_a_run_on_features_does_not_go_on_with_others(tmp_path, capsys):
    write_features(tmp_path / "f.csv", 40, 0)
    feature_run(tmp_path)
    words = ["train", "--config", str(tmp_path / "run.yaml")]
    assert main(words) == 0
    written = (tmp_path / "run" / "head.json").stat().st_mtime_ns
    machine = ["--jobs", "2", "--training.workers", "3"]  # another one, with memory for other numbers
    for more in ([], machine):
        assert main([*words, "--resume", *more]) == 0
        assert (tmp_path / "run" / "head.json").stat().st_mtime_ns == written, "fitted again"
    error = refused([*words, "--resume", *machine, "--head.sweeps", "11"], capsys)
    assert "was started with other settings (head.sweeps);" in error
    pd.read_csv(tmp_path / "f.csv").assign(feature_0=0.0).to_csv(tmp_path / "f.csv", index=False)
    error = refused([*words, "--resume"], capsys)
    assert f"f.csv: has changed since {tmp_path / 'run'} began; start a new run" in error


def test_a_cnn_needs_validation_scans(place, tmp_path, capsys):
    words = ["train", "--config", place / "tiny.yaml", "--out", tmp_path / "x", "--split.validation", "0"]
    assert "split: a CNN needs validation scans to stop on" in refused(words, capsys)
    assert not (tmp_path / "x").exists()


def test_features_with_nan(tmp_path, capsys):
    path = tmp_path / "f.csv"
    path.write_text("feature_0,bag_label,instance_name,bag_name\n1,0,i,A\n,1,j,B\n")
    words = ["train", "--train.layout", "features", "--train.root", path, "--out", tmp_path / "x"]
    assert (
        "f.csv: 1 slices have features that are NaN or infinite, or beyond 3.4e+38, the first is 'j'"
        in refused(words, capsys)
    )
    assert not (tmp_path / "x").exists()


def test_a_split_file_with_a_patient_in_two_splits(place, tmp_path, capsys):
    table = pd.read_csv(place / "run" / "splits.csv")
    patient = table.patient[table.patient.duplicated()].iloc[0]
    table["split"] = ["train" if i % 2 else "validation" for i in range(len(table))]
    mine = table.index[table.patient == patient][:2]
    table.loc[mine, "split"] = ["train", "validation"]
    table[["scan", "split"]].to_csv(tmp_path / "own.csv", index=False)
    words = [
        "train",
        "--config",
        place / "tiny.yaml",
        "--out",
        tmp_path / "x",
        "--split.file",
        tmp_path / "own.csv",
    ]
    error = refused(words, capsys)
    assert "own.csv: patients in two splits: " in error
    assert patient in error


@pytest.mark.realdata
@pytest.mark.slow
def test_a_complete_real_study_from_folder_to_page(place, shared_data, tmp_path, capsys):
    """The GE study: 28 of 28 slices get a probability; corrections are told in the JSON."""
    words = ["predict", shared_data / "ge_head_ct", "--model", place / "run", "--out", tmp_path, "--jobs", 1]
    assert run(words, capsys)[0] == 0
    tree = json.loads((tmp_path / "predictions.json").read_text())
    (scan,) = tree["scans"]
    assert len(scan["slices"]) == 28
    assert all("already-hu" in one["corrections"] for one in scan["slices"])
    assert {"spacing-changes", "tilted", "padding"} <= {line["code"] for line in scan["ledger"]}
    name = read_headers(shared_data / "ge_head_ct" / "01.dcm")[0].patient_id
    for path in Path(tmp_path).rglob("*.*"):
        if path.suffix in (".json", ".csv", ".html", ".jsonl"):
            assert not name or name not in path.read_text(), path


def test_prepare_and_its_story_on_the_command_line(place, tmp_path, capsys):
    words = ["prepare", place / "b", "--layout", "cq500", "--out", tmp_path / "set", "--jobs", 1]
    assert run(words, capsys)[0] == 0
    scan = pd.read_csv(tmp_path / "set" / "slices.csv").scan[0]
    assert main(["prepare", "--explain", scan, "--out", str(tmp_path / "set")]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == scan
    assert " slices in " in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--explain", "CQ500-CT-77"], "is no prepared set"),
        (["--layout", "cq500"], "prepare needs a folder and --layout, or --explain SCAN"),
        (["somewhere"], "prepare needs a folder and --layout, or --explain SCAN"),
    ],
)
def test_prepare_that_is_asked_for_too_little(tmp_path, capsys, words, message):
    assert message in refused(["prepare", *words, "--out", tmp_path / "set"], capsys)


@pytest.mark.parametrize("thickness", ["-1", "thin", "nan", "inf"])
def test_a_thickness_that_is_none(tmp_path, capsys, thickness):
    with pytest.raises(SystemExit):
        main(["prepare", "x", "--layout", "rsna", "--out", str(tmp_path), "--thickness", thickness])
    assert f"must be a number of mm from 0 up, got '{thickness}'" in capsys.readouterr().err


def test_torchrun_is_for_train_alone(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert main(["reproduce", "features", "--out", str(tmp_path / "out")]) == 2
    assert "torchrun is for 'train' alone, not for 'reproduce'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_ctrl_c_is_one_word_and_ends_a_loop_of_a_shell_too():
    program = """
        import os, signal, sys
        from ich_mil import cli
        cli._train = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)
        sys.exit(cli.train_main([]))
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert ended.stderr == "stopped\n"
    assert ended.returncode == -signal.SIGINT


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (
            OSError(errno.ENOSPC, "x", "/out/log"),
            "error: /out/log: No space left on device; mend that",
        ),
        (OSError(errno.EACCES, "x", "/in/labels.csv"), "error: /in/labels.csv: Permission denied; mend that"),
        (OSError(errno.EMFILE, "x"), "error: Too many open files; mend that and run the same command again"),
        (MemoryError(), "error: memory ran out; use a machine with more, or lower what --jobs"),
        (MemoryError("15 MiB"), "error: memory ran out (15 MiB); use a machine with more"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee"),
            "error: the GPU's memory ran out (CUDA out of memory. Tried to allocate 2 GiB.); end what else",
        ),
        (TerminatedWorkerError("x"), "error: a worker process was killed (out of memory, or by a decoder)"),
    ],
)
def test_trouble_of_the_machine_is_one_line(monkeypatch, capsys, trouble, message):
    def fail(*_, **__):
        raise trouble

    monkeypatch.setattr(cli, "_train", fail)
    assert train_main([]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_so_is_a_tensor_too_large_for_memory(monkeypatch, capsys):
    monkeypatch.setattr(cli, "_train", lambda *_, **__: torch.empty(1 << 46))
    assert train_main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: memory ran out (")


def test_errors_of_the_program_are_not_hidden(monkeypatch):
    monkeypatch.setattr(cli, "_train", lambda *_, **__: Path("/absent/file").read_text())
    with pytest.raises(FileNotFoundError):
        train_main([])


def test_closed_output_is_no_error(place, tmp_path):
    program = "import sys; from ich_mil.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", program, "prepare", str(place / "a"), "--layout", "rsna"]
    line = shlex.join([*words, "--out", str(tmp_path / "out"), "--jobs", "1"])
    assert subprocess.run(["sh", "-c", f"{line} >&- 2>&-"], check=False).returncode == 0
    assert len(open_prepared(str(tmp_path / "out")).scans) == 16


def test_python_runs_the_package_as_the_command(tmp_path, monkeypatch, capsys):
    def ended(*words):
        monkeypatch.setattr(sys, "argv", ["/somewhere/__main__.py", *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("ich_mil", run_name="__main__")
        return ended.value.code, *capsys.readouterr()

    code, _, error = ended("report", str(tmp_path / "none"))
    assert code == 2
    assert error.startswith(f"error: {tmp_path / 'none'}")
    beside = {"train ": "--resume goes on with", "reproduce ": "a name, 'features' for"}  # no setting
    for command in ("", "predict ", "train ", "grid ", "reproduce ", "serve "):
        code, told, _ = ended(*command.split(), "--help")
        assert code == 0
        assert told.startswith(f"usage: ich-mil {command}[")
        assert beside.get(command, "") in told
    with pytest.raises(SystemExit):
        train_main(["--help"])
    told = capsys.readouterr().out
    assert told.startswith("usage: train.py [")
    assert "--resume goes on with" in told


@pytest.mark.filterwarnings("always:left uncalibrated")
@pytest.mark.parametrize("rank", [0, 1])
def test_of_several_processes_the_first_alone_speaks(rank, tmp_path, monkeypatch, capsys):
    def fitted(*_, **__):
        print("all sweeps done")
        warnings.warn_explicit("left uncalibrated", UserWarning, str(Path(cli.__file__)), 1)

    monkeypatch.setattr("ich_mil.ranks.joined", lambda: nullcontext(Ranks(rank, 2)))
    monkeypatch.setattr("ich_mil.commands.train.train", fitted)
    config = Path(__file__).parents[1] / "configs" / "features.yaml"
    assert main(["train", "--config", str(config), "--out", str(tmp_path / "out")]) == 0
    said = ("", "") if rank else ("all sweeps done\n", "warning: left uncalibrated\n")
    assert capsys.readouterr() == said


@pytest.mark.parametrize("rank", [0, 1])
def test_of_several_processes_the_first_alone_measures_and_reports(rank, tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr("ich_mil.ranks.joined", lambda: nullcontext(Ranks(rank, 2)))
    monkeypatch.setattr("ich_mil.commands.train.train", lambda *_, **__: done.append("train"))
    monkeypatch.setattr("ich_mil.commands.validate.validate_run", lambda _: done.append("validate") or True)
    monkeypatch.setattr("ich_mil.commands.report.report_run", lambda _: done.append("report"))
    config = Path(__file__).parents[1] / "configs" / "features.yaml"
    assert train_main(["--config", str(config), "--out", str(tmp_path / "out")]) == 0
    assert done == (["train"] if rank else ["train", "validate", "report"])

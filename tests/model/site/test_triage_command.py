"""Triage on the command line: thresholds, decisions in reading order, and what is refused."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ich_mil.evaluate.deployment.triage import fit_triage
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.model.predictions import Provenance, Results, ScanPrediction, read_results, write_results
from ich_mil.sets.preparation.prepare import prepare
from tests import phantoms
from tests.feature_table import write_features
from tests.runs_for_tests import feature_run, refused, run

GUARANTEE = {"sensitivity": 0.8, "specificity": 0.8, "confidence": 0.9}
OPTIONS = ("--sensitivity", 0.8, "--specificity", 0.8)


def predictions(folder, n=200, *, seed=0, labelled=True, weights="abc", set_name="external"):
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    p = np.clip(0.35 + 0.3 * labels + generator.normal(0, 0.15, n), 0.01, 0.99).round(6)
    scans = tuple(
        ScanPrediction(f"s{i}", f"s{i}", float(p[i]), 0.1, (0.0, 1.0), "look", label, (), (), (), "")
        for i, label in enumerate(labels.tolist() if labelled else [None] * n)
    )
    model = Provenance("G-VGPMIL", "1", weights, "c", "", "site: 40 scans")
    write_results(Results(set_name, model, "", scans, ()), folder)
    return labels, p


def change(folder, /, **by_scan):
    """Change fields of stored scans, each by a function of the number of the scan."""
    results = read_results(folder)
    scans = tuple(
        replace(one, **{name: of(i) for name, of in by_scan.items()}) for i, one in enumerate(results.scans)
    )
    write_results(replace(results, scans=scans), folder)


def fitted(folder, *options):
    assert run("triage", folder, *(options or OPTIONS)) == 0
    return json.loads((folder / "triage.json").read_text())


def test_thresholds_are_those_of_the_function_and_decide_new_scans(tmp_path, capsys):
    labels, p = predictions(tmp_path / "known")
    written = fitted(tmp_path / "known", "--sensitivity", 0.9)
    scans = [f"s{i}" for i in range(200)]
    want = fit_triage(labels, p, sensitivity=0.9, specificity=0.95, confidence=0.9, patients=scans)
    said = capsys.readouterr().out
    assert want.guarantees in said
    assert (written["low"], written["high"]) == (want.low, want.high)
    called = Counter(want.decide(p).tolist())
    assert written["called"] == called
    assert sum(called.values()) == 200
    numbers = (
        f"{called['positive']} called positive, {called['negative']} called negative, {called['look']} left"
    )
    assert numbers in said

    _, new = predictions(tmp_path / "new", 50, seed=1, labelled=False)
    apply = ("triage", tmp_path / "new", "--apply", tmp_path / "known" / "triage.json")
    assert run(*apply) == 0
    table = pd.read_csv(tmp_path / "new" / "decisions.csv")
    whole = table.set_index("scan").decision.loc[[f"s{i}" for i in range(50)]]
    assert whole.tolist() == want.decide(new).tolist()
    assert table.decision.map(["positive", "look", "negative"].index).is_monotonic_increasing
    assert all(part.probability.is_monotonic_decreasing for _, part in table.groupby("decision"))
    assert set(table.decision) == {"positive", "look", "negative"}
    assert table.incomplete.isna().all()
    counts = table.decision.value_counts()
    assert f"{counts['positive']} called positive, {counts['negative']} called" in capsys.readouterr().out

    # of scans that were not seen whole none is negative
    change(tmp_path / "new", ledger=lambda i: (LedgerEntry("", "x.dcm", Code.GAP, ""),) * (i % 2))
    capsys.readouterr()
    assert run(*apply) == 0
    found = pd.read_csv(tmp_path / "new" / "decisions.csv").set_index("scan")
    cut = found.incomplete == "gap"
    assert cut.sum() == 25
    before = whole[found.index]
    held_back = cut & (before == "negative")
    assert held_back.any()
    assert (found.decision[held_back] == "look").all()
    assert (found.decision[~held_back] == before[~held_back]).all()
    assert f"{held_back.sum()} scans below the thresholds were not seen whole" in capsys.readouterr().out


def test_labels_of_a_file_with_patients(tmp_path):
    labels, p = predictions(tmp_path, labelled=False)
    rows = [f"s{i},{labels[i]},p{i // 4}" for i in reversed(range(200))]
    (tmp_path / "labels.csv").write_text("scan,label,patient\n" + "\n".join(rows))
    written = fitted(tmp_path, "--labels", tmp_path / "labels.csv", *OPTIONS)
    want = fit_triage(labels, p, **GUARANTEE, patients=[f"p{i // 4}" for i in range(200)])
    assert (written["low"], written["n_positive"]) == (want.low, 50)


def test_scans_without_a_label_are_no_negative_ones(tmp_path):
    labels, p = predictions(tmp_path)
    change(tmp_path, label=lambda i: int(labels[i]) if i < 150 else None)
    written = fitted(tmp_path)
    want = fit_triage(labels[:150], p[:150], **GUARANTEE)
    assert (written["low"], written["high"], written["n_negative"]) == (want.low, want.high, 75)


def test_labels_by_folder_of_some_scans(tmp_path, capsys):
    labels, p = predictions(tmp_path, labelled=False)
    change(tmp_path, folder=lambda i: f"{i:04d}")
    rows = [f"{i};{'ja' if labels[i] else 'nein'}" for i in range(150)]  # as Excel leaves 0007
    (tmp_path / "Labels.csv").write_text("Liste\nOrdner;ICH\n" + "\n".join(rows))
    columns = ("--id-column", "Ordner", "--label-column", "ICH")
    written = fitted(tmp_path, "--labels", tmp_path / "Labels.csv", *columns, *OPTIONS)
    assert "--labels FILE" in refused(capsys, "triage", tmp_path, *columns)
    assert run("triage", tmp_path, "--labels", tmp_path / "Labels.csv", *columns, *OPTIONS) == 0
    want = fit_triage(labels[:150], p[:150], **GUARANTEE)
    assert (written["low"], written["n_negative"]) == (want.low, 75)
    assert "which take no part: 50" in capsys.readouterr().out
    assert run("triage", tmp_path, "--apply", tmp_path / "triage.json") == 0
    decided = pd.read_csv(tmp_path / "decisions.csv", dtype=str).set_index("scan")
    assert decided.folder["s7"] == "0007"


def test_labels_by_accession_number_while_the_dicom_files_are_there(tmp_path, capsys):
    root = phantoms.cq500(tmp_path / "site", studies=2)
    for number, folder in enumerate(sorted(root.glob("CQ500CT*"))):
        for path in folder.rglob("*.dcm"):
            phantoms.rewrite(path, AccessionNumber=f"00{number}")
    prepared = prepare("unlabelled", root, tmp_path / "prepared", jobs=1)
    predictions(tmp_path, 2)
    change(tmp_path, scan=lambda i: prepared.scans.index[i])
    (tmp_path / "labels.csv").write_text("accession,label\n0,yes\n1,no\n")
    words = ("triage", tmp_path, "--labels", tmp_path / "labels.csv")
    assert run(*words) == 2  # too few for a guarantee
    assert "2 of 2 rows" in capsys.readouterr().out
    shutil.rmtree(root)
    assert "0 (line 2), 1 (line 3)" in refused(capsys, *words)


def test_labels_that_cannot_be_used(tmp_path, capsys):
    predictions(tmp_path / "known")
    path = tmp_path / "labels.csv"
    for rows, message in (
        ([f"s{i},1" for i in range(200)], "labels.csv: "),  # one class only
        ([f"s{i},{i % 2}" for i in range(201)], "s200 (line 202)"),
        (["s0,1", "s0,0"], "2 and 3"),
    ):
        path.write_text("\n".join(["scan,label", *rows]))
        assert message in refused(capsys, "triage", tmp_path / "known", "--labels", path)
    rows = [f"s{i},{i % 2},{'p' if i else ''}" for i in range(200)]
    path.write_text("\n".join(["scan,label,patient", *rows]))
    assert "scan s0: patient is empty" in refused(capsys, "triage", tmp_path / "known", "--labels", path)


def test_predictions_that_cannot_be_used(tmp_path, capsys):
    folder = tmp_path / "given"
    predictions(folder, 18)
    assert f"{folder}: 18 labelled" in refused(capsys, "triage", folder)
    predictions(folder, labelled=False)
    assert f"{folder}: no scan has a label" in refused(capsys, "triage", folder)
    predictions(folder, set_name="validation")
    assert "stopped and calibrated on" in refused(capsys, "triage", folder)
    predictions(folder)
    change(folder, ledger=lambda i: (LedgerEntry("s7", "", Code.LEARNED_FROM, ""),) * (i == 7))
    assert "patients of 1 of its scans: s7" in refused(capsys, "triage", folder)


def test_thresholds_that_cannot_be_used(tmp_path, capsys):
    predictions(tmp_path / "known")
    predictions(tmp_path / "other", weights="xyz")
    written, broken = fitted(tmp_path / "known"), tmp_path / "broken.json"
    apply = ("--apply", tmp_path / "known" / "triage.json")
    assert "for the model abc" in refused(capsys, "triage", tmp_path / "other", *apply)
    for content in ([], written | {"format": "older"}, written | {"low": 2}):
        broken.write_text(json.dumps(content))
        error = refused(capsys, "triage", tmp_path / "known", "--apply", broken)
        assert error.startswith(f"error: {broken}: ")
    assert "--apply uses stored" in refused(
        capsys, "triage", tmp_path / "known", *apply, "--confidence", "0.8"
    )


@pytest.mark.slow
def test_thresholds_of_the_same_weights_with_another_calibration_are_refused(tmp_path, capsys):
    write_features(tmp_path / "b.csv", 200, 1)
    external = {"layout": "features", "root": str(tmp_path / "b.csv")}
    for method in ("platt", "none"):
        words = feature_run(tmp_path, external=external, out=str(tmp_path / method))
        assert run("train.py", *words, "--head.calibration", method) == 0
    weights = [(tmp_path / method / "head.safetensors").read_bytes() for method in ("platt", "none")]
    assert weights[0] == weights[1]
    fitted(tmp_path / "platt" / "external")
    apply = ("--apply", tmp_path / "platt" / "external" / "triage.json")
    assert "for the model" in refused(capsys, "triage", tmp_path / "none" / "external", *apply)

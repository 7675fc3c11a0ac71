"""Triage on the command line: thresholds, decisions in reading order, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml

from ich_mil import cli
from ich_mil.commands.pages import remove_shown
from ich_mil.evaluate.deployment.triage import fit_triage
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.runs.predictions import Provenance, Results, ScanResult, read_results, write_results
from tests.feature_table import write_features


def predictions(folder, n=200, *, seed=0, labelled=True, weights="abc", prefix="s", set_name="external"):
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    p = np.clip(0.35 + 0.3 * labels + generator.normal(0, 0.15, n), 0.01, 0.99).round(6)
    scans = tuple(
        ScanResult(
            scan=f"{prefix}{i}",
            patient=f"{prefix}{i}",
            probability=float(p[i]),
            std=0.1,
            interval_95=(0.0, 1.0),
            decision="look",
            label=int(labels[i]) if labelled else None,
            runs=(),
            slices=(),
            ledger=(),
            pixels="",
        )
        for i in range(n)
    )
    model = Provenance("G-VGPMIL", "1", weights, "c", "", "site: 40 scans")
    write_results(Results(set_name, model, "", scans, ()), folder)
    return labels, p


def refused(words, capsys):
    assert cli.main(["triage", *map(str, words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def test_thresholds_are_those_of_the_function_and_decide_new_scans(tmp_path, capsys):
    labels, p = predictions(tmp_path / "known")
    assert cli.main(["triage", str(tmp_path / "known"), "--sensitivity", "0.9"]) == 0
    scans = [f"s{i}" for i in range(200)]
    want = fit_triage(labels, p, sensitivity=0.9, specificity=0.95, confidence=0.9, patients=scans)
    assert want.guarantees in capsys.readouterr().out
    written = json.loads((tmp_path / "known" / "triage.json").read_text())
    assert (written["low"], written["high"]) == (want.low, want.high)

    _, new = predictions(tmp_path / "new", 50, seed=1, labelled=False)
    words = ["triage", str(tmp_path / "new"), "--apply", str(tmp_path / "known" / "triage.json")]
    assert cli.main(words) == 0
    table = pd.read_csv(tmp_path / "new" / "decisions.csv")
    assert (
        table.set_index("scan").decision.loc[[f"s{i}" for i in range(50)]].tolist()
        == want.decide(new).tolist()
    )
    order = table.decision.map(["positive", "look", "negative"].index)
    assert order.is_monotonic_increasing
    assert all(part.probability.is_monotonic_decreasing for _, part in table.groupby("decision"))
    assert set(table.decision) == {"positive", "look", "negative"}


def test_decisions_go_with_the_predictions_they_are_of_and_thresholds_stay(tmp_path):
    predictions(tmp_path)
    assert cli.main(["triage", str(tmp_path), "--sensitivity", "0.9"]) == 0
    assert cli.main(["triage", str(tmp_path), "--apply", str(tmp_path / "triage.json")]) == 0
    assert (tmp_path / "decisions.csv").is_file()
    remove_shown(tmp_path)
    assert not (tmp_path / "decisions.csv").exists()
    assert (tmp_path / "triage.json").is_file()


def test_scans_that_were_not_seen_whole_are_looked_at(tmp_path, capsys):
    predictions(tmp_path / "known")
    assert cli.main(["triage", str(tmp_path / "known"), "--sensitivity", "0.9"]) == 0
    predictions(tmp_path / "new", 50, seed=1, labelled=False)
    results = read_results(tmp_path / "new")
    gap = LedgerEntry("", "x.dcm", Code.GAP, "")
    scans = tuple(replace(one, ledger=(gap,) * (i % 2)) for i, one in enumerate(results.scans))
    words = ["triage", str(tmp_path / "new"), "--apply", str(tmp_path / "known" / "triage.json")]
    assert cli.main(words) == 0
    whole = pd.read_csv(tmp_path / "new" / "decisions.csv").set_index("scan")
    assert whole.incomplete.isna().all()
    write_results(replace(results, scans=scans), tmp_path / "new")
    capsys.readouterr()
    assert cli.main(words) == 0
    found = pd.read_csv(tmp_path / "new" / "decisions.csv").set_index("scan")
    cut = found.incomplete == "gap"
    assert cut.sum() == 25
    before = whole.decision[found.index]
    held_back = cut & (before == "negative")
    assert held_back.any()
    assert (found.decision[held_back] == "look").all()
    assert (found.decision[~held_back] == before[~held_back]).all()
    told = capsys.readouterr().out
    assert f"{held_back.sum()} more would be negative, but were not seen whole: to be looked at" in told
    assert f"predictions.csv and any pages in {tmp_path / 'new'} keep the results they had" in told


def test_labels_of_a_file_with_patients(tmp_path):
    labels, p = predictions(tmp_path / "known", labelled=False)
    rows = [f"s{i},{labels[i]},p{i // 4}" for i in reversed(range(200))]
    (tmp_path / "labels.csv").write_text("scan,label,patient\n" + "\n".join(rows))
    words = [
        "triage",
        str(tmp_path / "known"),
        "--labels",
        str(tmp_path / "labels.csv"),
        "--sensitivity",
        "0.8",
    ]
    assert cli.main([*words, "--specificity", "0.8"]) == 0
    written = json.loads((tmp_path / "known" / "triage.json").read_text())
    patients = [f"p{i // 4}" for i in range(200)]
    want = fit_triage(labels, p, sensitivity=0.8, specificity=0.8, confidence=0.9, patients=patients)
    assert (written["low"], written["n_positive"]) == (want.low, 50)


def test_scans_without_a_label_are_no_negative_ones(tmp_path):
    labels, p = predictions(tmp_path / "known")
    results = read_results(tmp_path / "known")
    unlabelled = tuple(replace(one, label=None) for one in results.scans[150:])
    write_results(replace(results, scans=(*results.scans[:150], *unlabelled)), tmp_path / "known")
    words = ["triage", str(tmp_path / "known"), "--sensitivity", "0.8", "--specificity", "0.8"]
    assert cli.main(words) == 0
    written = json.loads((tmp_path / "known" / "triage.json").read_text())
    want = fit_triage(labels[:150], p[:150], sensitivity=0.8, specificity=0.8, confidence=0.9)
    assert (written["low"], written["high"], written["n_negative"]) == (want.low, want.high, 75)


def test_what_is_refused(tmp_path, capsys):
    predictions(tmp_path / "known")
    predictions(tmp_path / "few", 18)
    predictions(tmp_path / "other", weights="xyz")
    predictions(tmp_path / "unlabelled", labelled=False)
    labels = tmp_path / "labels.csv"
    labels.write_text("scan,label\n" + "\n".join(f"s{i},1" for i in range(200)))
    assert "error" in refused([tmp_path / "known", "--labels", labels], capsys)  # one class only
    labels.write_text("scan,label\ns0,1\nt1,0\n")
    assert "both must hold the same scans" in refused([tmp_path / "known", "--labels", labels], capsys)
    for n in (199, 201):
        labels.write_text("scan,label\n" + "\n".join(f"s{i},{i % 2}" for i in range(n)))
        said = refused([tmp_path / "known", "--labels", labels], capsys)
        assert "1 scans are in the labels or in the predictions" in said
    labels.write_text("scan,label\ns0,1\ns0,0\n")
    assert "listed twice: s0" in refused([tmp_path / "known", "--labels", labels], capsys)
    few = refused([tmp_path / "few"], capsys)
    assert f"error: {tmp_path / 'few'}: 18 labelled calibration scans are too few" in few
    assert "at least 20 are needed" in few
    none = refused([tmp_path / "unlabelled"], capsys)
    assert f"error: {tmp_path / 'unlabelled'}: no scan has a label; name a file with --labels" in none
    assert "predictions.json" in refused([tmp_path / "nowhere"], capsys)
    labels.write_text(
        "scan,label,patient\n" + "\n".join(f"s{i},{i % 2},{'p' if i else ''}" for i in range(200))
    )
    assert "scan s0: patient is empty" in refused([tmp_path / "known", "--labels", labels], capsys)
    predictions(tmp_path / "watched", set_name="validation")
    assert "stopped and calibrated on" in refused([tmp_path / "watched"], capsys)
    seen = read_results(tmp_path / "known")
    line = LedgerEntry("s7", "", Code.LEARNED_FROM, "")
    scans = tuple(replace(one, ledger=(line,) * (one.scan == "s7")) for one in seen.scans)
    write_results(replace(seen, scans=scans), tmp_path / "seen")
    error = refused([tmp_path / "seen"], capsys)
    assert "trained or calibrated on patients of 1 of its scans: s7; they cannot carry a promise" in error
    path = tmp_path / "unlabelled" / "predictions.json"
    content = json.loads(path.read_text())
    content["scans"][1]["scan"] = "s0"
    path.write_text(json.dumps(content))
    assert "there twice: s0; predict again" in refused([tmp_path / "unlabelled"], capsys)
    content["scans"][1]["probability"] = "hi"
    path.write_text(json.dumps(content))
    assert "cannot be read as predictions" in refused([tmp_path / "unlabelled"], capsys)
    path.write_text(json.dumps(content | {"scans": []}))
    assert "holds no scan; predict again" in refused([tmp_path / "unlabelled"], capsys)
    assert cli.main(["triage", str(tmp_path / "known"), "--sensitivity", "0.9"]) == 0
    capsys.readouterr()
    error = refused([tmp_path / "other", "--apply", tmp_path / "known" / "triage.json"], capsys)
    assert "was calibrated for the model abc" in error
    broken = tmp_path / "broken.json"
    written = json.loads((tmp_path / "known" / "triage.json").read_text())
    for content, told in (
        ([], "cannot be read as triage thresholds"),
        (written | {"format": "older"}, "not triage thresholds of this version"),
        (written | {"low": 2}, "triage thresholds are damaged"),
    ):
        broken.write_text(json.dumps(content))
        error = refused([tmp_path / "known", "--apply", broken], capsys)
        assert error.startswith(f"error: {broken}: {told}")
        assert error.strip().endswith(("; fit them again", "; name a file of 'ich-mil triage'"))
    error = refused([tmp_path / "known", "--apply", broken, "--labels", labels], capsys)
    assert error == "error: --labels: for new thresholds alone, --apply decides by those it has\n"
    promise = ["--confidence", "0.9", "--method", "conformal"]
    error = refused([tmp_path / "known", "--apply", broken, *promise], capsys)
    assert "error: --confidence, --method: for new thresholds alone" in error


def test_shares_are_checked(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["triage", str(tmp_path), "--sensitivity", "1.5"])
    assert "must be a number between 0 and 1" in capsys.readouterr().err


def test_thresholds_of_the_same_weights_with_another_calibration_are_refused(tmp_path, capsys):
    write_features(tmp_path / "a.csv", 30, 0)
    write_features(tmp_path / "b.csv", 200, 1)
    for method in ("platt", "isotonic"):
        config = {
            "out": str(tmp_path / method),
            "train": {"layout": "features", "root": str(tmp_path / "a.csv")},
            "external": {"layout": "features", "root": str(tmp_path / "b.csv")},
            "split": {"validation": 0},
            "head": {"n_inducing": 16, "sweeps": 10, "calibration": method},
            "bootstrap": 20,
        }
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
        assert cli.train_main(["--config", str(tmp_path / "run.yaml")]) == 0
    weights = [(tmp_path / method / "head.safetensors").read_bytes() for method in ("platt", "isotonic")]
    assert weights[0] == weights[1]
    assert cli.main(["triage", str(tmp_path / "platt" / "external")]) == 0
    thresholds = tmp_path / "platt" / "external" / "triage.json"
    capsys.readouterr()
    assert "was calibrated for the model" in refused(
        [tmp_path / "isotonic" / "external", "--apply", thresholds], capsys
    )

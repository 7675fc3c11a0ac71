"""`ich-mil reports`: its files, its page, corrections that stay, and a console without texts."""

import json
import re
import subprocess
import sys

import pandas as pd
import pytest

from ich_mil import cli
from ich_mil.pages.reports_page import MOST_SENTENCES, ReportsPage, ShownScan, ShownSentence, render_reports
from ich_mil.sets.preparation.prepare import prepare
from tests.html_page import HOSTILE, check_offline

REPORTS = [
    ("A", "There is a small subdural hematoma of Jane Roe."),
    ("B", "No acute intracranial hemorrhage. Scalp hematoma."),
    ("C", "Possible subarachnoid hemorrhage."),
    ("D", "Normal ventricles."),
]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "reports.csv"
    pd.DataFrame(REPORTS, columns=["report", "text"]).to_csv(path, index=False)
    return path


def run(source, out, *words):
    return cli.main(["reports", str(source), "--out", str(out), *words])


def rows(path):
    return pd.read_csv(path, dtype=str, keep_default_na=False).to_numpy().tolist()


def test_its_files(table, tmp_path, capsys):
    out = tmp_path / "out"
    seeds = [word for seed in ("hemorrhage", "hematoma", "zebra") for word in ("--seeds", seed)]
    assert run(table, out, *seeds) == 0
    assert rows(out / "labels.csv") == [["A", "1", "0.974", "sdh"], ["B", "0", "0.007", ""]]
    assert [scan for scan, _ in rows(out / "left_out.csv")] == ["C", "D"]
    assert rows(out / "sentences.csv") == [
        ["A", "There is a small subdural hematoma of Jane Roe.", "present", "sdh", "hematoma"],
        ["B", "No acute intracranial hemorrhage.", "absent", "", "No|hemorrhage"],
        ["B", "Scalp hematoma.", "other", "", "Scalp|hematoma"],
        ["C", "Possible subarachnoid hemorrhage.", "uncertain", "sah", "Possible|hemorrhage"],
        ["D", "Normal ventricles.", "none", "", ""],
    ]
    terms = pd.read_csv(out / "terms.csv")
    assert terms["rank"].tolist() == list(range(1, len(terms) + 1))
    assert {"subdural", "scalp"} <= set(terms["term"])
    assert not {"hemorrhage", "hematoma"} & set(terms["term"])
    assert "uncalibrated" in (out / "reports.html").read_text()
    told = capsys.readouterr()
    assert "1 positive, 1 negative" in told.out
    assert "'zebra'" in told.out
    assert "Jane" not in told.out + told.err
    assert {one.name for one in out.iterdir()} >= {"reports.html", "left_out.csv"}


def test_uncertain_scans_where_they_are_wanted(table, tmp_path):
    assert run(table, tmp_path / "out", "--uncertain", "negative") == 0
    assert [row[:2] for row in rows(tmp_path / "out" / "labels.csv")][2:] == [["C", "0"], ["D", "0"]]
    assert rows(tmp_path / "out" / "left_out.csv") == []


def test_reports_that_disagree_are_never_guessed(tmp_path):
    path = tmp_path / "reports.csv"
    path.write_text("report,text,scan\n1,Left SDH.,S\n2,No hemorrhage.,S\n3,hematoma.,T\n")
    assert run(path, tmp_path / "out", "--uncertain", "positive") == 0
    assert [row[0] for row in rows(tmp_path / "out" / "labels.csv")] == ["T"]
    assert rows(tmp_path / "out" / "left_out.csv") == [["S", "its reports disagree"]]


def test_corrections_are_applied_kept_and_offered_again(table, tmp_path):
    out = tmp_path / "out"
    assert run(table, out) == 0
    first = (out / "labels.csv").read_bytes()
    corrections = out / "corrections.csv"
    corrections.write_text("scan,label\nA,out\nC,1\n")
    for _ in range(2):
        assert run(table, out) == 0
        assert rows(out / "labels.csv") == [["B", "0", "0.007", ""], ["C", "1", "1.0", ""]]
        assert rows(out / "left_out.csv")[0] == ["A", "left out by corrections.csv"]
        assert corrections.read_text() == "scan,label\nA,out\nC,1\n"
        kept = re.search(r'id="kept">(.*?)</script>', (out / "reports.html").read_text())[1]
        assert json.loads(kept) == {"A": "out", "C": "1"}
    corrections.unlink()
    assert run(table, out) == 0
    assert (out / "labels.csv").read_bytes() == first


@pytest.mark.parametrize("words", [("--seeds", "zebra"), ("--column", "text=note")])
def test_errors_are_one_line_without_text(table, tmp_path, capsys, words):
    assert run(table, tmp_path / "out", *words) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    assert "reports.csv" in told
    assert "Jane" not in told
    assert not (tmp_path / "out").exists()


def test_texts_of_another_language_are_named(tmp_path, capsys):
    path = tmp_path / "berichte.csv"
    path.write_text("report,text\nA,Keine intrakranielle Blutung.\nB,Kleines Subduralhämatom rechts.\n")
    assert run(path, tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "berichte.csv" in told
    assert "English" in told


def test_page_is_offline_and_escapes_hostile_texts():
    scans = [
        ShownScan(
            f"{i} {text}", "uncertain", 0.5, note=text, sentences=[ShownSentence("present", text, [text])]
        )
        for i, text in enumerate(HOSTILE)
    ]
    scans.append(ShownScan("many", "positive", 0.98, sentences=[ShownSentence("present", "SDH.")] * 20))
    page = ReportsPage("<b>", scans, 9, {"present": 1}, ["<i>"], ["<u>"], 1)
    shown = check_offline(render_reports(page))
    assert "<script>alert(1)</script>" in shown.text
    assert shown.text.count("SDH.") == MOST_SENTENCES
    assert f"and {20 - MOST_SENTENCES} more in sentences.csv" in shown.text
    assert not {"b1", "u", "i"} & set(shown.tags)
    assert shown.tags.count("select") == len(scans)
    sure = ShownScan("p", "positive", 0.9)
    checked = render_reports(ReportsPage("t", [sure, ShownScan("x", "negative", 0.4, check=True)], 2, {}))
    assert re.findall(r'data-scan="(.)"', checked) == ["x", "p"]
    assert re.findall(r'value="(\w*)" selected', checked) == ["", "1"]
    kinds = {"n": "negative", "p": "positive", "u": "uncertain"}
    html = render_reports(ReportsPage("t", [ShownScan(*one, 0.5) for one in kinds.items()], 3, {}))
    assert re.findall(r'data-scan="(.)"', html) == ["u", "p", "n"]  # first what a person must decide
    assert re.findall(r'value="(\w+)" selected', html) == ["out", "1", "0"]


@pytest.mark.realdata
def test_prepare_takes_the_labels(tmp_path, shared_data):
    """Two CT-ICH patients as DICOM, their labels from reports."""
    root, out = tmp_path / "studies", tmp_path / "out"
    tool = [
        sys.executable,
        str(shared_data.parent / "tools" / "ctich_to_dicom.py"),
        str(shared_data / "ctich"),
    ]
    subprocess.run([*tool, str(root), "--layout", "cq500", "--patients", "49,51"], check=True)
    (root / "reads.csv").unlink()
    path = tmp_path / "reports.csv"
    path.write_text(
        "report,text\nCQ500CT49 CQ500CT49,Left epidural hematoma.\nCQ500CT51 CQ500CT51,No hemorrhage.\n"
    )
    assert run(path, out) == 0
    (root / "labels.csv").write_bytes((out / "labels.csv").read_bytes())
    prepared = prepare("folder", root, tmp_path / "set", jobs=1)
    assert sorted(prepared.scans["label"].tolist()) == [0, 1]

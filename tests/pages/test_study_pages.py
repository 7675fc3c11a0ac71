"""A folder of predictions: what is shown again without a model, what goes, what a bad study leaves others."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ich_mil.errors import ConfigError, DataError
from ich_mil.files import digest
from ich_mil.ledger import BY_INTERVAL
from ich_mil.model.maps import ScanMaps, write_maps
from ich_mil.model.predictions import Results, ScanPrediction, SliceResult, write_results
from ich_mil.output.study_pages import Shown, remove_shown, show_folder
from ich_mil.pages.page import study_file_name
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.sets.store import scan_file
from tests import phantoms
from tests.results import MODEL


def scan_result(prepared, scan):
    """A made-up result of one prepared scan."""
    slices = tuple(
        SliceResult(n, sop, float(n), 0.1, 0.05, (0.05, 0.2), 0.2, None, ())
        for n, sop in enumerate(prepared.slices(scan).sop)
    )
    pixels = digest(*(one.encode() for one in prepared.slices(scan).content))
    numbers = 0.2, 0.05, (0.1, 0.3)
    folder = prepared.folders[scan]
    return ScanPrediction(scan, "p", *numbers, "negative", None, (), slices, (), pixels, folder=folder)


@pytest.fixture
def folder(tmp_path):
    """Two studies, predicted and mapped, as `ich-mil predict` leaves them; and their results."""
    root = phantoms.cq500(tmp_path / "site", studies=2)
    for path in root.rglob("*.dcm"):
        phantoms.rewrite(path, AccessionNumber="ACC-4711")
    out = tmp_path / "DOE_JANE"
    prepared = prepare("unlabelled", root, out / "prepared", jobs=1, thickness_mm=5.0)
    results = Results(
        "new", MODEL, BY_INTERVAL, tuple(scan_result(prepared, scan) for scan in prepared.scans.index), ()
    )
    write_results(results, out)
    maps = ScanMaps(np.array([1]), np.ones((1, 4, 4), np.float32), np.ones((1, 4, 4), np.float32))
    for scan in results.scans:
        write_maps(maps, out, scan, MODEL)
    return out, results, prepared


def test_pages_worklist_and_dicom_without_a_model(folder):
    out, _, _ = folder
    show_folder(out, Shown(dicom=True))
    pages = sorted(out.glob("scan-*.html"))
    assert len(pages) == 2
    index = (out / "index.html").read_text()
    assert all(page.name in index for page in pages)
    assert "DOE_JANE" not in index
    names = {path.name for path in (out / "dicom" / pages[0].stem).iterdir()}
    assert {"capture-1.dcm", "map-1.dcm", "report-1.dcm", "key-1.dcm"} <= names

    (out / "dicom" / pages[0].stem / "ours.txt").touch()
    (out / "studies").mkdir()
    for name in ("studies/scan-a.html", "metrics.csv", "metrics.html", "drift.json", "submission.csv"):
        (out / name).touch()  # of `validate`, `drift` and `predict --kinds`
    (out / "triage.json").touch()
    remove_shown(out)
    left = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    rest = {name for name in left if not name.startswith("prepared/")}
    kept = {"predictions.json", "scans.csv", "slices.csv", "triage.json"}
    assert rest == kept | {f"dicom/{pages[0].stem}/ours.txt"}
    assert "prepared/prepared.json" in left


def test_pages_of_chosen_scans_link_to_those_that_are_there(folder):
    out, results, _ = folder
    first, second = (study_file_name(scan.scan) for scan in results.scans)
    show_folder(out, Shown(), [results.scans[1].scan])
    assert [path.name for path in out.glob("scan-*.html")] == [second]
    index = (out / "index.html").read_text()
    assert second in index
    assert first not in index
    assert index.count("<tr data-decision") == 2
    assert first not in (out / second).read_text()

    show_folder(out, Shown(), [results.scans[0].scan])
    index = (out / "index.html").read_text()
    assert first in index
    assert second in index
    assert second in (out / first).read_text()
    name = results.scans[0].scan
    with pytest.raises(ConfigError, match=f"--scan .* has no such scan .did you mean '{name}'"):
        show_folder(out, Shown(), [name[:-1]])


def test_scans_are_chosen_by_the_names_that_tables_and_the_console_have(folder):
    out, results, _ = folder
    scan = results.scans[1]
    top = scan.folder.partition("/")[0]
    end = scan.scan[-8:]
    for name in (scan.title, f"{scan.folder} (...{end})", f"...{end}", f"…{end}", scan.folder, f"{top}/"):
        show_folder(out, Shown(), [name, scan.scan])
        (page,) = out.glob("scan-*.html")
        assert page.name == study_file_name(scan.scan), name
        page.unlink()
    for name, reason in (("Unknown Study", "fits 2 scans"), ("zzz", "no such scan; its scans")):
        with pytest.raises(ConfigError, match=f"--scan {name}: .*{reason}") as error:
            show_folder(out, Shown(), [name])
        assert all(scan.title in str(error.value) for scan in results.scans)
    with pytest.raises(ConfigError, match=f"no such scan .did you mean '{scan.folder}'"):
        show_folder(out, Shown(), [scan.folder[1:]])
    assert not [*out.glob("scan-*.html")]


def test_pages_mark_the_sides_that_the_prepared_scan_knows(folder):
    out, results, prepared = folder
    show_folder(out, Shown())
    first, second = (out / study_file_name(scan.scan) for scan in results.scans)
    assert '<span class="edge" data-edge="left">R</span><span class="edge" data-edge="right">L</span>' in (
        first.read_text()
    )
    path = scan_file(prepared.folder, results.scans[0].scan).with_suffix(".json")
    record = json.loads(path.read_text())
    for row in record["slices"]:
        row["orientation"][0] *= -1
    path.write_text(json.dumps(record))
    show_folder(out, Shown())
    mirrored = '<span class="edge" data-edge="left">L</span><span class="edge" data-edge="right">R</span>'
    assert mirrored in first.read_text()
    assert mirrored not in second.read_text()
    for row in record["slices"]:
        row["orientation"] = [0.0] * 6  # of no use
    path.write_text(json.dumps(record))
    show_folder(out, Shown())
    assert "no side of the patient is marked" in first.read_text()
    assert "no side of the patient is marked" not in second.read_text()


def test_names_are_shown_only_where_asked_for(folder):
    out, _, _ = folder
    show_folder(out, Shown(names=True))
    pages = [path.read_text() for path in out.glob("scan-*.html")]
    assert all("CQ500-CT-" in page and "ACC-4711" in page for page in pages)
    index = (out / "index.html").read_text()
    assert "DOE_JANE" in index
    assert index.count('<div class="who"><bdi>') == index.count("<tr data-decision") == 2
    show_folder(out, Shown())
    pages = [path.read_text() for path in out.glob("*.html")]
    assert not any("CQ500-CT-" in page or "ACC-4711" in page for page in pages)
    assert all("CQ500CT0 CQ500CT0" in page or "CQ500CT1 CQ500CT1" in page for page in pages)  # their folders


def test_a_study_whose_files_are_gone_does_not_keep_others_from_theirs(folder):
    out, results, prepared = folder
    for path in prepared_study(prepared, results.scans[0].scan).files:
        path.unlink()
    with pytest.raises(DataError, match="and 1 more"):
        show_folder(out, Shown(dicom=True, names=True))
    assert (out / "index.html").is_file()
    assert len(list(out.glob("scan-*.html"))) == 2
    assert len(list((out / "dicom").iterdir())) == 1


@pytest.mark.parametrize("change", ["another image", "other pixels", "a slice more", "another scan"])
def test_predictions_of_other_slices_are_refused_before_anything_is_shown(folder, change):
    out, results, _ = folder
    first, second = results.scans
    other = {
        "another image": {"slices": (replace(second.slices[0], name="9"), *second.slices[1:])},
        "other pixels": {"pixels": first.pixels},
        "a slice more": {"slices": (*second.slices, second.slices[0])},
        "another scan": {"scan": "elsewhere"},
    }[change]
    changed = replace(second, **other)
    write_results(replace(results, scans=(first, changed)), out)
    with pytest.raises(DataError, match=rf"slices of 1 scans .* \({changed.scan}\); predict"):
        show_folder(out, Shown())
    assert not list(out.glob("*.html"))


def test_a_folder_without_prepared_scans_is_refused(folder, tmp_path):
    _, results, _ = folder
    write_results(results, tmp_path / "alone")
    with pytest.raises(DataError, match=r"alone: holds no prepared scans"):
        show_folder(tmp_path / "alone", Shown())

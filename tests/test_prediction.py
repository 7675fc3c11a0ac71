"""The public way: a study in, a result out, in memory; the same numbers as the command."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pydicom import dcmread

import ich_mil
from ich_mil.errors import DataError
from ich_mil.ledger import Code
from ich_mil.model.maps import ScanMaps
from ich_mil.model.predictions import KindResult, read_results
from ich_mil.serve.judging import judge
from ich_mil.sets.preparation import scan
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.sets.store import open_prepared
from ich_mil.sets.stored_hu import clipped
from tests import phantoms
from tests.runs_for_tests import run


@pytest.fixture(scope="module")
def folder(tiny):
    return sorted((tiny / "b").glob("CQ500CT*"))[0]


@pytest.fixture(scope="module")
def model(tiny):
    return ich_mil.load_model(tiny / "run")


@pytest.fixture(scope="module")
def result(model, folder):
    return model.predict(ich_mil.read_study(folder))


def test_predictions_are_those_of_the_command(tiny, folder, result, tmp_path):
    assert run("predict", folder, "--model", tiny / "run", "--out", tmp_path / "out", "--jobs", 1) == 0
    (stored,) = read_results(tmp_path / "out").scans
    # order of the ledger: the command writes refused files of all studies first
    assert replace(result.prediction, ledger=()) == replace(stored, ledger=())
    assert sorted(result.ledger, key=str) == sorted(stored.ledger, key=str)
    prepared = open_prepared(tmp_path / "out" / "prepared")
    study = prepared_study(prepared, stored.scan)
    np.testing.assert_array_equal(study.hu, clipped(result.study.hu))
    assert (study.spacing, study.edges, study.files) == (
        result.study.spacing,
        result.study.edges,
        result.study.files,
    )
    page = (tmp_path / "out" / "index.html").parent.glob("scan-*.html")
    result.save_page(tmp_path / "page.html")
    (written,) = [path.read_text() for path in page]
    assert result.prediction.scan in (tmp_path / "page.html").read_text()
    assert f"{100 * result.probability:.1f}"[:3] in written


@pytest.mark.parametrize(("decision", "n_kinds"), [("negative", 0), ("look", 1)])
def test_kinds_of_scans_not_called_negative(model, result, decision, n_kinds):
    kind = KindResult("subdural", 0.5, 0.1, (0.3, 0.7), "network 0", 1.0, 0.9)
    triage = SimpleNamespace(decide=lambda p: [decision], guarantees="")
    with_kinds = ich_mil.Model(model.trained, triage, SimpleNamespace(predict=lambda views: (kind,)))
    assert with_kinds.predict(result.study).prediction.kinds == (kind,) * n_kinds


def test_slices_are_counted_from_one(result):
    slices = result.slices
    assert slices.index.tolist() == list(range(1, len(result.study.hu) + 1))
    assert slices.probability.tolist() == [part.probability for part in result.prediction.slices]


@pytest.mark.parametrize("given", ["head_ct", None, np.zeros((2, 4, 4), np.int16)])
def test_other_things_than_studies_are_refused(model, given):
    with pytest.raises(TypeError, match=rf"got {type(given).__name__}; .*ich_mil\.read_study"):
        model.predict(given)


def test_an_edited_study_is_checked(model, result):
    study = result.study
    turned = model.predict(replace(study, hu=study.hu[:, :, ::-1]))  # no contiguous array
    assert 0 < turned.probability < 1
    for hu in (study.hu[1:], study.hu[0], study.hu.astype(float)):
        with pytest.raises(DataError, match=rf"hu must be .* int16 .* for {len(study.rows)} rows, got"):
            replace(study, hu=hu)


def test_results_and_studies_print_as_one_line(result):
    assert repr(result).startswith(f"ScanResult(id='{result.study.id}', probability={result.probability:.3f}")
    assert f"decision='{result.decision}', {len(result.slices)} slices, " in repr(result)
    assert f"hu {result.study.hu.shape} int16" in repr(result.study)
    for value in (result, result.study, result.prediction, result.results):
        assert len(repr(value)) < 600
        assert "\n" not in repr(value)


def test_a_heatmap_is_on_the_pixels_of_its_slice(result, monkeypatch):
    rows, columns = result.study.hu.shape[1:]
    mean = np.arange(2 * rows * columns, dtype=np.float32).reshape(2, rows, columns)
    maps = ScanMaps(np.array([4, 7]), mean, mean / 2)
    located = replace(result)
    monkeypatch.setattr("ich_mil.prediction.make_maps", lambda *_: maps)
    heatmap = located.heatmap(8)
    np.testing.assert_array_equal(heatmap.mean, maps.on_grid(rows, columns).mean[1])
    np.testing.assert_array_equal(heatmap.std, heatmap.mean / 2)
    with pytest.raises(ValueError, match=r"slice 7 has no heatmap; slices with one: \[5, 8\]"):
        located.heatmap(7)


def test_a_model_without_boxes_has_no_heatmap(result):
    assert result.maps is None
    with pytest.raises(ValueError, match=r"slice 1 has no heatmap; slices with one: \[\]"):
        result.heatmap(1)


def test_dicom_results_keep_their_uids(result, tmp_path):
    first, again = (result.save_dicom(tmp_path / name) for name in ("a", "b"))
    assert [dcmread(path).SOPInstanceUID for path in first] == [
        dcmread(path).SOPInstanceUID for path in again
    ]


def test_the_judge_writes_page_results_and_dicom(tiny, folder, result, tmp_path):
    judge(folder, tmp_path, (), model=tiny / "run")
    (scan,) = result.results.scans
    assert read_results(tmp_path) == replace(result.results, scans=(replace(scan, folder=""),))
    assert (tmp_path / "index.html").is_file()
    assert any((tmp_path / "dicom").glob("report-*.dcm"))


@pytest.mark.parametrize(("name", "reason"), [("b", "holds .* studies"), ("a/absent", "no such folder")])
def test_a_folder_that_is_no_study(tiny, name, reason):
    with pytest.raises(ich_mil.DataError, match=reason):
        ich_mil.read_study(tiny / name)


def test_files_that_are_no_ct(tmp_path):
    (tmp_path / "notes.txt").write_text("none")
    with pytest.raises(ich_mil.DataError, match=r"none of its 1 files is a CT slice; the first: "):
        ich_mil.read_study(tmp_path)


def test_every_public_name_is_imported_on_first_use():
    code = "import sys, ich_mil; assert not {'torch', 'pandas', 'numpy'} & sys.modules.keys(); "
    code += "assert all(getattr(ich_mil, name) is not None for name in ich_mil.__all__)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ich_mil.nothing  # noqa: B018


@pytest.fixture
def with_another(folder, tmp_path):
    """The study, a note, and a second study whose only file is cut off."""
    shutil.copytree(folder, tmp_path / "in" / "a")
    (tmp_path / "in" / "notes.txt").write_text("none")
    path = next((tmp_path / "in" / "a").rglob("*.dcm"))
    (tmp_path / "in" / "b").mkdir()
    phantoms.rewrite(path, tmp_path / "in" / "b" / "0.dcm", StudyInstanceUID="1.2.3", Rows=0)
    return tmp_path / "in"


def test_another_study_without_a_slice_is_one_line(with_another, result):
    ledger = ich_mil.read_study(with_another).ledger
    assert {(line.scan, line.code) for line in ledger if line.scan != result.study.id} == {
        ("", Code.NOT_DICOM),
        ("1.2.3", Code.SCAN_EMPTY),
    }


def test_files_that_change_while_they_are_read(with_another, monkeypatch):
    def swapped(task):
        path = next((with_another / "a").rglob("*.dcm"))
        os.utime(path, (1e9, 1e9))
        return scan.read_scan(task)

    monkeypatch.setattr("ich_mil.sets.preparation.read.read_scan", swapped)
    with pytest.raises(ich_mil.DataError, match=f"^{with_another}: its files have changed"):
        ich_mil.read_study(with_another)


def test_wrong_contrast_words_are_told_before_the_first_study(tiny, tmp_path):
    (tmp_path / "words.csv").write_text("phrase,meaning\nx,without\n")
    with pytest.raises(ich_mil.ConfigError, match=r"words\.csv"):
        judge(None, tmp_path, (), model=tiny / "run", contrast_words=tmp_path / "words.csv")

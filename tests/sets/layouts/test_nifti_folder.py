"""NIfTI files in the folder layout: one scan each, its labels, patients and ledger, and the commands."""

import shutil

import nibabel
import numpy as np
import pandas as pd
import pytest

import ich_mil
from ich_mil.errors import DataError
from ich_mil.ledger import Code
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.store import open_prepared
from ich_mil.study.geometry.planes import Edges
from tests.nifti import head, image_of, save_head
from tests.runs_for_tests import refused, run


def codes(ledger) -> set[str]:
    return {entry.code for entry in ledger}


def test_a_file_is_a_study(tmp_path):
    path = save_head(tmp_path / "scan.nii.gz", codes="RAS")
    study = ich_mil.read_study(path)
    np.testing.assert_array_equal(study.hu, head())
    assert (study.id, study.patient, study.files) == ("scan", "scan", [path])
    np.testing.assert_allclose(study.spacing, (6.0, 3.6, 3.6), rtol=1e-6)
    assert study.edges[0] == Edges("R", "L", "A", "P")
    assert (study.rows[3]["sources"], study.rows[3]["sop"]) == (["scan.nii.gz frame 3"], "scan#3")
    assert codes(study.ledger) == {Code.PATIENT_MISSING}
    np.testing.assert_array_equal(ich_mil.read_study(tmp_path).hu, study.hu)


def test_orientation_that_is_not_stated(tmp_path):
    image = image_of(head(), codes="LPS", mm=(3.6, 3.6, 6.0))
    image.set_sform(None, 0)
    image.set_qform(None, 0)
    nibabel.save(image, tmp_path / "scan.nii")
    study = ich_mil.read_study(tmp_path)
    assert Code.ORIENTATION_UNKNOWN in codes(study.ledger)
    assert set(study.edges) == {None}


def test_thin_slices_are_averaged(tmp_path):
    thin = np.repeat(head(), 6, axis=0)  # 1 mm
    nibabel.save(image_of(thin, codes="RAI", mm=(3.6, 3.6, 1.0)), tmp_path / "scan.nii.gz")
    study = ich_mil.read_study(tmp_path, thickness_mm=6)
    np.testing.assert_array_equal(study.hu, head())
    assert {Code.AVERAGED} < codes(study.ledger)


def test_ids_patients_and_labels(tmp_path):
    root = tmp_path / "set"
    names = ("sub-01/ses-1/sub-01_ses-1_ct", "sub-01/ses-2/sub-01_ses-2_ct", "sub-02/sub-02_ct", "x/7")
    for seed, name in enumerate(names):
        save_head(root / f"{name}.nii.gz", seed)
    rows = ["sub-01_ses-1_ct,1", "sub-01/ses-2/sub-01_ses-2_ct.nii.gz,0", "sub-02,0", "7.nii.gz,1"]
    (root / "labels.csv").write_text("\n".join(["scan,label", *rows]))
    prepared = prepare("folder", root, tmp_path / "out", jobs=1)
    scans = prepared.scans
    assert scans.label.to_dict() == dict(zip(names, (1, 0, 0, 1), strict=True))
    assert scans.patient[names[0]] == scans.patient[names[1]] != scans.patient[names[2]]
    assert scans.patient[names[3]] == "x/7"
    missing = prepared.ledger[prepared.ledger.code == Code.PATIENT_MISSING]
    assert missing.scan.tolist() == ["x/7"]


def test_files_that_are_no_head_ct_have_one_line(tmp_path):
    root = tmp_path / "set"
    path = save_head(root / "scan.nii.gz")
    nibabel.save(image_of((head() > 300).astype(np.uint8)), root / "mask.nii.gz")
    nibabel.save(image_of(np.full((24, 64, 64), -999, np.int16)), root / "air.nii")
    (root / "cut.nii.gz").write_bytes(path.read_bytes()[:9000])
    damaged = bytearray(path.read_bytes())
    damaged[9000:9100] = bytes(100)
    (root / "damaged.nii.gz").write_bytes(damaged)
    (root / "text.nii").write_text("no volume")
    prepared = prepare("unlabelled", root, tmp_path / "out", jobs=1)
    assert prepared.scans.index.tolist() == ["scan"]
    told = prepared.ledger[prepared.ledger.file != ""].set_index("file").code
    assert told["mask.nii.gz"] == Code.NO_HU_SCALE
    assert (told["cut.nii.gz"], told["damaged.nii.gz"], told["text.nii"]) == (Code.UNREADABLE,) * 3
    empty = prepared.ledger[prepared.ledger.code == Code.SCAN_EMPTY]
    assert sorted(empty.scan) == ["air", "cut", "damaged", "mask", "text"]
    with pytest.raises(DataError, match="none is air"):
        ich_mil.read_study(root / "mask.nii.gz")


def test_copies_beside_dicom_slices_take_no_part(cq500_root, tmp_path):
    source = next(path for path in sorted(cq500_root.glob("CQ500CT*/*/*")))
    shutil.copytree(source, tmp_path / "set")
    alone = ich_mil.read_study(tmp_path / "set")
    save_head(tmp_path / "set" / "converted.nii.gz")
    study = ich_mil.read_study(tmp_path / "set")
    assert study.id == alone.id
    beside = [entry for entry in study.ledger if entry.file == "converted.nii.gz"]
    assert [entry.code for entry in beside] == [Code.SERIES_NOT_CHOSEN]
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert prepared.scans.index.tolist() == [alone.id]


def test_a_second_run_needs_the_same_file(tmp_path):
    first, second = save_head(tmp_path / "set" / "a.nii"), save_head(tmp_path / "set" / "b.nii", 1)
    assert prepare("unlabelled", first, tmp_path / "out", jobs=1).scans.index.tolist() == ["a"]
    assert prepare("unlabelled", first, tmp_path / "out", jobs=1).scans.index.tolist() == ["a"]
    with pytest.raises(DataError, match=r"b\.nii"):
        prepare("unlabelled", second, tmp_path / "out", jobs=1)


def test_without_nibabel(tmp_path, monkeypatch):
    path = save_head(tmp_path / "scan.nii")
    monkeypatch.setattr("ich_mil.errors.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'ich-mil\[nifti\]'"):
        ich_mil.read_study(path)


def test_predict_a_file(tiny, tmp_path, capsys):
    path = save_head(tmp_path / "set" / "scan.nii.gz")
    words = ["predict", path, "--model", tiny / "run", "--out", tmp_path / "out", "--jobs", 1]
    assert run(*words, "--names") == 0
    assert pd.read_csv(tmp_path / "out" / "scans.csv").scan.iloc[0] == "scan"
    assert open_prepared(tmp_path / "out" / "prepared").root == path.parent
    assert len([*(tmp_path / "out").glob("scan-*.html")]) == 1
    error = refused(capsys, *words, "--dicom")
    assert str(path) in error
    assert "is NIfTI" in error
    assert len([*(tmp_path / "out").glob("scan-*.html")]) == 1
    assert not [*(tmp_path / "out").glob("dicom/**/*.dcm")]

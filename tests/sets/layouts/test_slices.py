"""Single labelled slices become scans of one slice; rows and files that do not match are refused by name."""

import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from pydicom import dcmread

from ich_mil.errors import DataError
from ich_mil.ledger import Code
from ich_mil.sets.layouts.slice_pictures import hu_of_grey
from ich_mil.sets.preparation.explain import explain
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.splits import patient_key
from ich_mil.sets.stored_hu import clipped
from ich_mil.study.window_presets import LOWEST

pytestmark = pytest.mark.filterwarnings("ignore:Invalid value for VR UI")
BRAIN = (40.0, 80.0)
GREYS = np.random.default_rng(0).integers(0, 256, (4, 16, 16), dtype=np.uint8)
NAMES = ["a", "b.1", "ü", "d"]


def table(root, rows, columns="slice,label"):
    (root / "labels.csv").write_text("\n".join([columns, *rows]), encoding="utf-8")


@pytest.fixture
def root(tmp_path):
    """Four pictures, one in a folder of its own; the odd ones are positive."""
    root = tmp_path / "in"
    (root / "deeper").mkdir(parents=True)
    for i, (name, grey) in enumerate(zip(NAMES, GREYS, strict=True)):
        Image.fromarray(grey).save((root / "deeper" if i == 3 else root) / f"{name}.png")
    table(root, [f"{name},{i % 2}" for i, name in enumerate(NAMES)])
    return root


def prepared_of(root, *, window=BRAIN, out="out"):
    return prepare("slices", root, root.parent / out, jobs=1, window=window)


def test_each_picture_is_a_scan_of_one_slice(root):
    prepared = prepared_of(root)
    assert prepared.scans.label.to_dict() == {name: i % 2 for i, name in enumerate(NAMES)}
    assert prepared.scans.patient.tolist() == prepared.scans.index.tolist()  # each its own
    one = prepared.table.set_index("scan")
    assert one.slice_label.to_dict() == prepared.scans.label.to_dict()
    assert one.source["d"] == "deeper/d.png"
    for name, grey in zip(NAMES, GREYS, strict=True):
        assert prepared.hu(name).tolist() == [clipped(hu_of_grey(grey, window=BRAIN)).tolist()]
        assert prepared.hu(name).dtype == np.int16
    assert prepared.ledger[["scan", "code"]].to_numpy().tolist() == [["", Code.PATIENT_MISSING]]
    assert "pixels of" not in explain(prepared.folder, "a")  # their size is not known


def test_patients_and_labels_of_a_corrected_table(root, monkeypatch):
    table(root, ["a,0,p", "b.1,1,p", "ü,0,q", "d,1,r"], "slice,any,patient")
    first = prepared_of(root)
    assert first.scans.patient.to_dict() == {k: patient_key(v) for k, v in zip(NAMES, "ppqr", strict=True)}
    assert first.ledger.empty
    monkeypatch.setattr("ich_mil.sets.layouts.slices.read_picture", None)  # nothing is read again
    table(root, ["a,1,p", "b.1,1,p", "ü,0,q", "d,1,q"], "slice,label,patient")
    again = prepared_of(root)
    assert again.scans.label.tolist() == [1, 1, 1, 0]
    assert again.scans.patient["d"] == patient_key("q")
    assert again.fingerprint != first.fingerprint


def test_changed_picture_and_other_window(root):
    before = prepared_of(root)
    Image.fromarray(GREYS[0].T).save(root / "a.png")
    after = prepared_of(root)
    assert after.hu("a").tolist() == [clipped(hu_of_grey(GREYS[0].T, window=BRAIN)).tolist()]
    assert before.fingerprint != after.fingerprint
    with pytest.raises(DataError, match="out: was prepared with window"):
        prepared_of(root, window=(40.0, 120.0))
    (after.folder / "prepared.json").unlink()  # as after damage
    wide = prepared_of(root, window=(40.0, 120.0))
    assert wide.hu("d").tolist() == [clipped(hu_of_grey(GREYS[3], window=(40.0, 120.0))).tolist()]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (["a,0", "b.1,1", "ü,0", "d,1", "e,0"], r"labels.csv: .* e \(line 6\)"),
        (["a,0", "b.1,1", "ü,0", "d,2"], r"labels.csv: .* '2' \(line 5\)"),
        (["a,0", "b.1,1", "ü,0", "d,1", "a,0"], "labels.csv: lines .* 2 and 6"),
        (["a,0", "b.1,1", "ü,0", "d,1", "notes,0"], "notes.txt: is neither"),
    ],
)
def test_rows_and_files_must_match(root, rows, told):
    (root / "notes.txt").write_text("of no slice")
    prepared_of(root)  # a file that is no slice needs no row
    table(root, rows)
    with pytest.raises(DataError, match=told):
        prepared_of(root)


def test_a_slice_without_a_label_takes_no_part(root):
    table(root, ["a,no", "b.1,YES", "ü,"])
    prepared = prepared_of(root)
    assert prepared.scans.label.to_dict() == {"a": 0, "b.1": 1}
    lines = prepared.ledger[prepared.ledger.code == Code.NO_LABEL]
    assert dict(zip(lines.scan, lines.file, strict=True)) == {"d": "deeper/d.png", "ü": "ü.png"}


def test_a_slice_is_there_once(root):
    shutil.copy(root / "deeper" / "d.png", root / "d.png")
    with pytest.raises(DataError, match=r"'d' \(d\.png, deeper/d\.png\)"):
        prepared_of(root)


def test_same_picture_under_two_names(root):
    Image.fromarray(GREYS[0]).convert("RGB").save(root / "ü.png")
    prepared = prepared_of(root)
    assert prepared.scans.patient[["a", "ü"]].tolist() == ["a = ü"] * 2
    assert prepared.ledger.code.tolist() == [Code.SAME_SLICES, Code.PATIENT_MISSING]
    table(root, ["a,0", "b.1,1", "ü,1", "d,1"])
    with pytest.raises(DataError, match=r"labels\.csv: ü and a are the same picture"):
        prepared_of(root)


def test_damaged_and_flat_pictures(root):
    Image.fromarray(np.zeros_like(GREYS[0])).save(root / "a.png")
    prepared = prepared_of(root)
    assert sorted(prepared.scans.index) == ["b.1", "d", "ü"]
    assert prepared.ledger[prepared.ledger.scan == "a"].code.tolist() == [Code.FLAT, Code.SCAN_EMPTY]
    (root / "a.png").write_bytes((root / "b.1.png").read_bytes()[:100])
    with pytest.raises(DataError, match=r"a\.png: cannot be read"):
        prepared_of(root)


@pytest.fixture
def dicom(rsna_root, tmp_path):
    """The slices of a study as a folder of labelled slices; the table knows no patient."""
    root = tmp_path / "in"
    root.mkdir()
    paths = sorted((rsna_root / "stage_2_train").iterdir())
    study = dcmread(paths[0]).StudyInstanceUID
    for path in paths:
        if dcmread(path, stop_before_pixels=True).StudyInstanceUID == study:
            shutil.copy(path, root / f"slice_{path.name}")
    table(root, [f"{path.stem},{i % 2}" for i, path in enumerate(sorted(root.iterdir()))])
    return root


def test_dicom_slices(dicom, rsna_root, tmp_path):
    slices = prepared_of(dicom, window=None)
    whole = prepare("rsna", rsna_root, tmp_path / "whole", jobs=1, thickness_mm=0)
    one = slices.table.set_index("sop")
    of_scan = whole.table[whole.table["sop"].isin(one.index)]
    assert len(of_scan) == len(one) == len(list(dicom.iterdir())) - 1  # the vertex too
    for index, sop in zip(of_scan["index"], of_scan["sop"], strict=True):
        assert np.array_equal(slices.hu(one.scan[sop])[0], whole.hu(of_scan.scan.iloc[0])[index])
    assert set(slices.scans.patient) == set(of_scan.patient)
    with pytest.raises(DataError, match=r"in: holds no PNG or JPEG picture; leave out window"):
        prepared_of(dicom, out="windowed")


@pytest.mark.realdata
def test_real_pictures_of_rsna(shared_data, tmp_path):
    source, root = shared_data / "rsna_png", tmp_path / "in"
    root.mkdir()
    labels = pd.read_csv(source / "labels.csv").iloc[::50]
    labels.to_csv(root / "labels.csv", index=False)
    for name in labels.slice:
        (root / f"{name}.png").symlink_to(source / f"{name}.png")
    prepared = prepared_of(root)
    assert prepared.scans.label.to_dict() == dict(zip(labels.slice, labels["any"], strict=True))
    stacks = np.concatenate([prepared.hu(scan) for scan in prepared.scans.index])  # (41, 512, 512)
    assert {LOWEST, 1000} < {*np.unique(stacks)} <= {LOWEST, 1000, *range(81)}
    assert 0.3 < (stacks == LOWEST).mean() < 0.8
    inside = stacks[(stacks > 0) & (stacks < 80)]
    assert abs(int(np.bincount(inside).argmax()) - 34) <= 5  # brain, shared/DATA.md

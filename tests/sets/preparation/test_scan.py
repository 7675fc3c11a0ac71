"""One scan: what takes the place of an unreadable slice, and of a series that shows no head."""

import shutil
from pathlib import Path

import numpy as np
import pydicom
import pytest

from ich_mil.errors import DataError
from ich_mil.ledger import INCOMPLETE, Code
from ich_mil.sets.preparation import scan as module
from ich_mil.sets.preparation.explain import explain
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.preparation.read import read_study
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.sets.stored_hu import clipped
from ich_mil.study.files.header import read_headers
from ich_mil.study.geometry.planes import Edges
from ich_mil.study.pixels.read import read_slice
from tests import phantoms

pytestmark = pytest.mark.filterwarnings("ignore:Invalid value for VR UI")


@pytest.fixture
def series(cq500_root, tmp_path):
    """A folder `set/a` with one series of 5 mm slices, its files in order from below."""
    source = next(path for path in sorted(cq500_root.glob("CQ500CT*/*/*")) if len(list(path.iterdir())) < 50)
    folder = Path(shutil.copytree(source, tmp_path / "set" / "a"))
    return sorted(folder.iterdir(), key=lambda path: read_headers(path)[0].position[2])


def test_duplicate_replaces_an_unreadable_slice(series, tmp_path):
    good = series[4]
    twin = good.with_name("twin.dcm")
    phantoms.rewrite(good, twin, SOPInstanceUID="9.9.9", InstanceNumber=999)  # the second by number
    want, _ = read_slice(read_headers(twin)[0])
    flat = np.zeros((64, 64), np.int16).tobytes()
    phantoms.rewrite(good, good, PixelData=flat)
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert prepared.table.source[4] == "a/twin.dcm"
    np.testing.assert_array_equal(prepared.hu(prepared.table.scan[0])[4], clipped(want))
    told = prepared.ledger.set_index("file").code
    assert told[f"a/{good.name}"] == Code.FLAT
    assert Code.GAP not in set(told)


@pytest.mark.parametrize("differs", [False, True])
def test_duplicates_with_different_pixels(series, tmp_path, differs):
    phantoms.rewrite(series[4], series[4].with_name("twin.dcm"), SOPInstanceUID="9.9.9", InstanceNumber=999)
    if differs:
        other = pydicom.dcmread(series[5]).PixelData
        phantoms.rewrite(series[4].with_name("twin.dcm"), PixelData=other)
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    (scan,) = prepared.scans.index
    (double,) = (line for line in prepared.ledger_by_scan[scan] if line["code"] == Code.DUPLICATE)
    told = [line for line in prepared.ledger_by_scan[scan] if line["code"] in INCOMPLETE]
    assert double["file"] == "a/twin.dcm"
    assert [(line["code"], line["file"]) for line in told] == [(Code.OTHER_PICTURE, "a/twin.dcm")] * differs
    assert all(f"a/{series[4].name}" in line["detail"] for line in told)


def test_unreadable_slice_leaves_a_gap(series, tmp_path):
    flat = np.zeros((64, 64), np.int16).tobytes()
    phantoms.rewrite(series[4], series[4], PixelData=flat)
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert len(prepared.table) == len(series) - 1
    told = prepared.ledger
    assert told.code.tolist().count(Code.FLAT) == 1
    gap = told[told.code == Code.GAP]
    assert gap.file.tolist() == [f"a/{series[3].name}"]
    assert f"a/{series[5].name}" in gap.detail.iloc[0]
    assert not told.detail.str.contains(str(tmp_path)).any()  # paths are those below the root


def test_head_without_its_top(series, tmp_path):
    """Nothing but the pictures says so: no slice is missing between the others."""
    whole = prepare("unlabelled", tmp_path / "set", tmp_path / "whole", jobs=1)
    assert Code.PART_OF_HEAD not in set(whole.ledger.code)
    middle = pydicom.dcmread(series[len(series) // 2]).PixelData
    phantoms.rewrite(series[-1], series[-1], PixelData=middle)
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    told = prepared.ledger[prepared.ledger.code == Code.PART_OF_HEAD]
    assert told.scan.tolist() == prepared.scans.index.tolist()
    assert told.detail.str.contains("^the highest slice has ").all()


def test_drifting_slices_are_aligned_before_averaging(series, tmp_path):
    down, across = 2, -2  # pixels a slice
    for path in {*series} - {*series[10:18]}:
        path.unlink()
    upright = prepare("unlabelled", tmp_path / "set", tmp_path / "upright", jobs=1, thickness_mm=12)
    for k, path in enumerate(series[10:18]):
        (header,) = read_headers(path)
        way = np.multiply(header.orientation[3:], k * down * header.spacing[0])
        way += np.multiply(header.orientation[:3], k * across * header.spacing[1])
        picture = np.roll(pydicom.dcmread(path).pixel_array, (-k * down, -k * across), (0, 1))
        position = [f"{mm:.9g}" for mm in header.position + way]
        phantoms.rewrite(path, PixelData=picture.tobytes(), ImagePositionPatient=position)
    drifting = prepare("unlabelled", tmp_path / "set", tmp_path / "drifting", jobs=1, thickness_mm=12)
    (scan,) = upright.scans.index
    wanted, found = upright.hu(scan), drifting.hu(scan)
    assert len(wanted) == len(found) == 4
    for k, (one, other) in enumerate(zip(wanted, found, strict=True)):  # of slices 2 k and 2 k + 1
        moved = np.roll(one, (-(4 * k + 1) * down // 2, -(4 * k + 1) * across // 2), (0, 1))
        np.testing.assert_array_equal(other[16:-16, 16:-16], moved[16:-16, 16:-16])


def test_mirrored_pictures_are_turned(series, tmp_path):
    plain = prepare("unlabelled", tmp_path / "set", tmp_path / "plain", jobs=1)
    (scan,) = plain.scans.index
    assert set(prepared_study(plain, scan).edges) == {Edges("R", "L", "A", "P")}
    for path in series:  # the same pixels, said to run the other way
        image = read_headers(path)[0]
        phantoms.rewrite(path, path, ImageOrientationPatient=[-1, 0, 0, *image.orientation[3:]])
    mirrored = prepare("unlabelled", tmp_path / "set", tmp_path / "mirrored", jobs=1)
    assert Code.FLIPPED in set(mirrored.ledger.code)
    np.testing.assert_array_equal(mirrored.hu(scan), plain.hu(scan)[:, :, ::-1])
    assert prepared_study(mirrored, scan).edges == [Edges("R", "L", "A", "P")] * len(series)


def several(cq500_root):
    """The folder of a study with more than one series, and their names."""
    study = next(path for path in sorted(cq500_root.glob("CQ500CT*/*")) if len(list(path.iterdir())) > 1)
    return study, sorted(path.name for path in study.iterdir())


def test_next_series_if_the_first_shows_no_head(cq500_root, tmp_path, monkeypatch):
    study, names = several(cq500_root)
    shutil.copytree(study, tmp_path / "set" / "a")
    first = prepare("unlabelled", tmp_path / "set", tmp_path / "first", jobs=1)
    favourite = Path(first.table.source[0].split("|")[0]).parts[1]
    shapes = []

    def refuse_the_first(hu, *, spacing):
        shapes.append(hu.shape)
        return "it is a foot" if len(shapes) == 1 else None

    monkeypatch.setattr(module, "head_refusal", refuse_the_first)
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "second", jobs=1)
    taken = {Path(source).parts[1] for cell in prepared.table.source for source in cell.split("|")}
    assert len(taken) == 1
    assert taken <= set(names) - {favourite}
    ledger = prepared.ledger
    (line,) = ledger.detail[ledger.code == Code.NO_HEAD]
    assert line.endswith("it is a foot")
    assert len(ledger[ledger.code == Code.SERIES_NOT_CHOSEN]) == len(names) - 2
    assert shapes[0] == first.hu(first.table.scan[0]).shape


def test_softer_series_if_the_first_is_sharp_by_noise(cq500_root, tmp_path, monkeypatch):
    study, _ = several(cq500_root)
    shutil.copytree(study, tmp_path / "set" / "a")
    for path in (tmp_path / "set").rglob("*.dcm"):  # of one kind, so that the measured sharpness decides
        phantoms.rewrite(path, ConvolutionKernel="SOFT", SeriesDescription="Head", ContrastBolusAgent="")
    looks = []

    def first_is_sharp(hu, *, spacing):
        looks.append(spacing)
        return "sharp: measured" if len(looks) == 1 else ""

    monkeypatch.setattr(module, "sharpness", first_is_sharp)
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    (line,) = prepared.ledger[prepared.ledger.code == Code.SERIES_NOT_CHOSEN].itertuples()
    assert "sharp: measured" in line.detail
    assert Path(line.file).parts[1] not in {Path(cell).parts[1] for cell in prepared.table.source}
    assert Code.SERIES_KIND not in set(prepared.ledger.code)
    assert len(looks) == 2


def test_only_series_that_is_sharp_by_noise_is_noted(series, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "sharpness", lambda hu, *, spacing: "sharp: measured")
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    (detail,) = prepared.ledger.detail[prepared.ledger.code == Code.SERIES_KIND]
    assert detail.endswith("is bone, sharp: measured")
    assert len(prepared.table) == len(series)


def test_slices_at_one_position_are_the_reason(series, tmp_path, monkeypatch):
    place = read_headers(series[0])[0].position
    for path in series:
        phantoms.rewrite(path, path, ImagePositionPatient=list(place))
    monkeypatch.setattr(module, "head_refusal", lambda hu, *, spacing: "it is a foot")
    with pytest.raises(
        DataError, match=f"{len(series)} slices lie at one position: their positions were lost"
    ):
        read_study(tmp_path / "set")


def test_scan_without_a_head(cq500_root, tmp_path, monkeypatch):
    study, names = several(cq500_root)
    shutil.copytree(study, tmp_path / "set" / "a")
    monkeypatch.setattr(module, "head_refusal", lambda hu, *, spacing: "it is a foot")
    with pytest.raises(DataError, match="no scan has a usable slice"):
        prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    monkeypatch.undo()
    other = next(path for path in cq500_root.glob("CQ500CT*/*/*") if path.parent != study)
    shutil.copytree(other, tmp_path / "set" / "b")
    prepared = prepare("unlabelled", tmp_path / "set", tmp_path / "out", jobs=1)
    assert len(prepared.scans) == 1  # the scan of feet is not looked at again
    ledger = prepared.ledger
    assert (ledger.code == Code.NO_HEAD).sum() == len(names)
    (scan,) = ledger.scan[ledger.code == Code.SCAN_EMPTY]
    assert scan not in prepared.scans.index
    story = explain(tmp_path / "out", scan)
    assert "left out" in story
    assert story.count("it is a foot") == len(names) + 1  # also as the reason of the scan


def test_explain(series, tmp_path):
    phantoms.rewrite(series[4], series[4], PixelData=np.zeros((64, 64), np.int16).tobytes())
    (tmp_path / "set" / "labels.csv").write_text("scan,label\na,1\n")
    prepared = prepare("folder", tmp_path / "set", tmp_path / "out", jobs=1)
    (scan,) = prepared.scans.index
    story = explain(tmp_path / "out", scan).splitlines()
    assert story[0] == scan
    assert explain(tmp_path / "out", "a").splitlines() == story  # as labels.csv may call it
    assert explain(tmp_path / "out", "a/").splitlines() == story  # as a shell completes it
    with pytest.raises(DataError, match=rf"out: has no scan '{scan}x'; .* {scan}"):
        explain(tmp_path / "out", f"{scan}x")
    assert story[1] == f"  patient {prepared.table.patient[0]}, positive"
    assert story[2].startswith(f"  {len(series) - 1} slices in {tmp_path / 'out' / 'scans'}")
    assert story[3] == f"  lowest a/{series[0].name}, highest a/{series[-1].name}"
    assert story[story.index("  refused") + 1].startswith(f"    flat: a/{series[4].name}: all pixels")
    assert story[story.index("  noted") + 1].startswith(f"    gap: a/{series[3].name}: ")

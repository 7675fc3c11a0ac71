"""Sets read as one: each scan with its own pixels, a patient of two sets is one, a name in two is refused."""

import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from pydicom import dcmread

from ich_mil.data.joined import joined
from ich_mil.data.preparation.prepare import prepare
from ich_mil.data.splits import draw_splits
from ich_mil.errors import DataError
from tests import phantoms

pytestmark = pytest.mark.filterwarnings("ignore:Invalid value for VR UI")
BRAIN = (40.0, 80.0)
GREYS = np.random.default_rng(1).integers(0, 256, (3, 16, 16), dtype=np.uint8)


def slices(folder, names, greys=GREYS, patients=None):
    """A prepared set of pictures; all are negative."""
    (folder / "in").mkdir(parents=True)
    for name, grey in zip(names, greys, strict=True):
        Image.fromarray(grey).save(folder / "in" / f"{name}.png")
    table = pd.DataFrame({"slice": names, "label": 0}).assign(**({"patient": patients} if patients else {}))
    table.to_csv(folder / "in" / "labels.csv", index=False)
    return prepare("slices", folder / "in", folder / "out", jobs=1, window=BRAIN)


def test_one_set_is_itself(prepared):
    assert joined([prepared]) is prepared


def test_scans_slices_pixels_and_ledger_are_those_of_the_sets(prepared, tmp_path):
    single = slices(tmp_path, ["a", "b", "c"])
    both = joined([prepared, single])
    assert both.scans.index.tolist() == [*prepared.scans.index, "a", "b", "c"]
    columns = ["patient", "label", "slices", "content"]
    pd.testing.assert_frame_equal(both.scans[columns], pd.concat([prepared.scans, single.scans])[columns])
    scan = prepared.scans.index[1]
    for part, name in ((prepared, scan), (single, "b")):
        assert both.part_of(name) is part
        assert np.array_equal(both.hu(name), part.hu(name))
        assert both.slices(name).reset_index(drop=True).equals(part.slices(name).reset_index(drop=True))
    assert both.folders == prepared.folders | single.folders
    assert both.ledger_by_scan[""] == [*prepared.ledger_by_scan.get("", []), *single.ledger_by_scan[""]]
    with pytest.raises(DataError, match="has no scan 'd'"):
        both.hu("d")


def test_the_fingerprint_is_of_every_set(prepared, tmp_path):
    one, other = (slices(tmp_path / name, ["a", "b", name]) for name in "cd")
    prints = [joined(sets).fingerprint for sets in ([prepared, one], [prepared, other], [one, other][:1])]
    assert len({*prints, prepared.fingerprint}) == 4
    assert joined([prepared, one]).fingerprint == prints[0]


def test_a_patient_of_two_sets_is_one_by_key_or_by_a_slice_and_stays_in_one_split(tmp_path):
    first = slices(tmp_path / "1", ["a", "b", "c"], patients=["p", "q", "r"])
    shared = [GREYS[0].T, GREYS[1], GREYS[2].T]  # the second is b's
    second = slices(tmp_path / "2", ["d", "e", "f"], shared, patients=["p", "s", "t"])
    scans = joined([first, second]).scans
    assert scans.patient["a"] == scans.patient["d"] == first.scans.patient["a"]
    both = f"{first.scans.patient['b']} = {second.scans.patient['e']}"
    assert scans.patient["b"] == scans.patient["e"] == both
    assert scans.patient.nunique() == 4
    scans = scans.assign(label=[0, 0, 0, 1, 1, 0])
    for seed in range(10):
        split = draw_splits(scans, validation=0.4, test=0.0, seed=seed).set_index("scan").split
        assert split["a"] == split["d"]
        assert split["b"] == split["e"]


def test_a_dicom_slice_beside_its_whole_scan_is_refused_and_under_another_name_of_its_patient(
    prepared, rsna_root, tmp_path
):
    source = next(iter(prepared.table.source))
    (tmp_path / "in").mkdir()
    shutil.copy(rsna_root / source, tmp_path / "in" / "one.dcm")
    (tmp_path / "in" / "labels.csv").write_text("slice,label\none,0")
    same = prepare("slices", tmp_path / "in", tmp_path / "same", jobs=1)
    with pytest.raises(DataError, match=rf"{prepared.root} and {same.root}: 1 slices are in both sets: ID_"):
        joined([prepared, same])
    whole = prepare("rsna", rsna_root, tmp_path / "thin", jobs=1, thickness_mm=0)
    other = {"PatientID": "another", "SOPInstanceUID": "9.9", "StudyInstanceUID": "9.8"}
    phantoms.rewrite(tmp_path / "in" / "one.dcm", **other)
    renamed = prepare("slices", tmp_path / "in", tmp_path / "renamed", jobs=1)
    scans = joined([whole, renamed]).scans
    study = dcmread(rsna_root / source, stop_before_pixels=True).StudyInstanceUID
    assert scans.patient["one"] == scans.patient[study]
    assert {renamed.scans.patient["one"], whole.scans.patient[study]} == {*scans.patient["one"].split(" = ")}


def test_a_scan_of_one_name_in_two_sets_is_refused_with_both_sets(tmp_path):
    first = slices(tmp_path / "1", ["a", "b", "c"])
    second = slices(tmp_path / "2", ["c", "d", "e"], GREYS[:, ::-1])
    with pytest.raises(DataError, match=rf"{first.root} and {second.root}: 1 scans are in both sets: c;"):
        joined([first, second])

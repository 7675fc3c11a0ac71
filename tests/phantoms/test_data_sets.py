"""Phantoms: values in their places, labels that agree with masks, and no clue to the label but the image."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pydicom
import pytest
from sklearn.metrics import roc_auc_score

from ich_mil.errors import DataError
from ich_mil.phantoms import data_sets, study
from ich_mil.phantoms.data_sets import main, write_cq500, write_rsna
from ich_mil.phantoms.encoding import ENCODINGS, stored_values
from ich_mil.phantoms.head import SITE_A, SITE_B, draw_head, draw_scanner
from ich_mil.phantoms.study import SUBTYPES, SeriesPlan, make_phantom, make_series
from ich_mil.phantoms.tissue import slice_fields
from ich_mil.study.pixels.hounsfield import to_hu

SEED = 7


def phantom(seed, bleeds=(), site=SITE_A, **how):
    return make_phantom(np.random.default_rng(seed), bleeds=bleeds, site=site, **how)


@pytest.fixture(scope="module")
def pairs():
    """The same head with and without a bleed, by kind."""
    how = {"size": 96, "n_slices": 24}
    without = phantom(SEED, **how)
    return {kind: (phantom(SEED, (kind,), **how), without) for kind in SUBTYPES}


@pytest.fixture(scope="module")
def rsna(tmp_path_factory):
    root = tmp_path_factory.mktemp("rsna") / "set"
    write_rsna(root, n_studies=6, seed=SEED, size=32, n_jobs=1)
    return root


@pytest.fixture(scope="module")
def cq500(tmp_path_factory):
    root = tmp_path_factory.mktemp("cq500") / "set"
    write_cq500(root, n_studies=10, seed=SEED, size=24, n_jobs=1)
    return root


@pytest.mark.parametrize("site", [SITE_A, SITE_B], ids=lambda site: site.name)
def test_tissues_have_their_hu(site):
    rng = np.random.default_rng(SEED)
    head, scanner = draw_head(rng), draw_scanner(rng, site)
    f = slice_fields(head, scanner, 14.0, 192)
    assert np.median(f.hu[:12, :12]) == -1000
    brain = f.hu[(f.depth > 25) & (f.ventricle > 4) & (f.cistern > 4)] - scanner.offset
    assert 22 < np.median(brain) < 36
    inner = f.hu[(f.ventricle < -2.5) & (f.depth > 25)] - scanner.offset
    assert inner.size > 20
    assert 3 < np.median(inner) < 14
    assert f.hu[(f.depth < -1.5) & (f.depth > -3)].max() > 900
    assert np.median(f.hu[(f.depth < -2) & (f.depth > -0.7 * head.skull)]) > 450


@pytest.mark.parametrize("kind", SUBTYPES)
def test_blood_changes_its_mask_alone(pairs, kind):
    with_bleed, without = pairs[kind]
    change = with_bleed.hu.astype(int) - without.hu.astype(int)
    np.testing.assert_array_equal(change != 0, with_bleed.masks > 0)
    assert change[with_bleed.masks > 0].min() >= study.MIN_RISE
    assert set(np.unique(with_bleed.masks)) == {0, 1 + SUBTYPES.index(kind)}
    assert (without.masks.any(), without.label, with_bleed.label) == (False, 0, 1)
    core = change > 0.6 * np.percentile(change[change > 0], 95)
    assert 50 <= np.median(with_bleed.hu[core]) <= 82
    assert np.median(change[core]) >= 22
    area = (with_bleed.masks > 0).sum(axis=(1, 2))
    positive = np.flatnonzero(area)
    assert len(positive) >= study.MIN_POSITIVE_SLICES
    assert area[positive].min() >= study.MIN_FRACTION * with_bleed.brain_area
    assert area.max() >= study.PEAK_FRACTION * with_bleed.brain_area
    assert (
        area[positive[[0, -1]]].min() < 0.7 * area.max()
    )  # it tapers; a basal cistern ends at the skull base
    np.testing.assert_array_equal(with_bleed.slice_labels, area > 0)
    np.testing.assert_array_equal(with_bleed.subtype_labels[:, SUBTYPES.index(kind)], area > 0)


def test_two_bleeds_in_one_head_and_invalid_ones():
    both = phantom(5, ("subdural", "intraparenchymal"), SITE_B, size=64, n_slices=30)
    assert both.subtype_labels.max(axis=0).tolist() == [0, 1, 0, 0, 1]
    with pytest.raises(ValueError, match="subgaleal"):
        phantom(0, ("subgaleal",))
    with pytest.raises(ValueError, match="16 pixels"):
        phantom(0, size=8)


def test_number_of_slices_is_drawn_within_its_range():
    counts = [len(phantom(seed, size=16).hu) for seed in range(12)]
    assert 24 <= min(counts) < 32 < 45 < max(counts) <= 57


@pytest.mark.slow
def test_only_the_image_predicts_the_label():
    """60 scans, half with a bleed: AUC of mean HU, mean grey, position and length."""
    names = [()] * 30 + [(SUBTYPES[k % 5],) for k in range(30)]
    scans = [phantom([11, k], bleeds, size=48) for k, bleeds in enumerate(names)]
    window = [np.clip(scan.hu / 80, 0, 1).mean(axis=(1, 2)) for scan in scans]  # level 40, width 80 HU
    measures = {
        "mean HU of the scan": [scan.hu.mean() for scan in scans],
        "largest mean HU of a slice": [scan.hu.mean(axis=(1, 2)).max() for scan in scans],
        "mean grey of the scan": [w.mean() for w in window],
        "largest mean grey of a slice": [w.max() for w in window],
        "mean HU of soft tissue": [scan.hu[(scan.hu > 0) & (scan.hu < 80)].mean() for scan in scans],
        "number of slices": [len(scan.hu) for scan in scans],
        **{name: [getattr(scan, name) for scan in scans] for name in ("spacing", "tilt", "pixel")},
    }
    labels = [scan.label for scan in scans]
    found = {name: float(roc_auc_score(labels, values)) for name, values in measures.items()}
    assert {name: value for name, value in found.items() if not 0.3 <= value <= 0.7} == {}
    central = [-np.abs(np.linspace(0, 1, len(scan.hu)) - 0.5) for scan in scans]
    truth = [scan.slice_labels for scan in scans]
    assert roc_auc_score(np.concatenate(truth), np.concatenate(central)) < 0.8
    within = [roc_auc_score(a, b) for a, b, label in zip(truth, central, labels, strict=True) if label]
    assert np.mean(within) < 0.88  # 0.851 in the public RSNA test set


def digests(root):
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_same_seed_same_bytes(tmp_path):
    for write in (write_rsna, write_cq500):
        found = []
        for seed, n_jobs in ((SEED, 1), (SEED, 2), (SEED + 1, 1)):
            root = tmp_path / f"{write.__name__} {len(found)}"
            write(root, n_studies=1 + (write is write_rsna), seed=seed, size=16, n_jobs=n_jobs)
            found.append(digests(root))
        assert found[0] == found[1]
        assert not set(found[0].values()) & set(found[2].values())


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.name)
def test_reading_undoes_every_encoding(encoding):
    hu = phantom(2, size=64, n_slices=24).hu[12]
    stored = np.frombuffer(stored_values(hu, encoding), "<i2" if encoding.signed else "<u2").reshape(hu.shape)
    how = {"slope": 1.0, "intercept": float(encoding.intercept), "padding": None}
    back, _ = to_hu(stored, bits_stored=encoding.bits, signed=encoding.signed, **how)
    row, column = np.indices(hu.shape) - (hu.shape[0] - 1) / 2
    seen = (np.hypot(row, column) <= 32) | (encoding.padding is None)
    np.testing.assert_array_equal(back[seen], hu[seen])
    if encoding.padding is not None:
        assert set(stored[~seen].tolist()) == {encoding.padding}
        assert set(back[~seen].tolist()) == {-1024}
    if encoding.bits == 12:
        assert 0 <= stored.min() <= stored.max() < 4096


@pytest.mark.filterwarnings("ignore:Invalid value for VR UI:UserWarning")
def test_rsna_headers(rsna):
    images = [pydicom.dcmread(path) for path in sorted((rsna / "stage_2_train").iterdir())]
    absent = {"SOPClassUID", "SliceThickness", "InstanceNumber", "FrameOfReferenceUID", "PatientName"}
    studies = {}
    for image in images:
        assert re.fullmatch(r"ID_[0-9a-f]{9}", image.SOPInstanceUID)
        assert re.fullmatch(r"ID_[0-9a-f]{10}", image.StudyInstanceUID)
        assert Path(image.filename).stem == image.SOPInstanceUID
        assert not {*absent, "GantryDetectorTilt"} & set(image.dir())
        studies.setdefault(image.StudyInstanceUID, []).append(image)
    assert len(studies) == 6
    assert len({group[0].PatientID for group in studies.values()}) < 6
    first = [group[0] for group in studies.values()]
    signs = {(one.BitsStored, one.PixelRepresentation, float(one.RescaleIntercept)) for one in first}
    assert signs == {(16, 1, -1024.0), (12, 0, -1024.0), (12, 0, 1.0), (16, 1, 0.0)}
    assert {image.file_meta.TransferSyntaxUID.is_implicit_VR for image in images} == {True, False}
    assert any(isinstance(image.WindowCenter, pydicom.multival.MultiValue) for image in images)
    assert {-2000, 30768, -3024} <= {int(np.frombuffer(image.PixelData, "<i2")[0]) for image in images}
    for group in studies.values():
        column = np.array(group[0].ImageOrientationPatient, float)[3:]
        assert np.linalg.norm(column) == pytest.approx(1, abs=2e-6)
        normal = np.cross([1, 0, 0], column)
        places = np.sort([normal @ np.array(image.ImagePositionPatient, float) for image in group])
        steps = np.diff(places)
        np.testing.assert_allclose(steps, steps.mean(), atol=1e-4)  # six decimals in the file
        assert 24 <= len(group) <= 57
    assert any(abs(float(one.ImageOrientationPatient[5])) > 0.05 for one in first)


@pytest.mark.filterwarnings("ignore:Invalid value for VR UI:UserWarning")
def test_rsna_labels_and_pixels(rsna):
    table = pd.read_csv(rsna / "stage_2_train.csv")
    ids = table.ID.str.rsplit("_", n=1, expand=True)
    assert set(ids[1]) == {*SUBTYPES, "any"}
    per_image = ids[0].value_counts()
    assert sorted(per_image[per_image != 6]) == [12] * 4
    files = {path.stem: pydicom.dcmread(path) for path in (rsna / "stage_2_train").iterdir()}
    assert set(per_image.index) == set(files)
    label = table.drop_duplicates("ID").set_index("ID").Label
    by_study = {}
    for image in files.values():
        by_study.setdefault(image.StudyInstanceUID, []).append(image)
    groups = [
        sorted(group, key=lambda one: float(one.ImagePositionPatient[2])) for group in by_study.values()
    ]
    positive = 0
    for plan in data_sets._plan_studies(6, SEED, SITE_A):
        made = phantom([SEED, *SITE_A.name.encode(), 2, plan.index], plan.bleeds, size=32)
        positive += made.label
        seen = np.hypot(*(np.indices(made.hu.shape[1:]) - 15.5)) <= 16
        (group,) = (one for one in groups if np.array_equal(hounsfield(one[0])[seen], made.hu[0][seen]))
        for n in range(0, len(made.hu), 5):
            want = [int(k + 1 in made.masks[n]) for k in range(5)]
            sop = group[n].SOPInstanceUID
            assert [label[f"{sop}_{kind}"] for kind in (*SUBTYPES, "any")] == [*want, max(want)]
            np.testing.assert_array_equal(hounsfield(group[n])[seen], made.hu[n][seen])
            corner, turn = (
                np.array(group[n][f"Image{name}Patient"].value, float) for name in ("Position", "Orientation")
            )
            middle = corner + 15.5 * made.pixel * (turn[:3] + turn[3:])
            height = made.origin_z + n * made.spacing / np.cos(np.deg2rad(made.tilt))
            np.testing.assert_allclose(middle, [0, 0, height], atol=1e-4)
    assert positive == round(0.43 * 6)


def hounsfield(image):
    """HU by the package's own reading, from the stored bytes."""
    stored = np.frombuffer(image.PixelData, "<i2" if image.PixelRepresentation else "<u2")
    how = {"slope": float(image.RescaleSlope), "intercept": float(image.RescaleIntercept), "padding": None}
    shaped, signed = stored.reshape(image.Rows, image.Columns), bool(image.PixelRepresentation)
    return to_hu(shaped, bits_stored=image.BitsStored, signed=signed, **how)[0]


def test_cq500_layout(cq500):
    kinds = set()
    for n in range(10):
        folder = cq500 / f"CQ500CT{n} CQ500CT{n}" / "Unknown Study"
        kinds.add(tuple(sorted(path.name for path in folder.iterdir())))
        for series in folder.iterdir():
            name, files = series.name, sorted(series.iterdir())
            assert [path.name for path in files] == [f"CT{k:06d}.dcm" for k in range(len(files))]
            first, last = pydicom.dcmread(files[0]), pydicom.dcmread(files[-1])
            assert first.SOPClassUID == "1.2.840.10008.5.1.4.1.1.2"
            assert first.SOPInstanceUID.is_valid
            assert (first.InstanceNumber, last.InstanceNumber) == (1, len(files))
            assert first.SeriesDescription == name
            assert float(first.SliceThickness) == (2.0 if "THIN" in name else 5.0)
            assert ("ContrastBolusAgent" in first) == ("CONTRAST" in name)
            assert ("BONE" in name) == (first.ConvolutionKernel == "BONE")
            upward = float(last.ImagePositionPatient[2]) > float(first.ImagePositionPatient[2])
            assert upward == bool(n % 2)
            assert "THIN" in name or 24 <= len(files) <= 57
    assert ("CT PLAIN THIN",) in kinds
    assert any({"CT BONE", "CT POST CONTRAST"} <= set(series) for series in kinds)


def test_majority_of_readers_is_the_truth(cq500):
    reads = pd.read_csv(cq500 / "reads.csv").set_index("name")
    assert sorted(reads.index) == [f"CQ500-CT-{n}" for n in range(10)]
    disputed = 0
    for plan in data_sets._plan_studies(10, SEED, SITE_B):
        row = reads.loc[f"CQ500-CT-{plan.index}"]
        truth = {short: kind in plan.bleeds for short, kind in data_sets.READER_COLUMNS.items()}
        for finding, present in (truth | {"ICH": bool(plan.bleeds)}).items():
            assert (sum(int(row[f"R{reader}:{finding}"]) for reader in (1, 2, 3)) >= 2) == present
        disputed += sum(int(row[f"R{reader}:ICH"]) for reader in (1, 2, 3)) in (1, 2)
    assert disputed == 2


def test_contrast_and_bone_series_show_the_same_head():
    plans = [SeriesPlan(spacing=5.0, **how) for how in ({}, {"contrast": True}, {"bone": True})]
    made = make_series(np.random.default_rng(4), plans, bleeds=("epidural",), site=SITE_B, size=96)
    plain, contrast, bone = (one.hu.astype(int) for one in made)
    assert [one.label for one in made] == [1, 1, 1]
    bright, usual = (((hu > 110) & (hu < 230)).sum() for hu in (contrast, plain))
    assert bright > 1.5 * usual
    soft = ((plain > 10) & (plain < 60))[:, :, 1:]
    rough, smooth = (np.median(np.abs(np.diff(hu, axis=2)[soft])) for hu in (bone, plain))
    assert rough > 2 * smooth  # the bone kernel is noisy


def test_command_writes_both_sites_into_empty_folders(tmp_path, capsys):
    words = [str(tmp_path), "--studies-a", "1", "--studies-b", "1", "--size", "16"]
    main(words)
    counts = [len(list((tmp_path / site).rglob("*.dcm"))) for site in ("site_a", "site_b")]
    assert [int(n) for n in re.findall(r"(\d+) slices", capsys.readouterr().out)] == counts
    for write in (write_rsna, write_cq500):
        with pytest.raises(DataError, match="site_a"):
            write(tmp_path / "site_a", n_studies=1, seed=0, size=16)
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert str(tmp_path / "site_a") in capsys.readouterr().err

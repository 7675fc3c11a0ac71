"""What the objects of all kinds have in common, what the report says, what repeats and what is refused."""

from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from math import dist
from pathlib import Path
from statistics import median

import pytest
from highdicom.sr import ComprehensiveSR, srread
from pydicom import dcmread
from pydicom.config import disable_value_validation
from pydicom.uid import CTImageStorage

from ich_mil.dicom_results import codes, identity
from ich_mil.dicom_results.context import NOMINAL_THICKNESS_MM, StudyContext, read_context
from ich_mil.dicom_results.identity import identify
from ich_mil.dicom_results.structured_report import structured_report
from ich_mil.dicom_results.values import valid_uid
from ich_mil.dicom_results.write import write_dicom_results
from ich_mil.errors import DataError
from ich_mil.ledger import BY_INTERVAL, NOTICE, Code, LedgerEntry
from ich_mil.model.predictions import ScanPrediction, SliceResult
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.preparation.record import prepared_study
from tests import phantoms
from tests.dicom_results.made import few_slices, identity_of, referenced, result_of, sources, write

KINDS = ("capture", "map", "report", "key")
WRITTEN = ("InstanceCreationDate", "InstanceCreationTime", "ContentDate", "ContentTime")
"""All that differs between two times of writing."""


def numbers(group, name) -> dict[str, float]:
    """Values of one name by their derivation, '' for none."""
    found = {}
    for one in group.get_measurements(name=name):
        found["" if one.derivation is None else one.derivation.value] = one.value
    return found


def expected(of: ScanPrediction | SliceResult) -> dict[str, float]:
    low, high = of.interval_95
    return {"373098007": of.probability, "386136009": of.std, "LOW-95": low, "HIGH-95": high}


# the study


def test_objects_have_study_of_sources_and_own_series(made):
    context = read_context(made.scan, made.study)
    series = {}
    for kind in KINDS:
        objects = made.read(kind)
        assert {ds.StudyInstanceUID for ds in objects} == {context.elements.StudyInstanceUID}
        (series[kind],) = {ds.SeriesInstanceUID for ds in objects}
        assert [ds.InstanceNumber for ds in objects] == list(range(1, len(objects) + 1))
        for ds in objects:
            assert {ds.SeriesNumber, ds.Modality} == {
                "capture": {9801, "OT"},
                "map": {9802, "OT"},
                "report": {9803, "SR"},
                "key": {9804, "KO"},
            }[kind]
            assert ds.SpecificCharacterSet == "ISO_IR 192"
            assert NOTICE in ds.SeriesDescription
            assert ds.ManufacturerModelName == made.results.model.name
            assert ds.SoftwareVersions == made.results.model.version
            assert ds.DeviceSerialNumber == made.results.model.weights
            for element in context.elements:
                assert ds[element.tag].value == element.value
    assert len({*series.values()} | {image.series_uid for image in context.images}) == 4 + len(
        {image.series_uid for image in context.images}
    )
    uids = [dcmread(path).SOPInstanceUID for path in made.paths]
    assert len(set(uids)) == len(uids) == 1 + 2 + 2 + 1 + 1


def test_missing_values_of_an_rsna_study(rsna):
    (report,) = rsna.read("report")
    notes = read_context(rsna.scan, rsna.study).notes
    original = [study_and_image(path) for path in rsna.root.glob("*.dcm")]
    study = original[0][0]
    assert study.startswith("ID_")
    assert report.StudyInstanceUID == valid_uid(study)
    assert (report.PatientName, report.StudyDate, report.AccessionNumber) == ("", "", "")
    comments = [item.TextValue for item in report.ContentSequence if item.ValueType == "TEXT"]
    assert comments[-len(notes) :] == list(notes)
    everything = "\n".join(comments)
    assert f"StudyInstanceUID '{study}' is not valid, here it is {valid_uid(study)}." in everything
    missing = "StudyDate, StudyTime, AccessionNumber, ReferringPhysicianName, PatientName, PatientBirthDate"
    assert missing in everything
    assert "SliceThickness is absent" in everything
    assert "FrameOfReferenceUID is absent" in everything
    assert "SOPClassUID is absent" in everything
    # the name an image had can be read beside the one it has here
    groups = srread(rsna.named("report")[0]).content.get_image_measurement_groups()
    assert [group.tracking_identifier for group in groups[1:]] == [
        f"slice {one.slice + 1} of 6 from below ({one.name})" for one in rsna.scan.slices
    ]
    assert {one.name for one in rsna.scan.slices} == {image for _, image in original}


def study_and_image(path: Path) -> tuple[str, str]:
    with disable_value_validation():
        ds = dcmread(path)
        return ds.StudyInstanceUID, ds.SOPInstanceUID


def context_of(root: Path, out: Path) -> StudyContext:
    """Of the one scan below `root`, prepared as it is."""
    prepared = prepare("unlabelled", root, out / "set", jobs=1, thickness_mm=0)
    (scan,) = prepared.scans.index
    return read_context(result_of(prepared, scan), prepared_study(prepared, scan))


def test_patient_and_order_of_a_hospital_are_kept(tmp_path):
    values = {
        "PatientName": "Müller^Jörg",
        "PatientID": "4711",
        "PatientBirthDate": "19501224",
        "PatientSex": "M",
        "PatientAge": "075Y",
        "StudyDate": "20261120",
        "StudyTime": "101530",
        "StudyID": "S1",
        "StudyDescription": "Schädel nativ",
        "ReferringPhysicianName": "Dr^Who",
        "StudyInstanceUID": "1.2.3",
    }
    order, lossy = "1" * 20, {"LossyImageCompression": "01", "LossyImageCompressionMethod": "ISO_10918_1"}
    more = {"SpecificCharacterSet": "ISO_IR 100", "SeriesInstanceUID": "1.2.4", "AccessionNumber": order}
    change = values | more | lossy
    made = write(few_slices(tmp_path, change=lambda path: phantoms.rewrite(path, **change)), tmp_path)
    for path in made.paths:
        ds = dcmread(path)
        assert {keyword: ds[keyword].value for keyword in values} == values
        assert (ds.AccessionNumber, ds.FillerOrderNumberImagingServiceRequest) == ("", order)
        if ds.Modality in ("SR", "KO"):
            (request,) = ds.ReferencedRequestSequence
            assert request.FillerOrderNumberImagingServiceRequest == order
        else:
            assert {keyword: ds[keyword].value for keyword in lossy} == lossy


# numbers


def test_the_report_holds_exact_probabilities(made):
    report = srread(made.named("report")[0])
    scan, *slices = report.content.get_image_measurement_groups()
    assert scan.finding_type is None
    assert numbers(scan, codes.PROBABILITY) == expected(made.scan)
    assert len(slices) == len(made.scan.slices)
    for one, group in zip(made.scan.slices, slices, strict=True):
        assert group.finding_type is None
        assert numbers(group, codes.PROBABILITY) == expected(one)
        assert numbers(group, codes.SCAN_WITHOUT) == {"": one.scan_without}


def test_the_report_refers_to_every_source_image(made):
    context = read_context(made.scan, made.study)
    report = srread(made.named("report")[0])
    _, *slices = report.content.get_image_measurement_groups()
    for place, group in enumerate(slices):
        found = [referenced(image.ReferencedSOPSequence[0]) for image in group.source_images]
        assert found == sources(context, place)
    evidence = {sop for _, _, sop, _ in report.get_evidence()}
    assert evidence == {image.sop_uid for image in context.images}
    assert {series for _, series, _, _ in report.get_evidence()} == {
        image.series_uid for image in context.images
    }


def test_the_report_names_algorithm_and_notice(rsna):
    (report,) = rsna.read("report")
    texts = [item for item in report.ContentSequence if item.ValueType == "TEXT"]
    assert texts[-1].ConceptNameCodeSequence[0].CodeValue == "121106"
    comments = [item.TextValue for item in texts]
    assert any(text.startswith(NOTICE) for text in comments)
    assert f"Decision 'positive': {rsna.results.decided_by}." in comments
    run = "Run of neighbouring slices: 3 to 4 from below. The scan's probability without it: 0.213000."
    assert run in comments
    (container,) = (item for item in report.ContentSequence if item.ValueType == "CONTAINER")
    for group in container.ContentSequence:
        said = {
            item.ConceptNameCodeSequence[0].CodeValue: item.TextValue
            for item in group.ContentSequence
            if item.ValueType == "TEXT"
        }
        assert said["111001"] == "G-VGPMIL α=1 β=2.5, M=100"
        assert said["111003"] == "0.1.0, weights 3f9a01c2d4e5"
    of_scan = [item.TextValue for item in container.ContentSequence[0].ContentSequence if "TextValue" in item]
    assert f"trained on {rsna.results.model.trained_on}" in of_scan
    assert (report.CompletionFlag, report.VerificationFlag) == ("COMPLETE", "UNVERIFIED")
    assert report.ContentTemplateSequence[0].TemplateIdentifier == "1500"


@pytest.mark.parametrize(
    ("decision", "guarantee", "finding", "coded"),
    [
        ("positive", True, True, "Positive"),
        ("positive", False, False, None),
        ("negative", True, False, "Negative"),
        ("negative", False, False, None),
        ("look", True, False, "Undecided, please look"),
        ("look", False, False, "Undecided, please look"),
    ],
)
def test_only_decisions_with_a_guarantee_are_coded(rsna, decision, guarantee, finding, coded):
    """Receivers count findings (121071, DCM) and act on codes; a probability is a measurement."""
    context = read_context(rsna.scan, rsna.study)
    scan = replace(rsna.scan, decision=decision)
    rule = "a guarantee" if guarantee else BY_INTERVAL
    report = structured_report(scan, rule, context, identity_of(rsna, context))
    assert str(report).count("'121071'") == finding
    groups = ComprehensiveSR.from_dataset(report).content.get_image_measurement_groups()
    assert len(groups) == 1 + len(scan.slices)
    meanings = [one.value.meaning for one in groups[0].get_qualitative_evaluations(name=codes.DECISION)]
    assert meanings == ([coded] if coded else [])
    for group in groups:
        for one in group.get_measurements(name=codes.PROBABILITY):
            assert (one.unit, one.method) == (codes.NO_UNITS, codes.OF_HEMORRHAGE)


def test_comments_hold_rule_and_ledger_without_file_names(rsna):
    ledger = tuple(LedgerEntry("s", "DOE^JANE.dcm", code, "x") for code in (Code.GAP, Code.PADDING, Code.GAP))
    context = read_context(rsna.scan, rsna.study)
    scan = replace(rsna.scan, ledger=ledger, unlikeness=1.5)
    report = structured_report(scan, "a promise.", context, identity_of(rsna, context))
    comments = [item.TextValue for item in report.ContentSequence if item.ValueType == "TEXT"]
    assert "Decision 'positive': a promise." in comments  # as long ones end
    assert "Input: Gap between slices (2 times); Corrected: padding set to air." in comments
    assert any(text.startswith("This scan is unlike the training scans") for text in comments)
    assert "DOE" not in str(report)


# again


def content(path: Path) -> str:
    ds = dcmread(path)
    for keyword in WRITTEN:
        del ds[keyword]
    (equipment,) = ds.ContributingEquipmentSequence
    del equipment.ContributionDateTime
    return ds.to_json()


@pytest.mark.parametrize("name", ["rsna", "multi_frame"])
def test_results_written_twice_are_the_same_objects(every, name, folder):
    made = every[name]
    again = made.again(folder)
    assert [path.name for path in again] == [path.name for path in made.paths]
    for old, new in zip(made.paths, again, strict=True):
        assert dcmread(new).SOPInstanceUID == dcmread(old).SOPInstanceUID
        assert content(new) == content(old)


CHANGES = {
    "scan": lambda scan: replace(scan, probability=0.812347),
    "input": lambda scan: replace(scan, ledger=(LedgerEntry("s", "a.dcm", Code.UNREADABLE, ""),)),
    "results": lambda results: replace(results, decided_by="other"),
    "context": lambda context: replace(context, slices=context.slices[1:]),
    "maps": lambda maps: replace(maps, std=maps.std + 1e-6),
    "no maps": lambda maps: None,
}


@pytest.mark.parametrize(("place", "name"), [*zip((0, 0, 1, 2, 3, 3), CHANGES, strict=True)])
def test_other_results_have_other_uids(rsna, place, name):
    case = [rsna.scan, rsna.results, read_context(rsna.scan, rsna.study), rsna.maps]
    old, later = identify(*case, datetime(2026, 11, 21)), identify(*case, datetime(2027, 1, 1))
    assert later.uid("object") == old.uid("object")
    case[place] = CHANGES[name](case[place])
    assert identify(*case, datetime(2026, 11, 21)).uid("series", "MAP") != old.uid("series", "MAP")


def test_uids_do_not_depend_on_file_names(rsna, monkeypatch):
    context, now = read_context(rsna.scan, rsna.study), datetime(2026, 11, 21)

    def digest(*entries):
        ledger = tuple(LedgerEntry("s", file, code, "") for file, code in entries)
        return identify(replace(rsna.scan, ledger=ledger), rsna.results, context, rsna.maps, now).digest

    before = digest(("a.dcm", Code.PADDING), ("b.dcm", Code.FLAT))
    late = [("late", code) for code in (Code.NOT_DICOM, Code.NOT_CT, Code.NOT_AN_IMAGE, Code.LOCALIZER)]
    assert digest(("c.dcm", Code.FLAT), ("d.dcm", Code.PADDING), *late) == before
    assert digest(("a.dcm", Code.PADDING)) != before
    monkeypatch.setattr(identity, "__version__", "of another program")
    assert digest(("a.dcm", Code.PADDING), ("b.dcm", Code.FLAT)) != before


# bad input


def test_changed_sources_are_refused(tmp_path):
    made = write(few_slices(tmp_path), tmp_path, most=0)
    with pytest.raises(DataError, match="are not those of the predictions"):
        made.again(tmp_path / "again", slices=made.scan.slices[1:])
    first, second, *_ = sorted(made.root.glob("*.dcm"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(DataError, match=r"is no longer the image ID_\w+ that was prepared"):
        made.again(tmp_path / "again")
    first.unlink()
    with pytest.raises(DataError, match=f"{first}: a source image can no longer be read"):
        made.again(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_only_missing_values_are_supplied(tmp_path):
    says = [
        {"SliceThickness": 3.0, "FrameOfReferenceUID": "1.2.9", "SOPClassUID": CTImageStorage},
        {"FrameOfReferenceUID": "no UID"},
        {"LossyImageCompression": "00", "LossyImageCompressionMethod": "ISO_10918_1"},
        {"LossyImageCompression": "01", "LossyImageCompressionMethod": "of our own"},
    ]
    rest = iter(says)
    root = few_slices(tmp_path, n=4, change=lambda path: phantoms.rewrite(path, **next(rest)))
    context = context_of(root, tmp_path)
    first, second, third, fourth = context.images
    spacing = round(median(dist(a.position, b.position) for a, b in pairwise(context.slices)), 3)
    assert [one.thickness for one in context.slices] == [3.0, *[pytest.approx(spacing, abs=2e-3)] * 3]
    assert first.frame_of_reference == "1.2.9"
    assert second.frame_of_reference == valid_uid("no UID")
    assert third.frame_of_reference == fourth.frame_of_reference
    assert len({one.frame_of_reference for one in context.images}) == 3
    assert [set(one.supplied) for one in context.images] == [set()] + [
        {"SOPClassUID", "FrameOfReferenceUID"}
    ] * 3
    assert [one.lossy for one in context.images] == [{}] * 3 + [{"LossyImageCompression": "01"}]
    told = "\n".join(context.notes)
    for name in ("SliceThickness", "FrameOfReferenceUID", "SOPClassUID"):
        assert f"{name} is absent" in told


def test_a_single_slice_has_a_nominal_thickness(tmp_path):
    made = write(few_slices(tmp_path, n=1), tmp_path)
    context = read_context(made.scan, made.study)
    assert context.slices[0].thickness == NOMINAL_THICKNESS_MM
    (ds, _) = made.read("map")
    assert ds.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].SliceThickness == 5
    assert "SliceThickness is absent: 5.000 mm, a nominal value." in context.notes


def predecessors(report):
    """UIDs of study, series and object of each predecessor."""
    return [
        (study.StudyInstanceUID, series.SeriesInstanceUID, item.ReferencedSOPInstanceUID)
        for study in report.get("PredecessorDocumentsSequence", ())
        for series in study.ReferencedSeriesSequence
        for item in series.ReferencedSOPSequence
    ]


def test_a_new_report_names_its_predecessor(rsna, folder):
    (older,) = rsna.read("report")
    scan = replace(rsna.scan, probability=0.5)
    write_dicom_results(scan, rsna.results, rsna.study, None, folder, replaced=rsna.paths)
    newer = srread(folder / "report-1.dcm")
    assert predecessors(newer) == [(older.StudyInstanceUID, older.SeriesInstanceUID, older.SOPInstanceUID)]

    context = read_context(rsna.scan, rsna.study)
    again = structured_report(rsna.scan, BY_INTERVAL, context, identity_of(rsna, context), [older])
    assert again.SOPInstanceUID == older.SOPInstanceUID  # an object that changes no result makes no successor
    assert predecessors(again) == []

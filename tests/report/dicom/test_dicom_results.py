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
from pydicom.sr.codedict import codes as standard
from pydicom.uid import CTImageStorage

from ich_mil.data.preparation.prepare import prepare
from ich_mil.errors import DataError
from ich_mil.ledger import BY_INTERVAL, NOTICE, Code, LedgerEntry
from ich_mil.report.dicom import codes, identity
from ich_mil.report.dicom.context import NOMINAL_THICKNESS_MM, StudyContext, read_context
from ich_mil.report.dicom.identity import identify
from ich_mil.report.dicom.structured_report import structured_report
from ich_mil.report.dicom.values import valid_uid
from ich_mil.report.dicom.write import write_dicom_results
from ich_mil.runs.predictions import ScanResult, SliceResult
from tests import phantoms
from tests.report.dicom.made import few_slices, identity_of, one_file, referenced, result_of, sources, write

KINDS = ("capture", "map", "report", "key")
WRITTEN = ("InstanceCreationDate", "InstanceCreationTime", "ContentDate", "ContentTime")
"""All that differs between two times of writing."""


def numbers(group, name) -> dict[str, float]:
    """Values of one name by their derivation, '' for none."""
    found = {}
    for one in group.get_measurements(name=name):
        found["" if one.derivation is None else one.derivation.value] = one.value
    return found


def expected(of: ScanResult | SliceResult) -> dict[str, float]:
    low, high = of.interval_95
    return {"373098007": of.probability, "386136009": of.std, "LOW-95": low, "HIGH-95": high}


# the study


def test_every_object_is_of_the_study_of_its_sources_and_of_a_series_of_its_own(made):
    context = read_context(made.scan, made.prepared)
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


def test_a_patient_of_a_hospital_comes_back_as_it_is(tmp_path):
    root = few_slices(
        tmp_path,
        change=lambda path: phantoms.rewrite(
            path,
            SpecificCharacterSet="ISO_IR 100",
            PatientName="Müller^Jörg",
            PatientID="4711",
            PatientBirthDate="19501224",
            PatientSex="M",
            PatientAge="075Y",
            StudyDate="20261120",
            StudyTime="101530",
            StudyID="S1",
            AccessionNumber="A-17",
            StudyDescription="Schädel nativ",
            ReferringPhysicianName="Dr^Who",
            StudyInstanceUID="1.2.3",
            SeriesInstanceUID="1.2.4",
        ),
    )
    made = write(root, tmp_path)
    for path in made.paths:
        ds = dcmread(path)
        assert (ds.PatientName, ds.PatientID, ds.PatientBirthDate) == ("Müller^Jörg", "4711", "19501224")
        assert (ds.PatientSex, ds.PatientAge, ds.StudyInstanceUID) == ("M", "075Y", "1.2.3")
        assert (ds.StudyDate, ds.StudyTime, ds.StudyID) == ("20261120", "101530", "S1")
        assert (ds.AccessionNumber, ds.StudyDescription) == ("A-17", "Schädel nativ")
        assert ds.ReferringPhysicianName == "Dr^Who"


def test_what_an_rsna_study_lacks_is_supplied_and_told(rsna):
    (report,) = rsna.read("report")
    notes = read_context(rsna.scan, rsna.prepared).notes
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
    return read_context(result_of(prepared, scan), prepared)


def test_every_object_keeps_an_order_whose_number_is_too_long(tmp_path):
    def change(path: Path) -> None:
        with disable_value_validation():
            phantoms.rewrite(path, AccessionNumber="12345678901234567890")

    made = write(few_slices(tmp_path, change=change), tmp_path)
    for kind in ("capture", "map", "report", "key"):
        for ds in made.read(kind):
            assert (ds.AccessionNumber, ds.FillerOrderNumberImagingServiceRequest) == (
                "",
                "12345678901234567890",
            )
            if kind in ("report", "key"):
                (request,) = ds.ReferencedRequestSequence
                assert request.FillerOrderNumberImagingServiceRequest == "12345678901234567890"
                assert request.StudyInstanceUID == ds.StudyInstanceUID
    assert "(0040,2017)" in str(made.read("report")[0])


# numbers


def test_the_report_says_the_probabilities_to_the_last_digit(made):
    report = srread(made.named("report")[0])
    scan, *slices = report.content.get_image_measurement_groups()
    assert scan.finding_type is None
    assert numbers(scan, codes.PROBABILITY) == expected(made.scan)
    assert len(slices) == len(made.scan.slices)
    for one, group in zip(made.scan.slices, slices, strict=True):
        assert group.finding_type is None
        assert numbers(group, codes.PROBABILITY) == expected(one)
        assert numbers(group, codes.SCAN_WITHOUT) == {"": one.scan_without}


def test_the_report_refers_to_every_image_a_slice_was_made_from(made):
    context = read_context(made.scan, made.prepared)
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


def test_references_are_the_uids_of_the_files(cq500):
    (report,) = cq500.read("report")
    files = {dcmread(path).SOPInstanceUID for path in cq500.root.rglob("*.dcm")}
    (study,) = report.CurrentRequestedProcedureEvidenceSequence
    (series,) = study.ReferencedSeriesSequence
    uids = {item.ReferencedSOPInstanceUID for item in series.ReferencedSOPSequence}
    assert uids < files  # another series of the study stands for nothing
    assert uids == {one.name for one in cq500.scan.slices}
    assert {item.ReferencedSOPClassUID for item in series.ReferencedSOPSequence} == {CTImageStorage}


def test_the_report_names_the_algorithm_its_version_and_the_notice(rsna):
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
    ("concept", "meant"),
    [
        (codes.HEMORRHAGE, standard.SCT.IntracranialHemorrhage),
        (codes.HEAD, standard.SCT.Head),
        (codes.CT_HEAD, standard.LN.HeadCT),
        (codes.PROBABILITY, standard.DCM.Probability),
        (codes.NO_UNITS, standard.UCUM.NoUnits),
        (codes.OF_INTEREST, standard.DCM.OfInterest),
        (codes.DECISIONS["positive"], standard.SCT.Positive),
        (codes.DECISIONS["negative"], standard.SCT.Negative),
    ],
)
def test_codes_mean_what_they_say_in_their_scheme(concept, meant):
    assert (concept.value, concept.scheme_designator) == (meant.value, meant.scheme_designator)


MEANING = {"positive": "Positive", "negative": "Negative", "look": "Undecided, please look"}


@pytest.mark.parametrize(
    ("decision", "decided_by", "found"),
    [
        ("positive", "a promise", 1),
        ("positive", BY_INTERVAL, 0),
        ("negative", "a promise", 0),
        ("negative", BY_INTERVAL, 0),
        ("look", "a promise", 0),
        ("look", BY_INTERVAL, 0),
    ],
)
def test_a_finding_is_coded_where_thresholds_with_a_guarantee_say_so(rsna, decision, decided_by, found):
    """A receiver counts the findings (121071, DCM); a probability is a measurement, of hemorrhage."""
    context = read_context(rsna.scan, rsna.prepared)
    scan = replace(rsna.scan, decision=decision)
    report = structured_report(scan, decided_by, context, identity_of(rsna, context))
    concepts = [
        (item.ConceptNameCodeSequence[0].CodeValue, item.ValueType)
        for element in report.iterall()
        if element.keyword == "ContentSequence"
        for item in element.value
        if "ConceptNameCodeSequence" in item
    ]
    assert concepts.count(("121071", "CODE")) == found
    read = ComprehensiveSR.from_dataset(report)
    groups = read.content.get_image_measurement_groups(finding_type=codes.HEMORRHAGE)
    assert [group.tracking_identifier for group in groups] == ["scan"] * found
    groups = read.content.get_image_measurement_groups()
    assert len(groups) == 1 + len(scan.slices)
    meanings = [one.value.meaning for one in groups[0].get_qualitative_evaluations(name=codes.DECISION)]
    # without a guarantee nothing that a program may act upon
    assert meanings == ([] if decided_by == BY_INTERVAL and decision != "look" else [MEANING[decision]])
    for group in groups:
        for one in group.get_measurements(name=codes.PROBABILITY):
            assert one.unit == codes.NO_UNITS
            assert one.method == codes.OF_HEMORRHAGE


def test_comments_hold_the_promise_and_the_ledger_without_its_file_names(rsna):
    ledger = tuple(LedgerEntry("s", "DOE^JANE.dcm", code, "x") for code in (Code.GAP, Code.PADDING, Code.GAP))
    context = read_context(rsna.scan, rsna.prepared)
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
def test_the_same_results_written_twice_are_the_same_objects(every, name, folder):
    made = every[name]
    again = made.again(folder)
    assert [path.name for path in again] == [path.name for path in made.paths]
    for old, new in zip(made.paths, again, strict=True):
        assert dcmread(new).SOPInstanceUID == dcmread(old).SOPInstanceUID
        assert content(new) == content(old)


@pytest.mark.slow
def test_the_same_images_in_files_of_other_names_make_the_same_objects(rsna, folder):
    """As they come again in another transfer syntax, or lie in another folder."""
    elsewhere = folder / "study" / "CT"
    elsewhere.mkdir(parents=True)
    for number, path in enumerate(sorted(rsna.root.glob("*.dcm"))):
        (elsewhere / f"{number}.dcm").write_bytes(path.read_bytes())
    other = write(elsewhere.parent, folder)
    written, said = [], []
    for made in (rsna, other):
        (lines,) = made.prepared.ledger_by_scan.values()
        said.append({entry["file"] for entry in lines})
        ledger = tuple(LedgerEntry(**{**entry, "code": Code(entry["code"])}) for entry in lines)
        written.append([content(path) for path in made.again(folder / str(len(said)), ledger=ledger)])
    assert said[0] != said[1]
    assert written[0] == written[1]


def test_what_was_said_of_the_input_is_part_of_the_result_but_not_how_nor_of_which_file(rsna):
    context = read_context(rsna.scan, rsna.prepared)

    def digest(*entries):
        ledger = tuple(LedgerEntry("s", file, code, detail) for file, code, detail in entries)
        scan = replace(rsna.scan, ledger=ledger)
        return identify(scan, rsna.results, context, rsna.maps, datetime(2026, 11, 21)).digest

    said = digest(("a.dcm", Code.PADDING, "868 pixels"), ("b.dcm", Code.FLAT, ""))
    assert digest(("c.dcm", Code.FLAT, ""), ("d.dcm", Code.PADDING, "9 pixels")) == said
    assert digest(("a.dcm", Code.PADDING, "868 pixels"), ("b.dcm", Code.NOISE, "")) != said
    assert digest(*2 * [("a.dcm", Code.PADDING, "868 pixels")], ("b.dcm", Code.FLAT, "")) != said


def test_all_objects_are_written_at_one_moment(rsna):
    moments = set()
    for path in rsna.paths:
        ds = dcmread(path)
        moments.add((ds.ContentDate, ds.ContentTime))
        assert (ds.InstanceCreationDate, ds.InstanceCreationTime) == (ds.ContentDate, ds.ContentTime)
        assert "DateOfSecondaryCapture" not in ds
        (equipment,) = ds.ContributingEquipmentSequence
        assert equipment.ContributionDateTime == ds.ContentDate + ds.ContentTime
    assert len(moments) == 1


def with_first_image(context, **changes):
    first, *others = context.slices
    image = replace(first.images[0], **changes)
    return replace(context, slices=(replace(first, images=(image, *first.images[1:])), *others))


def test_other_results_are_other_objects_in_other_series(rsna, monkeypatch):
    context = read_context(rsna.scan, rsna.prepared)
    assert rsna.maps is not None
    now = datetime(2026, 11, 21)
    other_slice = replace(rsna.scan.slices[0], probability=0.000001)
    turned = replace(context.slices[0].images[0].header, orientation=(-1.0, 0.0, 0.0, 0.0, 1.0, 0.0))
    cases = [
        (rsna.scan, rsna.results, context, rsna.maps),
        (replace(rsna.scan, probability=0.812347), rsna.results, context, rsna.maps),
        (replace(rsna.scan, slices=(other_slice, *rsna.scan.slices[1:])), rsna.results, context, rsna.maps),
        (
            rsna.scan,
            replace(rsna.results, model=replace(rsna.results.model, weights="0")),
            context,
            rsna.maps,
        ),
        (rsna.scan, replace(rsna.results, decided_by="a promise"), context, rsna.maps),
        (rsna.scan, rsna.results, context, None),
        (rsna.scan, rsna.results, context, replace(rsna.maps, std=rsna.maps.std + 1e-6)),
        (rsna.scan, rsna.results, context, replace(rsna.maps, mean=rsna.maps.mean + 1e-6)),
        (rsna.scan, rsna.results, context, replace(rsna.maps, slices=rsna.maps.slices + 1)),
        (rsna.scan, rsna.results, replace(context, slices=context.slices[1:]), rsna.maps),
        (rsna.scan, rsna.results, with_first_image(context, frame=2), rsna.maps),
        (rsna.scan, rsna.results, with_first_image(context, sop_uid="1.2"), rsna.maps),
        (rsna.scan, rsna.results, with_first_image(context, header=turned), rsna.maps),
    ]
    identities = [identify(*case, now) for case in cases]
    assert len({identity.digest for identity in identities}) == len(cases)
    assert len({identity.uid("series", "MAP") for identity in identities}) == len(cases)
    later = identify(*cases[0], datetime(2027, 1, 1))
    assert later.uid("object") == identities[0].uid("object")
    for part in ("name", "version", "weights"):
        other = replace(identities[0], model=replace(identities[0].model, **{part: "x"}))
        assert other.device_uid != identities[0].device_uid
    monkeypatch.setattr(identity, "__version__", "of another program")
    assert identify(*cases[0], now).digest not in {one.digest for one in identities}


# bad input


def test_a_source_that_is_gone_is_named_with_what_to_do(tmp_path):
    made = write(few_slices(tmp_path), tmp_path, most=0)
    path = next(iter(sorted(made.root.glob("*.dcm"))))
    content = path.read_bytes()
    path.unlink()
    message = f"{path}: a source image can no longer be read .*put the study back"
    with pytest.raises(DataError, match=message) as error:
        made.again(tmp_path / "again")
    assert str(error.value).count(path.name) == 1
    assert "\n" not in str(error.value)
    assert not (tmp_path / "again").exists()
    path.write_bytes(content[:500])
    with pytest.raises(DataError, match="can no longer be read"):
        made.again(tmp_path / "again")


def test_a_source_that_is_another_image_now_is_refused(tmp_path):
    made = write(few_slices(tmp_path), tmp_path, most=0)
    first, second, *_ = sorted(made.root.glob("*.dcm"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(DataError, match=r"is no longer the image ID_\w+ that was prepared"):
        made.again(tmp_path / "again")


def test_results_of_another_scan_are_refused(rsna, folder):
    with pytest.raises(DataError, match="are not those of the predictions"):
        rsna.again(folder, slices=rsna.scan.slices[1:])
    with pytest.raises(DataError, match="are not those of the predictions"):
        rsna.again(folder, slices=rsna.scan.slices[::-1])
    with pytest.raises(DataError, match="'elsewhere' are not those"):
        rsna.again(folder, scan="elsewhere")


def test_each_image_keeps_what_it_says_and_only_the_rest_is_supplied(tmp_path):
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


@pytest.mark.parametrize("level", ["StudyInstanceUID", "SeriesInstanceUID"])
def test_each_series_of_each_study_has_a_frame_of_reference_of_its_own(tmp_path, level):
    frames = set()
    for name, changes in (("this", {}), ("other", {level: "1.2.3"})):
        (tmp_path / name).mkdir()
        root = few_slices(tmp_path / name, n=2, change=lambda path, c=changes: phantoms.rewrite(path, **c))
        frames |= {image.frame_of_reference for image in context_of(root, tmp_path / name).images}
    assert len(frames) == 2


def test_a_file_that_has_lost_a_frame_is_refused(tmp_path):
    root = one_file(few_slices(tmp_path, n=4), tmp_path / "one")
    prepared = prepare("unlabelled", root, tmp_path / "set", jobs=1, thickness_mm=0)
    scan = result_of(prepared, prepared.scans.index[0])
    whole = dcmread(root / "enhanced.dcm")
    whole.NumberOfFrames = 3
    whole.PerFrameFunctionalGroupsSequence = whole.PerFrameFunctionalGroupsSequence[:3]
    whole.PixelData = whole.PixelData[: len(whole.PixelData) // 4 * 3]
    whole.save_as(root / "enhanced.dcm")
    with pytest.raises(DataError, match=r"is no longer the image 1\.2\.3\.1"):
        read_context(scan, prepared)


def test_averaged_slices_without_a_thickness_abut(averaged):
    slices = read_context(averaged.scan, averaged.prepared).slices
    steps = [dist(a.position, b.position) for a, b in pairwise(slices)]
    assert {len(one.images) for one in slices} == {2}
    assert [one.thickness for one in slices] == pytest.approx([median(steps)] * len(slices), abs=2e-3)


def test_a_single_slice_has_a_nominal_thickness(tmp_path):
    made = write(few_slices(tmp_path, n=1), tmp_path)
    context = read_context(made.scan, made.prepared)
    assert context.slices[0].thickness == NOMINAL_THICKNESS_MM
    (ds, _) = made.read("map")
    assert ds.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].SliceThickness == 5
    assert "SliceThickness is absent: 5.000 mm, a nominal value." in context.notes


@pytest.mark.parametrize("last_only", [False, True])
def test_lossy_compression_of_the_sources_is_passed_on(tmp_path, last_only):
    seen = []

    def compress(path):
        seen.append(path)
        if not last_only or len(seen) == 3:
            phantoms.rewrite(
                path,
                LossyImageCompression="01",
                LossyImageCompressionRatio="12.5",
                LossyImageCompressionMethod="ISO_10918_1",
            )

    made = write(few_slices(tmp_path, change=compress), tmp_path)
    summary = made.read("capture")[:1] if last_only else made.read("capture")
    for ds in made.read("map") + summary:
        assert (ds.LossyImageCompression, ds.LossyImageCompressionRatio) == ("01", 12.5)
        assert ds.LossyImageCompressionMethod == "ISO_10918_1"


@pytest.mark.parametrize("code", [Code.NOT_DICOM, Code.NOT_CT, Code.NOT_AN_IMAGE, Code.LOCALIZER])
def test_a_dose_report_that_comes_later_makes_no_other_object(rsna, code):
    context = read_context(rsna.scan, rsna.prepared)
    now = datetime(2026, 11, 21)

    def series(code):
        ledger = (*rsna.scan.ledger, LedgerEntry(rsna.scan.scan, "late.dcm", code, "came later"))
        return identify(replace(rsna.scan, ledger=ledger), rsna.results, context, rsna.maps, now).uid(
            "series"
        )

    before = identify(rsna.scan, rsna.results, context, rsna.maps, now).uid("series")
    assert series(code) == before
    assert series(Code.UNREADABLE) != before


def predecessors(report):
    """UIDs of study, series and object of each predecessor."""
    return [
        (study.StudyInstanceUID, series.SeriesInstanceUID, item.ReferencedSOPInstanceUID)
        for study in report.get("PredecessorDocumentsSequence", ())
        for series in study.ReferencedSeriesSequence
        for item in series.ReferencedSOPSequence
    ]


def test_the_report_of_a_study_that_grew_names_the_report_it_replaces(rsna, folder):
    (older,) = rsna.read("report")
    scan, hu = replace(rsna.scan, probability=0.5), rsna.prepared.hu(rsna.scan.scan)
    write_dicom_results(scan, rsna.results, rsna.prepared, hu, None, folder, replaced=rsna.paths)
    newer = srread(folder / "report-1.dcm")
    assert predecessors(newer) == [(older.StudyInstanceUID, older.SeriesInstanceUID, older.SOPInstanceUID)]

    context = read_context(rsna.scan, rsna.prepared)
    again = structured_report(rsna.scan, BY_INTERVAL, context, identity_of(rsna, context), [older])
    assert again.SOPInstanceUID == older.SOPInstanceUID  # an object that changes no result makes no successor
    assert predecessors(again) == []

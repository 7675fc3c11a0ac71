"""Every kind of file that is refused by its header, with its code."""

from pathlib import Path

import pytest
from pydicom.config import disable_value_validation
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.uid import ExplicitVRLittleEndian, RLELossless

from ich_mil.errors import DicomError
from ich_mil.ledger import INCOMPLETE, PROBLEMS, Code
from ich_mil.study.files.header import read_headers
from ich_mil.study.files.refusal import refusal_of
from tests.study.encodings import SIGNED, enhanced
from tests.study.small_files import STORED, ct_slice, read, refused, write, write_frames

SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
ENHANCED_CT = "1.2.840.10008.5.1.4.1.1.2.1"
DICOMDIR = "1.2.840.10008.1.3.10"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"Modality": "MR"}, Code.NOT_CT),
        ({"Modality": None, "SOPClassUID": None}, Code.NOT_CT),
        ({"SOPClassUID": SECONDARY_CAPTURE}, Code.NOT_CT),
        ({"SamplesPerPixel": 3}, Code.NOT_CT),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, Code.NOT_CT),
        ({"SOPClassUID": ENHANCED_CT}, Code.MULTI_FRAME),  # without functional groups
        ({"NumberOfFrames": 2}, Code.MULTI_FRAME),
        ({"ImageType": ["ORIGINAL", " Localizer ", "CT_SOM5 TOP"]}, Code.LOCALIZER),
        ({"SOPClassUID": DICOMDIR, "Modality": None, "Rows": None}, Code.NOT_AN_IMAGE),
        ({"StudyInstanceUID": None}, Code.NO_UID),
        ({"SeriesInstanceUID": ""}, Code.NO_UID),
        *(({"ImagePositionPatient": mm}, Code.NO_GEOMETRY) for mm in (None, [1, "nan", 2], [0, -100001, 0])),
        *(({"PixelSpacing": mm}, Code.NO_GEOMETRY) for mm in (None, [0.5, 100.1], [0.0009, 0.5])),
        ({"ImageOrientationPatient": None}, Code.NO_GEOMETRY),
        ({"ImageOrientationPatient": [1, 0, 0, 0, 1.01, 0]}, Code.NO_GEOMETRY),
        ({"ImageOrientationPatient": [1, 0, 0, -0.6, 0.8, 0]}, Code.NO_GEOMETRY),
        ({"Rows": None}, Code.UNREADABLE),
        ({"PixelData": None}, Code.UNREADABLE),
        ({"PixelData": STORED.tobytes()[:-4]}, Code.UNREADABLE),
        ({"Rows": 4097, "PixelData": bytes(2 * 4 * 4097)}, Code.UNREADABLE),
        ({"BitsAllocated": 32, "PixelData": bytes(64)}, Code.UNREADABLE),
        ({"BitsStored": 17}, Code.UNREADABLE),
        ({"RescaleIntercept": None}, Code.NO_HU_SCALE),
        ({"RescaleSlope": 0}, Code.NO_HU_SCALE),
        ({"RescaleType": "HU_MOD"}, Code.NO_HU_SCALE),
        ({"ImageType": ["DERIVED", "SECONDARY", "PERFUSION"]}, Code.NO_HU_SCALE),
    ],
)
def test_refused_by_the_header(tmp_path, changes, code):
    path = write(tmp_path, preamble=False, **changes)
    assert refused(read_headers, path) == code
    assert refused(read, path) == code


def test_a_frame_that_is_a_localizer_is_refused(tmp_path):
    ds = enhanced([STORED, STORED], [SIGNED, SIGNED])
    kind = Dataset()
    with disable_value_validation():
        kind.FrameType = ["ORIGINAL", "PRIMARY", " Localizer", "NONE"]
    ds.PerFrameFunctionalGroupsSequence[1].CTImageFrameTypeSequence = [kind]
    # the others may be slices
    assert refused(read_headers, write_frames(tmp_path, ds)) == Code.MULTI_FRAME
    ds.PerFrameFunctionalGroupsSequence[0].CTImageFrameTypeSequence = [kind]
    assert refused(read_headers, write_frames(tmp_path, ds)) == Code.LOCALIZER


@pytest.mark.parametrize("unit", ["US", "HU_MOD"])
def test_a_frame_of_another_unit_is_refused(tmp_path, unit):
    ds = enhanced([STORED, STORED], [SIGNED, SIGNED])
    del ds.PerFrameFunctionalGroupsSequence[0].PixelValueTransformationSequence[0].RescaleType
    assert len(read_headers(write_frames(tmp_path, ds))) == 2
    ds.PerFrameFunctionalGroupsSequence[1].PixelValueTransformationSequence[0].RescaleType = unit
    assert refused(read_headers, write_frames(tmp_path, ds)) == Code.NO_HU_SCALE


def test_damaged_frames_are_refused_by_the_header(tmp_path):
    path = write_frames(tmp_path, enhanced([STORED, STORED], [SIGNED, SIGNED]))
    first, second = read_headers(path)
    assert (first.frame, first.thickness, first.position) == (0, 5.0, (-125.0, -120.5, 30.0))
    assert (second.frame, second.thickness, second.position) == (1, 5.0, (-125.0, -120.5, 35.0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])  # within the second frame
    assert refused(read_headers, path) == Code.UNREADABLE
    path.write_bytes(whole.replace(b"-120.5\\35.0", b"nan   \\35.0"))
    assert refused(read_headers, path) == Code.NO_GEOMETRY


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", Code.UNREADABLE),  # it may have been a slice
        (bytes(100), Code.UNREADABLE),
        (b"ID,Label\n" * 100, Code.NOT_DICOM),
        (b"\0\5\x16\7\0\2\0\0Mac OS X", Code.NOT_DICOM),
    ],
    ids=["empty", "zeros", "text", "AppleDouble"],
)
def test_not_dicom(tmp_path, content, code):
    path = tmp_path / "._x.dcm"
    path.write_bytes(content)
    assert refused(read_headers, path) == code
    assert refused(read, path) == code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("CT.zip", Code.NOT_OPENED),
        ("IM0001.dcm.gz", Code.NOT_OPENED),
        ("mask.nii.gz", Code.NOT_DICOM),
        ("report.docx", Code.NOT_DICOM),
        ("", Code.NOT_OPENED),  # a folder
    ],
)
def test_an_archive_may_hold_slices(tmp_path, name, code):
    path = tmp_path / name
    if name:
        path.write_bytes(b"PK\3\4" + bytes(range(1, 200)))
    assert refused(read_headers, path) == code


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (MemoryError(), Code.NOT_OPENED, "there is too little memory"),
        (PermissionError(13, "as raised"), Code.NOT_OPENED, "Permission denied"),
        (OSError("of pydicom, without a number"), Code.UNREADABLE, "of pydicom, without a number"),
        (ValueError("two\n lines"), Code.UNREADABLE, "two lines"),
        (ValueError("9" * 200), Code.UNREADABLE, "9" * 160),
    ],
)
def test_errors_of_system_and_damaged_file(error, code, reason):
    refused = refusal_of(Path("a.dcm"), error, failed="it failed")
    assert (refused.code, str(refused).rpartition(": ")[2]) == (code, reason)


@pytest.mark.parametrize("changes", [{}, {"SOPClassUID": None}], ids=["whole", "as RSNA"])
def test_truncated_slices_are_unreadable(tmp_path, changes):
    """Neither another kind of file, of which nobody would know that it was a slice, nor of half a UID."""
    path, ds = tmp_path / "slice.dcm", ct_slice(**changes)
    ds.preamble = bytes(128)
    ds.save_as(path)
    whole, (header,) = path.read_bytes(), read_headers(path)
    for n in range(len(changes), len(whole) - 1, 7):
        path.write_bytes(whole[:n])
        with pytest.raises(DicomError) as caught:
            read(path)
        assert caught.value.code == Code.UNREADABLE, n
        assert caught.value.study_uid in ("", header.study_uid), n
        assert caught.value.sop_uid in ("", header.sop_uid), n


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("._IM-0001-0001.dcm", Code.NOT_DICOM),
        ("enhancedCT_perfusion_map_2frames.dcm", Code.NO_HU_SCALE),
        ("philips_DIRFILE_no_modality", Code.NOT_AN_IMAGE),
        ("philips_dose_report_SC_RGB_I50", Code.NOT_CT),
        ("philips_localizer_I10", Code.LOCALIZER),
    ],
)
def test_oddities_are_refused(shared_data, name, code):
    assert refused(read_headers, shared_data / "oddities" / name) == code
    assert refused(read, shared_data / "oddities" / name) == code


WITHOUT_PLACE = {"ImagePositionPatient": None, "ImageOrientationPatient": None}
NO_SLICE = dict.fromkeys(["KVP", "SliceThickness", "ConvolutionKernel", "RescaleSlope", "RescaleIntercept"])


@pytest.mark.parametrize(
    "changes",
    [
        {"ImageType": ["DERIVED", "SECONDARY", "SCREEN SAVE"]},
        {"ImageType": ["ORIGINAL", "SECONDARY", "OTHER", "CT_SOM5 PROT"]},
        {"ImageType": ["DERIVED", "SECONDARY", "DOSE_INFO"]},
        *(
            {"SeriesDescription": text}
            for text in (
                "Dose Report",
                "Patient Protocol",
                "Dose Info",
                "Screen Captures",
                "Exam Summary",
                "Protocolo paciente",
                "Dosimétrie",
                "Bildschirmkopie",
                "Copie écran",
            )
        ),
        {"SeriesDescription": "Results", **NO_SLICE},
        {"ImageType": None, "SeriesDescription": None, "PixelSpacing": None, **NO_SLICE},
    ],
)
def test_dose_sheets_have_no_effect_on_the_decision(tmp_path, changes):
    path = write(tmp_path, **(WITHOUT_PLACE | changes))
    assert refused(read_headers, path) == Code.CAPTURE
    assert Code.CAPTURE not in PROBLEMS


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ImageType": None},
        {"ImageType": ["DERIVED", "SECONDARY", "AXIAL"]},
        {"SeriesDescription": "CT PLAIN PROTECT"},
        *(
            {**NO_SLICE, "ImageType": None, name: value}
            for name, value in (("KVP", "120"), ("SliceThickness", 5))
        ),
    ],
)
def test_slices_that_lost_their_place_leave_studies_incomplete(tmp_path, changes):
    assert refused(read_headers, write(tmp_path, **(WITHOUT_PLACE | changes))) == Code.NO_GEOMETRY
    assert Code.NO_GEOMETRY in INCOMPLETE


def test_slices_with_position_are_no_dose_sheets(tmp_path):
    (header,) = read_headers(write(tmp_path, SeriesDescription="Low Dose Head Protocol"))
    assert header.description == "Low Dose Head Protocol"


@pytest.mark.parametrize(
    ("written", "named", "words"),
    [
        (RLELossless, ExplicitVRLittleEndian, "are compressed, its transfer syntax is Explicit VR"),
        (ExplicitVRLittleEndian, RLELossless, "are not compressed, its transfer syntax is RLE"),
    ],
)
def test_pixel_data_of_another_transfer_syntax(tmp_path, written, named, words):
    image = ct_slice()
    image.file_meta.TransferSyntaxUID = written
    if written == RLELossless:
        image.PixelData = encapsulate([bytes(64)])
    image["PixelData"].VR = "OB" if written == RLELossless else "OW"
    path = tmp_path / "slice.dcm"
    image.save_as(path, enforce_file_format=True)
    path.write_bytes(path.read_bytes().replace(written.encode(), named.encode(), 1))
    with pytest.raises(DicomError, match=words) as caught:
        read_headers(path)
    assert caught.value.code == Code.UNREADABLE

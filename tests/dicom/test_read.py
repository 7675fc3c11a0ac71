"""Every kind of file that is refused, with its code; what a header becomes; real files."""

import math
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.config import disable_value_validation
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels import apply_rescale, pixel_array
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    RLELossless,
)

from ich_mil.dicom.header import SliceHeader, StoredPixels, read_headers
from ich_mil.dicom.read import read_slice
from ich_mil.dicom.refusal import refusal_of
from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from tests.dicom.encodings import SIGNED, add_encapsulated, add_native, data_set, enhanced, file_bytes

STORED = np.array([[24, 30, 40, 24], [24, 1064, 1094, 24], [24, 1024, 2024, 24], [24, 24, 26, 24]], np.int16)
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
ENHANCED_CT = "1.2.840.10008.5.1.4.1.1.2.1"
DICOMDIR = "1.2.840.10008.1.3.10"


def ct_slice(**changes: object) -> Dataset:
    """A small CT slice; a change to None deletes the element."""
    with disable_value_validation():
        ds = data_set(STORED, SIGNED, **{"BodyPartExamined": "Head", "PixelData": STORED.tobytes()} | changes)
    ds.file_meta = FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return ds


def write(folder: Path, *, preamble: bool = True, **changes: object) -> Path:
    path = folder / "slice.dcm"
    with disable_value_validation():
        ct_slice(**changes).save_as(path, enforce_file_format=preamble)
    return path


def write_frames(folder: Path, ds: Dataset) -> Path:
    """`ds` with two frames of `STORED`."""
    add_native(ds, [STORED, STORED], SIGNED, ExplicitVRLittleEndian)
    ds.file_meta = FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    path = folder / "frames.dcm"
    ds.save_as(path, enforce_file_format=True)
    return path


def read(path: Path) -> tuple[np.ndarray, tuple[tuple[Code, str], ...]]:
    """HU and notes of a file with one slice."""
    (header,) = read_headers(path)
    return read_slice(header)


def refused(call: object, path: Path) -> str:
    """The code of the refusal, after a look at its message: one line that names the file."""
    with pytest.raises(DicomError) as caught:
        call(path)  # type: ignore[operator]
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return caught.value.code


def test_header_and_hu(tmp_path):
    path = write(tmp_path)
    assert read_headers(str(path)) == read_headers(path)
    assert read_headers(path)[0] == SliceHeader(
        path=str(path),
        frame=0,
        sop_uid="1.2.3.1",
        study_uid="1.2.3",
        series_uid="1.2.3.4",
        patient_id="P1",
        rows=4,
        columns=4,
        position=(-125.0, -120.5, 30.0),
        orientation=(1.0, 0.0, 0.0, 0.0, 1.0, 0.0),
        spacing=(0.5, 0.45),
        thickness=5.0,
        instance_number=7,
        acquisition=None,
        description="CT PLAIN",
        kernel="STANDARD",
        body_part="HEAD",
        contrast=False,
        pixels=StoredPixels(
            syntax=ExplicitVRLittleEndian,
            offset=path.stat().st_size - 32,
            frames=1,
            bits_allocated=16,
            bits_stored=16,
            signed=True,
            slope=1.0,
            intercept=-1024.0,
            padding=None,
        ),
        notes=(),
    )
    hu, notes = read(path)
    np.testing.assert_array_equal(hu, STORED - 1024)
    assert hu.dtype == np.int16
    assert notes == ()


def test_absent_optional_elements(tmp_path):
    names = (
        "PatientID",
        "SliceThickness",
        "InstanceNumber",
        "SeriesDescription",
        "ConvolutionKernel",
        "ImageType",
    )
    (header,) = read_headers(write(tmp_path, **dict.fromkeys(names)))
    assert (header.patient_id, header.thickness, header.instance_number) == ("", None, None)
    assert (header.description, header.kernel, header.contrast) == ("", "", False)


def test_rsna_header_without_sop_class_and_with_invalid_uids_gives_no_warning(tmp_path):
    path = write(
        tmp_path, preamble=False, SOPClassUID=None, SOPInstanceUID="ID_000012eaf", StudyInstanceUID="ID_f"
    )
    (header,) = read_headers(path)
    assert (header.sop_uid, header.study_uid, header.notes) == ("ID_000012eaf", "ID_f", ())


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
def test_data_set_without_preamble_or_meta(tmp_path, syntax):
    ds = ct_slice()
    ds.file_meta = FileMetaDataset()
    path = tmp_path / "bare"
    pydicom.dcmwrite(path, ds, implicit_vr=syntax == ImplicitVRLittleEndian, little_endian=True)
    assert path.read_bytes()[128:132] != b"DICM"
    assert read_headers(path)[0].sop_uid == "1.2.3.1"
    np.testing.assert_array_equal(read(path)[0], STORED - 1024)


def test_missing_modality_is_noted_where_the_sop_class_says_ct(tmp_path):
    (note,) = read_headers(write(tmp_path, Modality=None))[0].notes
    assert note == (Code.MODALITY_MISSING, "Modality is absent; SOP class is CT Image Storage")
    ds = enhanced([STORED], [SIGNED])
    ds.Modality = ""
    (note,) = read_headers(write_frames(tmp_path, ds))[0].notes
    assert note == (Code.MODALITY_MISSING, "Modality is absent; SOP class is Enhanced CT Image Storage")


@pytest.mark.parametrize(
    ("agent", "contrast"),
    [
        ("OMNIPAQUE 350", True),
        ("IV", True),
        ("NON-IONIC 100ML", True),
        ("", False),
        ("NONE", False),
        ("No contrast", False),
        ("w/o", False),
        ("N", False),
        ("nil", False),
        ("NA", False),
        ("0", False),
        ("without", False),
        ("Unenhanced", False),
        ("PLAIN", False),
        ("-", False),
    ],
)
def test_contrast(tmp_path, agent, contrast):
    assert read_headers(write(tmp_path, ContrastBolusAgent=agent))[0].contrast is contrast


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"Modality": "MR"}, Code.NOT_CT),
        ({"Modality": "SR", "SOPClassUID": None, "Rows": None}, Code.NOT_CT),
        ({"Modality": None, "SOPClassUID": None}, Code.NOT_CT),
        ({"SOPClassUID": SECONDARY_CAPTURE}, Code.NOT_CT),
        ({"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"}, Code.NOT_CT),
        ({"SamplesPerPixel": 3}, Code.NOT_CT),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, Code.NOT_CT),
        ({"SOPClassUID": ENHANCED_CT}, Code.MULTI_FRAME),  # without functional groups
        ({"NumberOfFrames": 2}, Code.MULTI_FRAME),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}, Code.LOCALIZER),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER", "CT_SOM5 TOP"]}, Code.LOCALIZER),
        ({"ImageType": ["ORIGINAL", " Localizer ", "CT_SOM5 TOP"]}, Code.LOCALIZER),
        ({"SOPClassUID": DICOMDIR, "Modality": None, "Rows": None}, Code.NOT_AN_IMAGE),
        ({"Rows": None}, Code.UNREADABLE),
        ({"Columns": 0}, Code.UNREADABLE),
        ({"StudyInstanceUID": None}, Code.NO_UID),
        ({"SeriesInstanceUID": ""}, Code.NO_UID),
        ({"ImagePositionPatient": None}, Code.NO_GEOMETRY),
        ({"ImageOrientationPatient": None}, Code.NO_GEOMETRY),
        ({"PixelSpacing": None}, Code.NO_GEOMETRY),
        ({"PixelSpacing": [0, 0.5]}, Code.NO_GEOMETRY),
        ({"ImagePositionPatient": [1, 2]}, Code.NO_GEOMETRY),
        ({"ImagePositionPatient": ["1", "nan", "2"]}, Code.NO_GEOMETRY),
        ({"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]}, Code.NO_GEOMETRY),
        ({"ImageOrientationPatient": [0, 0, 0, 0, 0, 0]}, Code.NO_GEOMETRY),
        ({"ImageOrientationPatient": [0.99, 0, 0, 0, 1, 0]}, Code.NO_GEOMETRY),
        ({"ImageOrientationPatient": [1, 0, 0, 0, 0.99, 0]}, Code.NO_GEOMETRY),
        ({"ImageOrientationPatient": [1, 0, 0, 0, 1.01, 0]}, Code.NO_GEOMETRY),
        ({"ImageOrientationPatient": [1, 0, 0, -0.6, 0.8, 0]}, Code.NO_GEOMETRY),
        ({"PixelData": None}, Code.UNREADABLE),
        ({"PixelData": STORED.tobytes()[:-4]}, Code.UNREADABLE),
        ({"PixelData": STORED.tobytes()[:-4], "DataSetTrailingPadding": bytes(8)}, Code.UNREADABLE),
        ({"Rows": 4097, "PixelData": bytes(2 * 4 * 4097)}, Code.UNREADABLE),
        ({"BitsAllocated": 32, "PixelData": bytes(64)}, Code.UNREADABLE),
        ({"BitsStored": 17}, Code.UNREADABLE),
        ({"RescaleIntercept": None}, Code.NO_HU_SCALE),
        ({"RescaleSlope": 0}, Code.NO_HU_SCALE),
        ({"RescaleSlope": "inf"}, Code.NO_HU_SCALE),
        ({"RescaleType": "HU_MOD"}, Code.NO_HU_SCALE),
        ({"ImageType": ["DERIVED", "SECONDARY", "PERFUSION"]}, Code.NO_HU_SCALE),
    ],
)
def test_refused_by_the_header(tmp_path, changes, code):
    path = write(tmp_path, preamble=False, **changes)
    assert refused(read_headers, path) == code
    assert refused(read, path) == code


@pytest.mark.parametrize(
    ("changes", "pixels"),
    [
        ({"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"}, "RGB"),
        ({"SamplesPerPixel": 3}, "of 3 samples"),
        ({"SamplesPerPixel": 3, "PhotometricInterpretation": None}, "of 3 samples"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR"),
    ],
)
def test_colour_is_told(tmp_path, changes, pixels):
    path = write(tmp_path, **changes)
    with pytest.raises(DicomError, match=f": pixels are {pixels}, not grey values$"):
        read_headers(path)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"PixelData": np.full(16, 1064, np.int16).tobytes()}, Code.FLAT),
        ({"PixelData": np.array([-2000] * 15 + [-1990], np.int16).tobytes()}, Code.FLAT),
        # Air at 24, brain at 1064 and an intercept of 0: the offset is lost, every value would be bone.
        ({"RescaleIntercept": 0}, Code.NO_HU_SCALE),
        (
            {"RescaleIntercept": 0, "BitsStored": 12, "HighBit": 11, "PixelRepresentation": 0},
            Code.NO_HU_SCALE,
        ),
    ],
)
def test_refused_by_the_pixels(tmp_path, changes, code):
    path = write(tmp_path, **changes)
    read_headers(path)
    assert refused(read, path) == code


def test_a_file_that_ends_within_its_pixels_is_refused_by_the_header(tmp_path):
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-4])
    assert refused(read_headers, path) == Code.UNREADABLE


@pytest.mark.parametrize(
    "changes",
    [
        {"PhotometricInterpretation": "MONOCHROME1"},
        {"RescaleType": "UNSPECIFIED"},
        {"RescaleType": "US"},
        {"RescaleType": "hu"},
        {"Modality": "ct"},
        {"SamplesPerPixel": None},
        {"ImageOrientationPatient": [1, 0, 0, 0, 0.948, -0.317]},  # three digits of a tilt
        {"EncapsulatedDocument": bytes(100_000)},  # the pixels begin far behind
    ],
)
def test_what_leaves_hu_as_they_are(tmp_path, changes):
    hu, notes = read(write(tmp_path, **changes))
    np.testing.assert_array_equal(hu, STORED - 1024)
    assert notes == ()


def test_fragments_are_no_pixels_though_the_file_says_so(tmp_path):
    ds = add_encapsulated(data_set(STORED, SIGNED), [STORED.tobytes() * 2])
    content = file_bytes(ds, RLELossless).replace(b"1.2.840.10008.1.2.5\0", b"1.2.840.10008.1.2.1\0")
    (tmp_path / "slice.dcm").write_bytes(content)
    assert refused(read_headers, tmp_path / "slice.dcm") == Code.UNREADABLE


def test_a_deflated_slice_of_full_size_is_read(tmp_path):
    stored = np.add.outer(np.arange(1024), np.arange(1024)).astype(np.int16)  # 64 times the first look
    ds = data_set(stored, SIGNED, PixelData=stored.tobytes(), DataSetTrailingPadding=bytes(64))
    ds.file_meta = FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    ds.save_as(tmp_path / "slice.dcm", enforce_file_format=True)
    np.testing.assert_array_equal(read(tmp_path / "slice.dcm")[0], stored - 1024)


def test_all_allocated_bits_are_stored_where_the_header_does_not_say(tmp_path):
    stored = np.arange(100, 116, dtype=np.uint8)
    eight = {"BitsAllocated": 8, "BitsStored": None, "HighBit": None, "PixelRepresentation": 0}
    path = write(tmp_path, **eight, RescaleSlope=8, PixelData=stored.tobytes())
    assert read(path)[0].ravel().tolist() == [8 * value - 1024 for value in range(100, 116)]


def test_a_picture_that_is_not_square(tmp_path):
    path = write(tmp_path, Rows=2, Columns=8, AcquisitionNumber=3)
    (header,) = read_headers(path)
    assert (header.rows, header.columns, header.acquisition) == (2, 8, 3)
    np.testing.assert_array_equal(read(path)[0], STORED.reshape(2, 8) - 1024)


def test_as_many_rows_as_a_ct_may_have(tmp_path):
    assert read_headers(write(tmp_path, Rows=4096, PixelData=bytes(2 * 4 * 4096)))[0].rows == 4096


def test_a_refusal_names_study_and_image(tmp_path):
    with pytest.raises(DicomError) as caught:
        read_headers(write(tmp_path, Rows=None))
    assert (caught.value.study_uid, caught.value.sop_uid) == ("1.2.3", "1.2.3.1")


def test_a_thickness_below_zero_is_none(tmp_path):
    assert read_headers(write(tmp_path, SliceThickness=-5))[0].thickness is None


@pytest.mark.parametrize("ends", [(-2000, -3024), (-3024, -2000)])
def test_a_range_of_padding_has_its_sign_and_may_go_down(tmp_path, ends):
    path = write(tmp_path, PixelPaddingValue=ends[0], PixelPaddingRangeLimit=ends[1])
    assert read_headers(path)[0].pixels.padding == (-3024, -2000)


def test_a_frame_that_is_a_localizer_is_refused(tmp_path):
    ds = enhanced([STORED, STORED], [SIGNED, SIGNED])
    kind = Dataset()
    with disable_value_validation():
        kind.FrameType = ["ORIGINAL", "PRIMARY", "Localizer", "NONE"]
    ds.PerFrameFunctionalGroupsSequence[1].CTImageFrameTypeSequence = [kind]
    # the others may be slices
    assert refused(read_headers, write_frames(tmp_path, ds)) == Code.MULTI_FRAME
    ds.PerFrameFunctionalGroupsSequence[0].CTImageFrameTypeSequence = [kind]
    assert refused(read_headers, write_frames(tmp_path, ds)) == Code.LOCALIZER


def test_what_a_frame_says_of_itself_goes_before_what_is_said_for_all(tmp_path):
    ds = enhanced([STORED, STORED], [SIGNED, SIGNED])
    own, shared = ds.PerFrameFunctionalGroupsSequence[1], ds.SharedFunctionalGroupsSequence[0]
    measures, soft, bone = Dataset(), Dataset(), Dataset()
    measures.PixelSpacing, measures.SliceThickness = [0.4, 0.3], 2.5
    soft.ConvolutionKernel, bone.ConvolutionKernel = "SOFT", ["BONE", "3"]
    shared.CTReconstructionSequence = [soft]
    own.PixelMeasuresSequence, own.CTReconstructionSequence = [measures], [bone]
    agents = [Dataset(), Dataset(), Dataset()]  # given by mouth, and into a vein by the second frame
    for agent, given in zip(agents, ("NO", "NO", "YES"), strict=True):
        agent.ContrastBolusAgentAdministered = given
    shared.ContrastBolusUsageSequence, own.ContrastBolusUsageSequence = agents[:2], agents[1:]
    own.PixelValueTransformationSequence[0].RescaleSlope = 2
    own.PixelValueTransformationSequence[0].RescaleIntercept = -2048
    first, second = read_headers(write_frames(tmp_path, ds))
    assert (first.spacing, first.thickness, first.kernel) == ((0.5, 0.45), 5.0, "SOFT")
    assert (second.spacing, second.thickness, second.kernel) == ((0.4, 0.3), 2.5, "BONE\\3")
    assert (first.contrast, second.contrast) == (False, True)
    assert (first.pixels.slope, first.pixels.intercept) == (1, -1024)
    assert (second.pixels.slope, second.pixels.intercept) == (2, -2048)


@pytest.mark.parametrize("unit", ["US", "HU_MOD"])
def test_a_frame_of_another_unit_is_refused(tmp_path, unit):
    ds = enhanced([STORED, STORED], [SIGNED, SIGNED])
    del ds.PerFrameFunctionalGroupsSequence[0].PixelValueTransformationSequence[0].RescaleType
    assert len(read_headers(write_frames(tmp_path, ds))) == 2
    ds.PerFrameFunctionalGroupsSequence[1].PixelValueTransformationSequence[0].RescaleType = unit
    assert refused(read_headers, write_frames(tmp_path, ds)) == Code.NO_HU_SCALE


def test_a_frame_whose_position_is_no_number_is_refused(tmp_path):
    path = write_frames(tmp_path, enhanced([STORED, STORED], [SIGNED, SIGNED]))
    path.write_bytes(path.read_bytes().replace(b"-120.5\\35.0", b"nan   \\35.0"))
    assert refused(read_headers, path) == Code.NO_GEOMETRY


def test_a_file_that_ends_within_its_second_frame_is_refused_by_the_header(tmp_path):
    path = write_frames(tmp_path, enhanced([STORED, STORED], [SIGNED, SIGNED]))
    first, second = read_headers(path)
    assert (first.frame, first.thickness, first.position) == (0, 5.0, (-125.0, -120.5, 30.0))
    assert (second.frame, second.thickness, second.position) == (1, 5.0, (-125.0, -120.5, 35.0))
    path.write_bytes(path.read_bytes()[:-4])
    assert refused(read_headers, path) == Code.UNREADABLE


def test_unparsable_number_in_the_geometry(tmp_path):
    path = write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"0.5\\0.45", b"0.5\\o.45"))
    assert refused(read_headers, path) == Code.NO_GEOMETRY


def test_more_pixel_data_than_needed_is_read(tmp_path):
    for excess in (6, 32, 80):  # 32 bytes are a whole frame
        path = write(tmp_path, PixelData=STORED.tobytes() + bytes(excess))
        np.testing.assert_array_equal(read(path)[0], STORED - 1024)


def test_wrapped_twelve_bit_slice(tmp_path):
    hu = STORED - 1024
    stored = np.where(hu < 0, hu + 4096, hu).astype(np.uint16)
    path = write(
        tmp_path,
        PixelData=stored.tobytes(),
        BitsStored=12,
        HighBit=11,
        PixelRepresentation=0,
        RescaleIntercept=1,
    )
    got, notes = read(path)
    np.testing.assert_array_equal(got, hu)
    assert [code for code, _ in notes] == [Code.INTERCEPT_12_BIT]


def test_padding_30768_survives_decoding(tmp_path):
    stored = STORED.astype(np.uint16)
    stored[0, 1] = 30768
    path = write(tmp_path, PixelData=stored.tobytes(), BitsStored=12, HighBit=11, PixelRepresentation=0)
    hu, notes = read(path)
    assert hu[0].tolist() == [-1000, -1024, -984, -1000]
    assert [code for code, _ in notes] == [Code.PADDING]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", Code.UNREADABLE),  # it may have been a slice
        (bytes(100), Code.UNREADABLE),
        (bytes(200_000), Code.UNREADABLE),
        (b"ID,Label\n" * 100, Code.NOT_DICOM),
        (b"\0\5\x16\7\0\2\0\0Mac OS X", Code.NOT_DICOM),
    ],
    ids=["empty", "zeros", "many zeros", "text", "AppleDouble"],
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
        ("study.tar.GZ", Code.NOT_OPENED),
        ("IM0001.dcm.gz", Code.NOT_OPENED),
        ("a.7z", Code.NOT_OPENED),
        ("mask.nii.gz", Code.NOT_DICOM),
        ("labels.csv.gz", Code.NOT_DICOM),
        ("report.docx", Code.NOT_DICOM),
        ("gz", Code.NOT_DICOM),
    ],
)
def test_an_archive_may_hold_slices(tmp_path, name, code):
    path = tmp_path / name
    path.write_bytes(b"PK\3\4" + bytes(range(1, 200)))
    assert refused(read_headers, path) == code


def test_absent_file_and_folder(tmp_path):
    assert refused(read_headers, tmp_path / "absent.dcm") == Code.NOT_OPENED
    assert refused(read_headers, tmp_path) == Code.NOT_OPENED


def test_trouble_of_the_system_is_told_from_a_damaged_file():
    of_system = {
        MemoryError(): "there is too little memory",
        PermissionError(13, "as raised"): "Permission denied",
    }
    of_file = {
        OSError("of pydicom, without a number"): "of pydicom, without a number",
        ValueError("two\n lines"): "two lines",
        ValueError("9" * 200): "9" * 160,
        ValueError(): "ValueError",
    }
    for error, said in of_system.items():
        told = refusal_of(Path("a.dcm"), error, failed="it failed")
        assert (told.code, str(told)) == (Code.NOT_OPENED, f"a.dcm: it cannot be opened: {said}")
    for error, said in of_file.items():
        told = refusal_of(Path("a.dcm"), error, failed="it failed")
        assert (told.code, str(told)) == (Code.UNREADABLE, f"a.dcm: it failed: {said}")


@pytest.mark.parametrize("changes", [{}, {"SOPClassUID": None}], ids=["whole", "as RSNA"])
def test_a_slice_that_is_cut_off_anywhere_is_unreadable_and_of_its_own_study(tmp_path, changes):
    """Neither another kind of file, of which nobody would know that it was a slice, nor of half a UID."""
    path, ds = tmp_path / "slice.dcm", ct_slice(**changes)
    ds.preamble = bytes(128)
    ds.save_as(path)
    whole, (header,) = path.read_bytes(), read_headers(path)
    for n in range(len(whole) - 1):
        path.write_bytes(whole[:n])
        with pytest.raises(DicomError) as caught:
            read(path)
        assert caught.value.code == Code.UNREADABLE, n
        assert caught.value.study_uid in ("", header.study_uid), n
        assert caught.value.sop_uid in ("", header.sop_uid), n


def test_noise_in_the_lower_rows_is_refused(tmp_path):
    """As RSNA's ID_b79eed528: random values from row 333 on."""
    y, x = np.mgrid[-1:1:512j, -1:1:512j]
    stored = np.where(np.hypot(x, y) < 0.7, 1060, 24).astype(np.int16)
    picture = {"Rows": 512, "Columns": 512}
    hu, _ = read(write(tmp_path, PixelData=stored.tobytes(), **picture))
    np.testing.assert_array_equal(hu, stored - 1024)
    stored[333:] = np.random.default_rng(0).integers(-(2**15), 2**15, stored[333:].shape)
    path = write(tmp_path, PixelData=stored.tobytes(), **picture)
    with pytest.raises(DicomError, match="179 rows from 333 to 511 are noise") as caught:
        read(path)
    assert caught.value.code == Code.NOISE


# Real files


def zero_below(picture: np.ndarray, kept: float) -> np.ndarray:
    """Zeros from the given share of the pixels on, as a copy that failed leaves them."""
    cut = picture.copy()
    cut.reshape(-1)[round(kept * picture.size) :] = 0
    return cut


@pytest.mark.parametrize("kept", [0.5, 0.507, 0.93])
def test_zeros_from_some_row_on_are_a_copy_that_failed(tmp_path, kept):
    picture = np.random.default_rng(0).integers(1, 2000, (64, 64)).astype(np.int16)
    pixels = zero_below(picture, kept)
    path = write(tmp_path, Rows=64, Columns=64, PixelData=pixels.tobytes())
    with pytest.raises(DicomError, match=f"zeros from row {math.ceil(64 * kept)} on: a copy") as caught:
        read(path)
    assert caught.value.code == Code.UNREADABLE


def test_zeros_around_a_picture_are_no_damage(tmp_path):
    """A round field of view, a padded picture, and one of which three rows are zero."""
    picture = np.random.default_rng(0).integers(1, 2000, (64, 64)).astype(np.int16)
    down, across = np.mgrid[:64, :64]
    round_view = np.where(np.hypot(down - 20, across - 32) < 24, picture, 0)
    round_view[0] = picture[0]
    padded = picture.copy()
    padded[:5] = padded[-5:] = 0
    for pixels in (round_view, padded, zero_below(picture, 61 / 64)):
        path = write(tmp_path, Rows=64, Columns=64, PixelData=pixels.astype(np.int16).tobytes())
        read(path)


@pytest.mark.realdata
def test_rsna_slices(shared_data):
    paths = sorted((shared_data / "rsna_slices").glob("*.dcm"))
    assert len(paths) == 31
    unchanged = n_heads = 0
    for path in paths:
        (header,) = read_headers(path)
        hu, notes = read(path)
        assert header.sop_uid == path.stem[:12]
        assert hu.shape == (header.rows, header.columns)
        assert -1024 <= hu.min() <= -1000
        assert 200 < hu.max() <= 3095
        soft = hu[(hu > 0) & (hu < 100)]
        n_heads += soft.size > 10_000
        assert soft.size < 10_000 or 20 <= np.median(soft) <= 60
        with disable_value_validation():
            ds = pydicom.dcmread(path)
            rescaled = apply_rescale(pixel_array(ds), ds)
        inside = np.ones(hu.shape, bool) if not notes else rescaled > -1024
        unchanged += not notes
        np.testing.assert_array_equal(hu[inside], rescaled[inside])
        assert (hu[~inside] == -1024).all()
    assert unchanged == 14
    assert n_heads == 27  # the other four lie at the vertex or below the brain


@pytest.mark.realdata
def test_rsna_slice_with_intercept_zero(shared_data):
    hu, notes = read(shared_data / "rsna_slices" / "ID_000aa2bce.dcm")
    assert [code for code, _ in notes] == [Code.PADDING, Code.ALREADY_HU]
    assert notes[0][1] == "65270 pixels of stored value -3024 (all four corners) set to -1024 HU"
    assert (hu.min(), int(np.median(hu)), hu.max()) == (-1024, -1011, 1546)


@pytest.mark.realdata
def test_ge_head_is_hu_already(shared_data):
    for path in sorted((shared_data / "ge_head_ct").glob("*.dcm")):
        hu, notes = read(path)
        stored = pydicom.dcmread(path).pixel_array
        assert [code for code, _ in notes] == [Code.PADDING, Code.ALREADY_HU]
        assert notes[0][1].startswith("62180 pixels of stored value -1500 (PixelPaddingValue)")
        np.testing.assert_array_equal(hu, np.where(stored == -1500, -1024, stored))


@pytest.mark.realdata
def test_lossless_syntaxes_decode_to_equal_slices(shared_data):
    folder = shared_data / "compressed_head_ct"
    slices = [read(folder / f"CT2_{name}")[0] for name in ("RLE", "JPLL", "J2KR", "JLSL")]
    for other in slices[1:]:
        np.testing.assert_array_equal(other, slices[0])
    near = read(folder / "CT2_JLSN")[0].astype(int)
    assert 0 < np.abs(near - slices[0]).max() <= 4
    read(folder / "CT2_J2KI")


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


@pytest.mark.realdata
def test_jpeg_extended_of_12_bit_and_slope_2(shared_data):
    """It is a lossy copy of the big endian slice on another scale: in HU they agree."""
    lossy, _ = read(shared_data / "oddities" / "chest_jpegext12_slope2.dcm")
    exact, _ = read(shared_data / "oddities" / "chest_bigendian.dcm")
    off = np.abs(lossy.astype(int) - exact)
    assert off.mean() < 4
    assert off.max() < 40


@pytest.mark.realdata
def test_big_endian(shared_data):
    hu, _ = read(shared_data / "oddities" / "chest_bigendian.dcm")
    assert (hu.min(), int(np.median(hu)), hu.max()) == (-1024, 157 - 1024, 2402 - 1024)

"""What a header becomes."""

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

from ich_mil.dicom.files.header import SliceHeader, StoredPixels, read_headers
from ich_mil.ledger import Code
from tests.dicom.encodings import SIGNED, enhanced
from tests.dicom.small_files import STORED, ct_slice, read, write, write_frames


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
    ("changes", "contrast"),
    [
        ({"ContrastBolusVolume": 100}, True),
        ({"ContrastBolusRoute": "IV"}, True),
        ({"ContrastBolusVolume": 0, "ContrastBolusRoute": ""}, False),
        ({"ContrastBolusRoute": "NONE"}, False),
        ({"ContrastBolusAgent": "NONE", "ContrastBolusVolume": 100, "ContrastBolusRoute": "IV"}, False),
        ({"ContrastBolusAgent": "OMNIPAQUE", "ContrastBolusVolume": 0}, True),
    ],
)
def test_route_and_volume_tell_of_contrast_where_the_agent_is_empty(tmp_path, changes, contrast):
    path = write(tmp_path, **{"ContrastBolusAgent": ""} | changes)
    assert read_headers(path)[0].contrast is contrast


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, (False, False)),
        ({"ContrastBolusAgent": "OMNIPAQUE"}, (True, False)),
        ({"ContrastBolusAgent": "none given"}, (False, True)),
        ({"ContrastBolusAgent": "ohne KM"}, (False, True)),
        ({"ContrastBolusAgent": "なし", "SpecificCharacterSet": "ISO_IR 192"}, (False, True)),
        ({"ContrastBolusAgent": "", "ContrastBolusRoute": "", "ContrastBolusVolume": ""}, (False, False)),
        ({"ContrastBolusAgent": "", "ContrastBolusVolume": 0}, (False, True)),
        ({"ContrastBolusAgent": "", "ContrastBolusRoute": "IV", "ContrastBolusVolume": 0}, (True, False)),
        ({"ContrastBolusAgentSequence": []}, (False, False)),
        ({"ContrastBolusAgentSequence": ["Iohexol"]}, (True, False)),
        ({"ContrastBolusAgentSequence": ["No contrast"]}, (False, True)),
        ({"ContrastBolusAgentSequence": ["None", "Iohexol"]}, (True, False)),
        ({"ContrastBolusAgent": "NONE", "ImageType": ["DERIVED", "SECONDARY", "MIP"]}, (True, False)),
    ],
)
@pytest.mark.parametrize("has_end_mark", [False, True])
def test_that_no_agent_was_given_is_told_apart_from_silence(tmp_path, changes, told, has_end_mark):
    items = []
    for meaning in changes.get("ContrastBolusAgentSequence", ()):
        items.append(Dataset())
        items[-1].CodeMeaning = meaning
    if "ContrastBolusAgentSequence" in changes:
        changes = {"ContrastBolusAgentSequence": Sequence(items)}
        changes["ContrastBolusAgentSequence"].is_undefined_length = has_end_mark
    header = read_headers(write(tmp_path, **changes))[0]
    assert (header.contrast, header.no_contrast) == told


@pytest.mark.parametrize(
    ("image_type", "contrast"),
    [
        (["DERIVED", "SECONDARY", "AXIAL", "CT_SOM5 MIP"], True),
        (["DERIVED", "SECONDARY", "MIP"], True),
        (["DERIVED", "SECONDARY", "AXIAL", "MIN IP"], True),
        (["DERIVED", "PRIMARY", "VOLUME", "MAX_IP"], True),
        (["DERIVED", "SECONDARY", "AXIAL", "SUBTRACTION"], True),
        (["DERIVED", "PRIMARY", "AXIAL", "MAT_SPECIFIC"], True),
        (["DERIVED", "PRIMARY", "AXIAL", "MAT_REMOVED"], True),
        (["DERIVED", "PRIMARY", "AXIAL", "VMI"], False),
        (["DERIVED", "SECONDARY", "AXIAL", "CT_SOM5 MPR"], False),
        (["ORIGINAL", "PRIMARY", "AXIAL", "CT_SOM5 SPI"], False),
    ],
)
def test_what_is_made_of_an_angiography_by_its_image_type_is_no_plain_slice(tmp_path, image_type, contrast):
    assert read_headers(write(tmp_path, ImageType=image_type))[0].contrast is contrast


@pytest.mark.parametrize(("flag", "lossy"), [("01", True), ("00", False), (None, False)])
def test_a_file_that_was_compressed_with_loss_has_a_note(tmp_path, flag, lossy):
    path = write(tmp_path, LossyImageCompression=flag)
    (header,) = read_headers(path)
    assert header.pixels.lossy is lossy
    assert (Code.LOSSY in [code for code, _ in read(path)[1]]) is lossy


def test_a_picture_that_is_not_square(tmp_path):
    path = write(tmp_path, Rows=2, Columns=8, AcquisitionNumber=3)
    (header,) = read_headers(path)
    assert (header.rows, header.columns, header.acquisition) == (2, 8, 3)
    np.testing.assert_array_equal(read(path)[0], STORED.reshape(2, 8) - 1024)


def test_as_many_rows_as_a_ct_may_have(tmp_path):
    assert read_headers(write(tmp_path, Rows=4096, PixelData=bytes(2 * 4 * 4096)))[0].rows == 4096


def test_a_thickness_below_zero_is_none(tmp_path):
    assert read_headers(write(tmp_path, SliceThickness=-5))[0].thickness is None


@pytest.mark.parametrize("ends", [(-2000, -3024), (-3024, -2000)])
def test_a_range_of_padding_has_its_sign_and_may_go_down(tmp_path, ends):
    path = write(tmp_path, PixelPaddingValue=ends[0], PixelPaddingRangeLimit=ends[1])
    assert read_headers(path)[0].pixels.padding == (-3024, -2000)


def test_what_a_frame_says_of_itself_goes_before_what_is_said_for_all(tmp_path):
    ds = enhanced([STORED, STORED], [SIGNED, SIGNED])
    own, shared = ds.PerFrameFunctionalGroupsSequence[1], ds.SharedFunctionalGroupsSequence[0]
    measures, soft, bone = Dataset(), Dataset(), Dataset()
    measures.PixelSpacing, measures.SliceThickness = [0.4, 0.3], 2.5
    soft.ConvolutionKernel, bone.ConvolutionKernel = " SOFT", ["BONE", " 3"]
    shared.CTReconstructionSequence = [soft]
    own.PixelMeasuresSequence, own.CTReconstructionSequence = [measures], [bone]
    agents = [Dataset(), Dataset(), Dataset()]  # one by mouth, one into a vein, not yet in the second frame
    for agent, given in zip(agents, ("NO", "NO", "YES"), strict=True):
        agent.ContrastBolusAgentAdministered = given
    shared.ContrastBolusUsageSequence, own.ContrastBolusUsageSequence = agents[1:], agents[:2]
    own.PixelValueTransformationSequence[0].RescaleSlope = 2
    own.PixelValueTransformationSequence[0].RescaleIntercept = -2048
    own.PixelValueTransformationSequence[0].RescaleType = " HU"
    first, second = read_headers(write_frames(tmp_path, ds))
    assert (first.spacing, first.thickness, first.kernel) == ((0.5, 0.45), 5.0, "SOFT")
    assert (second.spacing, second.thickness, second.kernel) == ((0.4, 0.3), 2.5, "BONE\\3")
    assert (first.contrast, second.contrast) == (True, False)
    assert (first.pixels.slope, first.pixels.intercept) == (1, -1024)
    assert (second.pixels.slope, second.pixels.intercept) == (2, -2048)


def test_a_frame_that_is_a_subtraction_is_no_plain_slice(tmp_path):
    ds, kind = enhanced([STORED, STORED], [SIGNED, SIGNED]), Dataset()
    kind.FrameType = ["DERIVED", "PRIMARY", "VOLUME", "SUBTRACTION"]
    ds.PerFrameFunctionalGroupsSequence[1].CTImageFrameTypeSequence = [kind]
    first, second = read_headers(write_frames(tmp_path, ds))
    assert (first.contrast, second.contrast) == (False, True)


def test_a_thickness_that_a_frame_does_not_say_is_that_of_all_or_none(tmp_path):
    ds = enhanced([STORED, STORED], [SIGNED, SIGNED])
    own = Dataset()
    own.PixelSpacing = [0.4, 0.3]
    ds.PerFrameFunctionalGroupsSequence[1].PixelMeasuresSequence = [own]
    _, second = read_headers(write_frames(tmp_path, ds))
    assert (second.spacing, second.thickness) == ((0.4, 0.3), 5.0)
    del ds.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].SliceThickness
    assert [header.thickness for header in read_headers(write_frames(tmp_path, ds))] == [None, None]


@pytest.mark.parametrize(
    ("character_set", "description"),
    [
        ("ISO_IR 100", "Schädel nativ"),
        ("ISO_IR 192", "Schädel nativ"),
        (["", "ISO 2022 IR 87"], "CT 頭部 単純"),  # bytes of 7 bits only
    ],
)
def test_a_description_is_read_in_the_character_set_of_the_file(tmp_path, character_set, description):
    path = write(tmp_path, SpecificCharacterSet=character_set, SeriesDescription=description)
    assert read_headers(path)[0].description == description


def test_chinese_of_iso_2022_is_read_without_its_escapes(tmp_path):
    path = write(tmp_path, SpecificCharacterSet=["", "ISO 2022 IR 58"], SeriesDescription="CT 8888 8888")
    said = b"CT \x1b$)A\xc6\xbd\xc9\xa8 "  # as PS3.5 K.3; pydicom would write no escape
    path.write_bytes(path.read_bytes().replace(b"CT 8888 8888", said))
    assert read_headers(path)[0].description == "CT 平扫"

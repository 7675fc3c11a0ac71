"""What a header becomes."""

from dataclasses import replace

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian

from ich_mil.ledger import Code
from ich_mil.study.files.header import SliceHeader, StoredPixels, header_of, header_text, read_headers
from tests.study.encodings import SIGNED, enhanced
from tests.study.small_files import STORED, ct_slice, read, write, write_frames


def header_of_file(folder, **changes):
    (header,) = read_headers(write(folder, **changes))
    return header


def test_header_and_hu(tmp_path):
    path = write(tmp_path)
    assert read_headers(str(path)) == read_headers(path)
    size, syntax = path.stat().st_size, ExplicitVRLittleEndian
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
        pixels=StoredPixels(syntax, size - 32, 1, 16, 16, True, slope=1.0, intercept=-1024.0, padding=None),
        notes=(),
    )
    hu, notes = read(path)
    np.testing.assert_array_equal(hu, STORED - 1024)
    assert (hu.dtype, notes) == (np.int16, ())


def test_absent_optional_elements(tmp_path):
    names = ("PatientID", "SliceThickness", "InstanceNumber", "SeriesDescription", "ConvolutionKernel")
    header = header_of_file(tmp_path, **dict.fromkeys((*names, "ImageType")))
    assert (header.patient_id, header.thickness, header.instance_number) == ("", None, None)
    assert (header.description, header.kernel, header.contrast) == ("", "", False)


def test_rsna_header_without_sop_class_and_with_invalid_uids_gives_no_warning(tmp_path):
    uids = {"SOPClassUID": None, "SOPInstanceUID": "ID_000012eaf", "StudyInstanceUID": "ID_f"}
    header = header_of_file(tmp_path, preamble=False, **uids)
    assert (header.sop_uid, header.study_uid, header.notes) == ("ID_000012eaf", "ID_f", ())


@pytest.mark.parametrize("implicit", [False, True])
def test_data_set_without_preamble_or_meta(tmp_path, implicit):
    ds = ct_slice()
    ds.file_meta = FileMetaDataset()
    path = tmp_path / "bare"
    pydicom.dcmwrite(path, ds, implicit_vr=implicit, little_endian=True)
    assert path.read_bytes()[128:132] != b"DICM"
    assert read_headers(path)[0].sop_uid == "1.2.3.1"
    np.testing.assert_array_equal(read(path)[0], STORED - 1024)


def test_missing_modality_is_noted_where_the_sop_class_is_ct(tmp_path):
    assert [code for code, _ in header_of_file(tmp_path, Modality=None).notes] == [Code.MODALITY_MISSING]
    ds = enhanced([STORED], [SIGNED])
    ds.Modality = ""
    ((code, detail),) = read_headers(write_frames(tmp_path, ds))[0].notes
    assert (code, "Enhanced CT Image Storage" in detail) == (Code.MODALITY_MISSING, True)


MIP = {"ImageType": ["DERIVED", "SECONDARY", "MIP"]}


@pytest.mark.parametrize(
    ("changes", "told"),  # contrast, no contrast
    [
        ({}, (False, False)),
        *(
            ({"ContrastBolusAgent": agent}, (True, False))
            for agent in ("OMNIPAQUE 350", "IV", "NON-IONIC 100ML")
        ),
        *(
            ({"ContrastBolusAgent": agent}, (False, True))
            for agent in ("NONE", "No contrast", "w/o", "N", "nil")
        ),
        *(
            ({"ContrastBolusAgent": agent}, (False, True))
            for agent in ("NA", "0", "without", "Unenhanced", "PLAIN")
        ),
        *(({"ContrastBolusAgent": agent}, (False, True)) for agent in ("none given", "ohne KM")),
        ({"ContrastBolusAgent": "-"}, (False, False)),
        ({"ContrastBolusAgent": "なし", "SpecificCharacterSet": "ISO_IR 192"}, (False, True)),
        (
            {"ContrastBolusAgent": "NONE", "ContrastBolusVolume": 100, "ContrastBolusRoute": "IV"},
            (False, True),
        ),
        ({"ContrastBolusAgent": "OMNIPAQUE", "ContrastBolusVolume": 0}, (True, False)),
        ({"ContrastBolusAgent": "", "ContrastBolusRoute": "", "ContrastBolusVolume": ""}, (False, False)),
        ({"ContrastBolusVolume": 100}, (True, False)),
        ({"ContrastBolusAgent": "", "ContrastBolusVolume": 0}, (False, True)),
        ({"ContrastBolusRoute": "NONE"}, (False, True)),
        ({"ContrastBolusAgent": "", "ContrastBolusRoute": "IV", "ContrastBolusVolume": 0}, (True, False)),
        ({"ContrastBolusAgentSequence": []}, (False, False)),
        ({"ContrastBolusAgentSequence": ["Iohexol"]}, (True, False)),
        ({"ContrastBolusAgentSequence": ["No contrast"]}, (False, True)),
        ({"ContrastBolusAgentSequence": ["None", "Iohexol"]}, (True, False)),
        (MIP | {"ContrastBolusAgent": "NONE"}, (True, False)),
    ],
)
@pytest.mark.parametrize("has_end_mark", [False, True])
def test_whether_an_agent_was_given(tmp_path, changes, told, has_end_mark):
    if "ContrastBolusAgentSequence" in changes:
        items = [Dataset() for _ in changes["ContrastBolusAgentSequence"]]
        for item, meaning in zip(items, changes["ContrastBolusAgentSequence"], strict=True):
            item.CodeMeaning = meaning
        changes = {"ContrastBolusAgentSequence": Sequence(items)}
        changes["ContrastBolusAgentSequence"].is_undefined_length = has_end_mark
    header = header_of_file(tmp_path, **changes)
    assert (header.contrast, header.no_contrast) == told


@pytest.mark.parametrize(
    ("kind", "contrast"),
    [
        *((kind, True) for kind in ("CT_SOM5 MIP", "MIP", "MIN IP", "MAX_IP", "SUBTRACTION")),
        *((kind, True) for kind in ("MAT_SPECIFIC", "MAT_REMOVED")),
        *((kind, False) for kind in ("VMI", "CT_SOM5 MPR", "CT_SOM5 SPI")),
    ],
)
def test_what_is_derived_from_an_angiography_by_its_image_type_is_not_plain(tmp_path, kind, contrast):
    header = header_of_file(tmp_path, ImageType=["DERIVED", "SECONDARY", "AXIAL", kind])
    assert header.contrast is contrast


@pytest.mark.parametrize(("flag", "lossy"), [("01", True), ("00", False), (None, False)])
def test_a_file_that_was_compressed_with_loss_has_a_note(tmp_path, flag, lossy):
    path = write(tmp_path, LossyImageCompression=flag)
    assert read_headers(path)[0].pixels.lossy is lossy
    assert (Code.LOSSY in [code for code, _ in read(path)[1]]) is lossy


def test_sizes_and_numbers(tmp_path):
    path = write(tmp_path, Rows=2, Columns=8, AcquisitionNumber=3)
    (header,) = read_headers(path)
    assert (header.rows, header.columns, header.acquisition) == (2, 8, 3)
    np.testing.assert_array_equal(read(path)[0], STORED.reshape(2, 8) - 1024)
    assert header_of_file(tmp_path, Rows=4096, PixelData=bytes(2 * 4 * 4096)).rows == 4096
    assert header_of_file(tmp_path, SliceThickness=-5).thickness is None
    for ends in ((-2000, -3024), (-3024, -2000)):
        header = header_of_file(tmp_path, PixelPaddingValue=ends[0], PixelPaddingRangeLimit=ends[1])
        assert header.pixels.padding == (-3024, -2000)
    far = header_of_file(tmp_path, ImagePositionPatient=[0, 0, -1e5], PixelSpacing=[0.001, 100])
    assert (far.position, far.spacing) == ((0.0, 0.0, -1e5), (0.001, 100.0))


def test_headers_are_kept_as_json(tmp_path):
    for changes in ({}, {"PixelPaddingValue": -2000, "Modality": None, "SliceThickness": None}):
        header = header_of_file(tmp_path, **changes)
        assert header_of("elsewhere", header_text(header)) == replace(header, path="elsewhere")


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
    header = header_of_file(tmp_path, SpecificCharacterSet=character_set, SeriesDescription=description)
    assert header.description == description

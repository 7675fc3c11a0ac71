"""What a header becomes."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian

from ich_mil.ledger import Code
from ich_mil.study.files.header import SliceHeader, StoredPixels, header_of, header_text, read_headers
from tests.study.encodings import SIGNED, enhanced
from tests.study.small_files import STORED, read, refused, write, write_frames


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
        image_type="ORIGINAL\\PRIMARY\\AXIAL",
    )
    hu, notes = read(path)
    np.testing.assert_array_equal(hu, STORED - 1024)
    assert (hu.dtype, notes) == (np.int16, ())


def test_absent_optional_elements(tmp_path):
    names = ("PatientID", "SliceThickness", "InstanceNumber", "SeriesDescription", "ConvolutionKernel")
    header = header_of_file(tmp_path, **dict.fromkeys((*names, "ImageType")))
    assert (header.patient_id, header.thickness, header.instance_number) == ("", None, None)
    assert (header.description, header.kernel, header.contrast) == ("", "", False)


def test_rsna_header_gives_no_warning(tmp_path):
    uids = {"SOPClassUID": None, "SOPInstanceUID": "ID_000012eaf", "StudyInstanceUID": "ID_f"}
    header = header_of_file(tmp_path, preamble=False, **uids)
    assert (header.sop_uid, header.study_uid, header.notes) == ("ID_000012eaf", "ID_f", ())


def test_missing_modality_of_a_ct_is_noted(tmp_path):
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
        *(({"ContrastBolusAgent": agent}, (True, False)) for agent in ("OMNIPAQUE 350", "IV")),
        *(({"ContrastBolusAgent": agent}, (False, True)) for agent in ("NONE", "No contrast", "w/o", "0")),
        *(({"ContrastBolusAgent": agent}, (False, True)) for agent in ("NA", "PLAIN", "ohne KM")),
        ({"ContrastBolusAgent": "-"}, (False, False)),
        ({"ContrastBolusAgent": "なし", "SpecificCharacterSet": "ISO_IR 192"}, (False, True)),
        ({"ContrastBolusAgent": "NONE", "ContrastBolusVolume": 100}, (False, True)),
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
def test_whether_an_agent_was_given(tmp_path, changes, told):
    if "ContrastBolusAgentSequence" in changes:
        items = [Dataset() for _ in changes["ContrastBolusAgentSequence"]]
        for item, meaning in zip(items, changes["ContrastBolusAgentSequence"], strict=True):
            item.CodeMeaning = meaning
        changes = {"ContrastBolusAgentSequence": Sequence(items)}
    header = header_of_file(tmp_path, **changes)
    assert (header.contrast, header.no_contrast) == told


@pytest.mark.parametrize(
    ("kind", "contrast"),
    [
        *((kind, True) for kind in ("CT_SOM5 MIP", "MIN IP", "MAX_IP", "SUBTRACTION", "MAT_SPECIFIC")),
        *((kind, False) for kind in ("VMI", "CT_SOM5 MPR")),
    ],
)
def test_image_types_derived_from_angiographies(tmp_path, kind, contrast):
    header = header_of_file(tmp_path, ImageType=["DERIVED", "SECONDARY", "AXIAL", kind])
    assert header.contrast is contrast


@pytest.mark.parametrize(("flag", "lossy"), [("01", True), ("00", False), (None, False)])
def test_lossy_compression_is_noted(tmp_path, flag, lossy):
    path = write(tmp_path, LossyImageCompression=flag)
    assert read_headers(path)[0].pixels.lossy is lossy
    assert (Code.LOSSY in [code for code, _ in read(path)[1]]) is lossy


def test_headers_are_kept_as_json(tmp_path):
    for changes in ({}, {"PixelPaddingValue": -2000, "Modality": None, "SliceThickness": None}):
        header = header_of_file(tmp_path, **changes)
        assert header_of("elsewhere", header_text(header)) == replace(header, path="elsewhere")


def test_elements_of_a_frame_outrank_shared_elements(tmp_path):
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


def test_thickness_of_frames_without_their_own(tmp_path):
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
def test_description_in_the_character_set_of_the_file(tmp_path, character_set, description):
    header = header_of_file(tmp_path, SpecificCharacterSet=character_set, SeriesDescription=description)
    assert header.description == description


def test_damaged_inner_sequence_is_a_refusal(tmp_path):
    path = write_frames(tmp_path, enhanced([STORED, STORED], [SIGNED, SIGNED]))
    content = bytearray(path.read_bytes())
    item = content.index(b"\x20\x00\x13\x91", content.index(b"\x00\x52\x30\x92"))
    content[item + 8 : item + 12] = struct.pack("<I", 7)
    path.write_bytes(content)
    assert refused(read_headers, path) == Code.UNREADABLE

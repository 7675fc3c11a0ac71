"""Values of header elements, the location of Pixel Data, and files that are not opened."""

import os
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.dataset import FileMetaDataset
from pydicom.uid import DeflatedExplicitVRLittleEndian

from ich_mil.ledger import Code
from ich_mil.study.files import elements
from ich_mil.study.files.elements import read_elements
from ich_mil.study.files.header import read_headers
from tests.study.encodings import SIGNED, add_native, data_set, file_bytes
from tests.study.small_files import STORED, ct_slice, read, refused, write


def test_values_by_keyword(tmp_path):
    path = write(tmp_path, SeriesDescription=" a\\ b ", PixelSpacing=[0.5, 0.25], InstanceNumber="7")
    found = read_elements(path, ["SeriesDescription", "PixelSpacing", "InstanceNumber", "Rows", "StudyID"])
    assert found.text("SeriesDescription") == "a\\b"
    assert found.texts("SeriesDescription") == ["a", "b"]
    assert (found.text("StudyID"), found.texts("StudyID")) == ("", [])
    assert found.decimals("PixelSpacing", 2) == (0.5, 0.25)
    assert found.decimals("PixelSpacing", 3) is None
    assert (found.integer("InstanceNumber"), found.short("Rows")) == (7, 4)
    assert "StudyID" not in found.values


@pytest.mark.parametrize("text", ["nan", "1e999", "1,5", "one"])
def test_a_number_that_is_none_is_absent(tmp_path, text):
    path = write(tmp_path, SliceThickness="12345")
    path.write_bytes(path.read_bytes().replace(b"12345 ", text.encode().ljust(6)))
    assert read_elements(path, ["SliceThickness"]).decimal("SliceThickness") is None


@pytest.mark.parametrize(
    ("value", "signed", "expected"), [(63536, True, -2000), (63536, False, 63536), (-2000, False, 63536)]
)
def test_short_has_the_sign_of_the_pixels(tmp_path, value, signed, expected):
    for implicit in (False, True):
        ds = ct_slice()
        ds.add_new("PixelPaddingValue", "US" if value > 0 else "SS", value)
        ds.file_meta = FileMetaDataset()
        pydicom.dcmwrite(tmp_path / "bare", ds, implicit_vr=implicit, little_endian=True)
        found = read_elements(tmp_path / "bare", ["PixelPaddingValue"])
        assert found.short("PixelPaddingValue", signed=signed) == expected


def test_undeclared_utf_8_is_decoded(tmp_path):
    path = write(tmp_path, SeriesDescription="Sch__del nativ")
    path.write_bytes(path.read_bytes().replace(b"Sch__del", "Schädel".encode()))
    assert read_elements(path, ["SeriesDescription"]).text("SeriesDescription") == "Schädel nativ"
    path.write_bytes(path.read_bytes().replace("Schädel".encode(), "Schä ".encode("latin-1").ljust(8)))
    assert read_elements(path, ["SeriesDescription"]).text("SeriesDescription") == "Schä     nativ"


def test_deflated_files_are_inflated_up_to_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "slice.dcm"
    syntax = DeflatedExplicitVRLittleEndian
    path.write_bytes(file_bytes(add_native(data_set(STORED, SIGNED), [STORED], SIGNED, syntax), syntax))
    np.testing.assert_array_equal(read(path)[0], STORED - 1024)
    monkeypatch.setattr(elements, "MOST_INFLATED_BYTES", 100)
    with pytest.raises(ValueError, match="it would inflate to more than 0 MB"):
        read_elements(Path(get_testdata_file("image_dfl.dcm")), ["Rows"])


def test_only_regular_files_are_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    opened = []
    monkeypatch.setattr(Path, "open", lambda self, *_, **__: opened.append(self))
    assert refused(read_headers, tmp_path / "fifo") == Code.NOT_DICOM
    assert refused(read_headers, tmp_path / "device") == Code.NOT_DICOM
    assert opened == []

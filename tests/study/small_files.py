"""Small CT files with one thing changed, and what reading them gives."""

from pathlib import Path

import numpy as np
import pytest
from pydicom.config import disable_value_validation
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from ich_mil.study.files.header import read_headers
from ich_mil.study.pixels.read import read_slice
from tests.study.encodings import SIGNED, add_native, data_set

STORED = np.array([[24, 30, 40, 24], [24, 1064, 1094, 24], [24, 1024, 2024, 24], [24, 24, 26, 24]], np.int16)


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

"""The files that pydicom brings along: each CT is read to pydicom's own HU, or refused for a reason."""

from collections import Counter
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.pixels import apply_rescale

from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from ich_mil.study.files.header import read_headers
from ich_mil.study.pixels.read import read_slice

FOLDER = Path(pydicom.data.__file__).parent / "test_files"
LOCALIZERS = {"6293", "6924"}

pytestmark = pytest.mark.filterwarnings("ignore")


def says_ct(path):
    """Whether pydicom finds a CT image in the file's header."""
    try:
        ds = pydicom.dcmread(path, stop_before_pixels=True, force=True)
        return ds.get("Modality") == "CT" or "CT Image" in ds.file_meta.MediaStorageSOPClassUID.name
    except Exception:
        return False


def test_every_ct_is_read_or_refused():
    """CT values clipped to the scale are all that is changed in them: no tolerance."""
    told = Counter()
    for path in sorted(path for path in FOLDER.rglob("*") if path.is_file()):
        try:
            (header,) = read_headers(path)
            hu, _ = read_slice(header)
        except DicomError as error:
            told[error.code if says_ct(path) else "refused"] += 1
            if error.code == Code.LOCALIZER:
                assert path.name in LOCALIZERS
            if error.code == Code.UNREADABLE and says_ct(path):
                assert "PixelData" not in pydicom.dcmread(path, force=True)
        else:
            told["read"] += 1
            assert says_ct(path)
            ds = pydicom.dcmread(path)
            np.testing.assert_array_equal(hu, np.clip(apply_rescale(ds.pixel_array, ds), -1024, 3095))
    assert told["read"] >= 12
    assert told[Code.LOCALIZER] == len(LOCALIZERS)
    assert set(told) == {"read", "refused", Code.LOCALIZER, Code.UNREADABLE}

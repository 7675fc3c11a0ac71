"""One DICOM file: its header, or its HU.

In: the path of one file. Out: a `SliceHeader` (pixels not read: the fast pass over a whole data set), or
int16 HU (H, W) with the repairs that were made. A file that is not one CT slice is refused with a
`DicomError` whose code says why; both functions refuse by the same header rules.

Source: DICOM PS3.3 A.3 (CT Image IOD), C.7.6.2 (image plane), C.8.2.1 (CT image); PS3.10 7.1 (file preamble).
Legend: `H, W` pixels.
"""

import math
import re
import struct
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.config import disable_value_validation
from pydicom.dataset import Dataset
from pydicom.errors import InvalidDicomError
from pydicom.pixels import pixel_array
from pydicom.uid import (
    UID,
    CTImageStorage,
    ImplicitVRLittleEndian,
    MediaStorageDirectoryStorage,
)

from ich_mil.dicom.hounsfield import INTERCEPT_OF_HU, has_air, to_hu
from ich_mil.errors import DicomError
from ich_mil.ledger import Code

# All that `read_header` looks at; pydicom skips the rest.
_TAGS = [
    "SOPClassUID",
    "SOPInstanceUID",
    "StudyInstanceUID",
    "SeriesInstanceUID",
    "PatientID",
    "Modality",
    "ImageType",
    "NumberOfFrames",
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "Rows",
    "Columns",
    "ImagePositionPatient",
    "ImageOrientationPatient",
    "PixelSpacing",
    "SliceThickness",
    "InstanceNumber",
    "SeriesDescription",
    "ConvolutionKernel",
    "ContrastBolusAgent",
]
# Enhanced CT, Legacy Converted Enhanced CT (PS3.4 B.5).
_MULTI_FRAME_CT = {"1.2.840.10008.5.1.4.1.1.2.1", "1.2.840.10008.5.1.4.1.1.2.2"}
# A file without the PS3.10 preamble starts with a tag of group 0002 or 0008, little endian.
_FIRST_GROUPS = {0x0002, 0x0008}
# RescaleType (0028,1054) values under which CT values are Hounsfield units, or not said (PS3.3 C.11.1.1.2).
_HU_TYPES = {"", "HU", "US", "UNSPECIFIED"}
# How far a direction cosine may be from unit length or right angle: rounding to three decimals stays below.
_COSINE_TOLERANCE = 5e-3
# pydicom's warning on bytes after the last pixel, which PS3.5 8.1.1 lets a reader drop.
_HARMLESS_EXCESS = "The pixel data is .* bytes of excess padding"
# What stands in ContrastBolusAgent where none was given.
_NO_CONTRAST = re.compile(
    r"(none|no|non(?!\W*ionic)|nil|n|n/?a|0|without|w/?o|unenhanced|plain)\b.*|\W*", re.IGNORECASE
)


@dataclass(frozen=True)
class SliceHeader:
    """What the header of one CT slice says; texts are empty where the file has none.

    Args:
        path: the file, as given.
        sop_uid: SOPInstanceUID (0008,0018).
        study_uid: StudyInstanceUID (0020,000D).
        series_uid: SeriesInstanceUID (0020,000E).
        patient_id: PatientID (0010,0020), may be empty.
        rows: H, pixels.
        columns: W, pixels.
        position: ImagePositionPatient (0020,0032), mm.
        orientation: ImageOrientationPatient (0020,0037), six direction cosines.
        spacing: PixelSpacing (0028,0030), mm between rows and between columns.
        thickness: SliceThickness (0018,0050), mm.
        instance_number: InstanceNumber (0020,0013).
        description: SeriesDescription (0008,103E).
        kernel: ConvolutionKernel (0018,1210); several values are joined by a backslash.
        contrast: ContrastBolusAgent (0018,0010) names an agent.
        notes: what was accepted though the standard asks for more, as (code, detail).
    """

    path: str
    sop_uid: str
    study_uid: str
    series_uid: str
    patient_id: str
    rows: int
    columns: int
    position: tuple[float, float, float]
    orientation: tuple[float, ...]
    spacing: tuple[float, float]
    thickness: float | None
    instance_number: int | None
    description: str
    kernel: str
    contrast: bool
    notes: tuple[tuple[Code, str], ...]


def read_header(path: Path) -> SliceHeader:
    """The header of one CT slice, without its pixels.

    Args:
        path: a DICOM file, with or without the 128-byte preamble.

    Returns:
        The header.

    Raises:
        DicomError: the file is refused, with code
            `not-dicom` (text, AppleDouble, empty),
            `not-an-image` (DICOMDIR, no rows or columns),
            `not-ct` (another modality, SOP class or colour),
            `multi-frame` (this version reads one frame a file),
            `localizer` (ImageType says so),
            `no-uid` (study, series or SOP instance UID absent),
            `no-geometry` (position, orientation or pixel spacing absent or impossible),
            `unreadable` (cannot be opened or parsed).
    """
    with disable_value_validation():  # RSNA UIDs ('ID_...') are invalid, and pydicom would warn on each
        return _header(_open(path, header_only=True), path)


def read_slice(path: Path) -> tuple[np.ndarray, tuple[tuple[Code, str], ...]]:
    """The HU of one CT slice.

    Args:
        path: a DICOM file that `read_header` accepts.

    Returns:
        int16 HU (H, W) within -1024..3095, and one (code, detail) pair for each repair (`hounsfield.to_hu`).

    Raises:
        DicomError: as `read_header`, and with code
            `not-an-image` (no pixel data),
            `no-hu-scale` (no rescale, a rescale to other units, or values near 0 that hold no air),
            `unreadable` (truncated pixel data, no decoder),
            `flat` (all pixels equal).
    """
    with disable_value_validation():
        ds = _open(path, header_only=False)
        header = _header(ds, path)
        if "PixelData" not in ds:
            raise _refusal(path, Code.NOT_AN_IMAGE, "it has no Pixel Data (7FE0,0010)")
        slope, intercept = _rescale(ds, path)
        try:
            # Unused bits are left to to_hu: pydicom's own correction changes the padding value 30768.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=_HARMLESS_EXCESS)
                stored = pixel_array(ds, correct_unused_bits=False, allow_excess_frames=False)
        except Exception as error:  # decoder plugins raise anything; pydicom has no common base class
            syntax = UID(str(ds.file_meta.get("TransferSyntaxUID", ""))).name
            raise _refusal(
                path, Code.UNREADABLE, f"pixels ({syntax}) cannot be decoded: {_line(error)}"
            ) from error
        bits_stored = _integer(ds, "BitsStored") or stored.dtype.itemsize * 8
        padding = _integer(ds, "PixelPaddingValue")
        signed = _integer(ds, "PixelRepresentation") == 1
    if stored.shape != (header.rows, header.columns):
        reason = f"pixels decode to shape {stored.shape}, the header says {(header.rows, header.columns)}"
        raise _refusal(path, Code.UNREADABLE, reason)
    if stored.min() == stored.max():
        raise _refusal(path, Code.FLAT, f"all pixels have the stored value {stored.min()}")
    hu, notes = to_hu(
        stored, slope=slope, intercept=intercept, bits_stored=bits_stored, signed=signed, padding=padding
    )
    if hu.min() == hu.max():
        raise _refusal(path, Code.FLAT, f"all pixels are {hu.min()} HU once padding and range are set right")
    if intercept > INTERCEPT_OF_HU and not has_air(hu):
        reason = f"intercept is {intercept:g} but no pixel is air (-1024 to -500 HU): its values are not HU"
        raise _refusal(path, Code.NO_HU_SCALE, reason)
    return hu, notes


def _open(path: Path, *, header_only: bool) -> Dataset:
    """The data set of `path`; raises `DicomError` for what is not DICOM or cannot be read."""
    tags: list[Any] | None = list(_TAGS) if header_only else None
    try:
        try:
            return pydicom.dcmread(path, stop_before_pixels=header_only, specific_tags=tags)
        except InvalidDicomError:
            if not _starts_like_a_data_set(path):
                raise
            ds = pydicom.dcmread(path, stop_before_pixels=header_only, specific_tags=tags, force=True)
    except (InvalidDicomError, EOFError) as error:
        raise _refusal(path, Code.NOT_DICOM, "it is not a DICOM file (PS3.10)") from error
    except OSError as error:
        raise _refusal(path, Code.UNREADABLE, f"it cannot be opened: {error.strerror or error}") from error
    except Exception as error:  # a broken file can raise anything from inside pydicom's parser
        raise _refusal(path, Code.UNREADABLE, f"its header cannot be parsed: {_line(error)}") from error
    if "TransferSyntaxUID" not in ds.file_meta:
        # Decides only how pixels decode, and they are the same in explicit and implicit little endian.
        ds.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
    return ds


def _starts_like_a_data_set(path: Path) -> bool:
    """Whether the first tag could begin a DICOM data set that has no preamble."""
    with path.open("rb") as file:
        start = file.read(2)
    return len(start) == 2 and struct.unpack("<H", start)[0] in _FIRST_GROUPS


def _header(ds: Dataset, path: Path) -> SliceHeader:
    """Check that `ds` is one CT slice, and take what we need of it."""
    notes: list[tuple[Code, str]] = []
    sop_class = UID(_text(ds, "SOPClassUID") or str(ds.file_meta.get("MediaStorageSOPClassUID", "")))
    modality = _text(ds, "Modality").upper()

    if sop_class == MediaStorageDirectoryStorage:
        raise _refusal(path, Code.NOT_AN_IMAGE, "it is a DICOMDIR, the index of a medium")
    if modality not in ("", "CT"):
        raise _refusal(path, Code.NOT_CT, f"modality is {modality!r}, CT is needed")
    if sop_class in _MULTI_FRAME_CT or (_integer(ds, "NumberOfFrames") or 1) > 1:
        reason = (
            "it holds several frames; this version reads one CT slice a file, so export it as single frames"
        )
        raise _refusal(path, Code.MULTI_FRAME, reason)
    if sop_class not in ("", CTImageStorage):
        raise _refusal(path, Code.NOT_CT, f"SOP class is {sop_class.name}, CT Image Storage is needed")
    if not modality:
        if not sop_class:
            raise _refusal(path, Code.NOT_CT, "neither Modality nor SOP Class UID says that it is CT")
        notes.append((Code.MODALITY_MISSING, "Modality is absent; SOP class is CT Image Storage"))
    if "LOCALIZER" in (value.upper() for value in _texts(ds, "ImageType")):
        raise _refusal(path, Code.LOCALIZER, "ImageType says LOCALIZER")
    if (_integer(ds, "SamplesPerPixel") or 1) != 1 or not _is_grey(ds):
        raise _refusal(
            path, Code.NOT_CT, f"pixels are {_text(ds, 'PhotometricInterpretation')}, not grey values"
        )
    rows, columns = _integer(ds, "Rows") or 0, _integer(ds, "Columns") or 0
    if rows < 1 or columns < 1:
        raise _refusal(path, Code.NOT_AN_IMAGE, "it has no Rows and Columns")

    uids = {name: _text(ds, name) for name in ("SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")}
    if absent := [name for name, value in uids.items() if not value]:
        reason = f"{', '.join(absent)} absent: it cannot be assigned to a scan"
        raise _refusal(path, Code.NO_UID, reason)
    position, orientation, spacing = _geometry(ds, path)
    thickness = _floats(ds, "SliceThickness", 1)
    agent = _text(ds, "ContrastBolusAgent")
    return SliceHeader(
        path=str(path),
        sop_uid=uids["SOPInstanceUID"],
        study_uid=uids["StudyInstanceUID"],
        series_uid=uids["SeriesInstanceUID"],
        patient_id=_text(ds, "PatientID"),
        rows=rows,
        columns=columns,
        position=position,
        orientation=orientation,
        spacing=spacing,
        thickness=thickness[0] if thickness and thickness[0] > 0 else None,
        instance_number=_integer(ds, "InstanceNumber"),
        description=_text(ds, "SeriesDescription"),
        kernel=_text(ds, "ConvolutionKernel"),
        contrast=_NO_CONTRAST.fullmatch(agent) is None,
        notes=tuple(notes),
    )


def _is_grey(ds: Dataset) -> bool:
    """MONOCHROME1, MONOCHROME2 or not said (PS3.3 C.7.6.3.1.2)."""
    photometric = _text(ds, "PhotometricInterpretation")
    return photometric == "" or photometric.startswith("MONOCHROME")


def _geometry(
    ds: Dataset, path: Path
) -> tuple[tuple[float, float, float], tuple[float, ...], tuple[float, float]]:
    """Position (mm), orientation and pixel spacing (mm), checked (PS3.3 C.7.6.2)."""
    position = _floats(ds, "ImagePositionPatient", 3)
    orientation = _floats(ds, "ImageOrientationPatient", 6)
    spacing = _floats(ds, "PixelSpacing", 2)
    if position is None or orientation is None or spacing is None:
        found = {
            "ImagePositionPatient": position,
            "ImageOrientationPatient": orientation,
            "PixelSpacing": spacing,
        }
        absent = ", ".join(name for name, value in found.items() if value is None)
        raise _refusal(path, Code.NO_GEOMETRY, f"{absent} absent or not numbers")
    row, column = np.array(orientation[:3]), np.array(orientation[3:])
    off = max(abs(row @ row - 1), abs(column @ column - 1), abs(row @ column))
    if off > _COSINE_TOLERANCE:
        reason = f"ImageOrientationPatient {orientation} is not two unit vectors at a right angle"
        raise _refusal(path, Code.NO_GEOMETRY, reason)
    if min(spacing) <= 0:
        raise _refusal(path, Code.NO_GEOMETRY, f"PixelSpacing must be positive; got {spacing} mm")
    return (position[0], position[1], position[2]), orientation, (spacing[0], spacing[1])


def _rescale(ds: Dataset, path: Path) -> tuple[float, float]:
    """RescaleSlope (HU per unit) and RescaleIntercept (HU), both required of a CT image (PS3.3 C.8.2.1)."""
    slope, intercept = _floats(ds, "RescaleSlope", 1), _floats(ds, "RescaleIntercept", 1)
    if slope is None or intercept is None or slope[0] == 0:
        reason = "RescaleSlope or RescaleIntercept is absent, not a number, or a slope of 0"
        raise _refusal(path, Code.NO_HU_SCALE, reason)
    unit = _text(ds, "RescaleType").upper()
    if unit not in _HU_TYPES:
        raise _refusal(path, Code.NO_HU_SCALE, f"RescaleType is {unit!r}, HU is needed")
    return slope[0], intercept[0]


def _value(ds: Dataset, keyword: str) -> Any:
    """The value of `keyword`, or None where it is absent, empty or cannot be parsed."""
    try:
        return ds.get(keyword)
    except Exception:  # a broken value raises on access, with whatever its type raises
        return None


def _text(ds: Dataset, keyword: str) -> str:
    """The value as one text, several values joined by a backslash; '' where absent."""
    return "\\".join(_texts(ds, keyword))


def _texts(ds: Dataset, keyword: str) -> list[str]:
    """The values as texts, without surrounding blanks and NULs."""
    value = _value(ds, keyword)
    if value is None:
        return []
    values = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    return [str(item).strip(" \0\t\r\n") for item in values]


def _floats(ds: Dataset, keyword: str, count: int) -> tuple[float, ...] | None:
    """Exactly `count` finite numbers, or None."""
    value = _value(ds, keyword)
    try:
        numbers = (float(value),) if count == 1 else tuple(float(item) for item in value)
    except (TypeError, ValueError):
        return None
    return numbers if len(numbers) == count and all(map(math.isfinite, numbers)) else None


def _integer(ds: Dataset, keyword: str) -> int | None:
    """One whole number, or None."""
    number = _floats(ds, keyword, 1)
    return int(number[0]) if number else None


def _line(error: Exception) -> str:
    """The beginning of an error's text, on one line."""
    return " ".join(str(error).split())[:160] or type(error).__name__


def _refusal(path: Path, code: Code, reason: str) -> DicomError:
    """The error that names file and reason."""
    return DicomError(f"{path}: {reason}", code=code)

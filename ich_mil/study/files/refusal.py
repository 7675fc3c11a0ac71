"""Header checks that refuse a file, and the errors for refused files.

In: the elements of one file or its frames. Out: the checked values, or a `DicomError` whose code gives the
reason for refusal. Pixels are checked by `ich_mil.study.pixels.read`, positions by `dicom.geometry.order`.

Source: DICOM PS3.3 A.3 (CT Image IOD), A.38 (Enhanced CT), C.7.6.2 (image plane), C.8.2.1 (CT image), F.3
(directory records); PS3.10 8.2 (file IDs).
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from pydicom.uid import (
    UID,
    CTImageStorage,
    EnhancedCTImageStorage,
    LegacyConvertedEnhancedCTImageStorage,
    MediaStorageDirectoryStorage,
    UncompressedTransferSyntaxes,
)

from ich_mil.errors import DicomError
from ich_mil.ledger import Code
from ich_mil.study.files.elements import Elements

MOST_PIXELS = 4096
"""Maximum of Rows and Columns in an intact header: CT slices have 256 to 2048."""
MOST_FRAMES = 4096
"""Maximum number of frames of a file: a head in slices of 0.5 mm has 400."""
FARTHEST_MM = 1e5
"""Maximum absolute coordinate in an intact header: couches move by a few metres."""
PIXEL_MM = (1e-3, 1e2)
"""Range of PixelSpacing in an intact header: CT pixels are 0.1 to 2 mm wide."""
COSINE_TOLERANCE = 5e-3
"""Tolerance for unit length and orthogonality of direction cosines, above rounding to three decimals."""
MOST_REASON = 400
"""Maximum number of characters of a reason."""
MOST_ERROR = 160
"""Maximum number of characters from the message of a parser or decoder within a reason."""
MULTI_FRAME_CT = frozenset({EnhancedCTImageStorage, LegacyConvertedEnhancedCTImageStorage})

_GEOMETRY = {"ImagePositionPatient": 3, "ImageOrientationPatient": 6, "PixelSpacing": 2}  # numbers of values
_PLANE = ("ImagePositionPatient", "ImageOrientationPatient")
_CT = frozenset({"", CTImageStorage, *MULTI_FRAME_CT})
_WITHOUT_PIXELS = "although its header is that of a CT: it is truncated, or only the header was exported"
# RescaleType (0028,1054) values for HU or an unspecified unit (PS3.3 C.11.1.1.2).
_HU_TYPES = {"", "HU", "US", "UNSPECIFIED"}
# ImageType and descriptions of dose sheets and screen captures, which some scanners store as CT images: GE
# 'SCREEN SAVE', 'Dose Report'; Siemens 'CT_SOM5 PROT', 'Patient Protocol'; Philips 'Dose Info'; Canon 'DOSE'.
_CAPTURE = re.compile(
    r"screen|captur|bildschirm|[ée]cran\b|pantalla|schermat|\btela\b|\bdose|dosi[sm]|\bdlp\b|\bprot(ocol[eo]?|okoll)?\b"
    r"|patienten?.?protokoll|exam.?(summary|protocol)|\bsummary\b|\breport\b|\bsnapshot\b|доз[аы]|экран|线量|線量|剂量|劑量|선량",
    re.IGNORECASE,
)
# Elements of which a CT slice has at least one (PS3.3 C.8.2.1), also after de-identification.
_OF_SLICES = ("KVP", "SliceThickness", "ConvolutionKernel", "RescaleSlope")


def refusal(path: str | Path, code: Code, reason: str) -> DicomError:
    """Error with file and reason on one line, without unprintable characters of a damaged header."""
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(reason.split()))
    return DicomError(f"{path}: {shown[:MOST_REASON]}", code=code)


def refusal_of(path: Path, error: Exception, *, failed: str) -> DicomError:
    """Convert an error of the operating system, a parser or a decoder to a refusal.

    The code is `not-opened` for operating system errors and lack of memory, else `unreadable`, with `failed`,
    the description of the failed operation. An `OSError` without errno comes from pydicom and means a
    damaged file.
    """
    if isinstance(error, MemoryError):
        return refusal(path, Code.NOT_OPENED, "it cannot be opened: there is too little memory")
    if isinstance(error, OSError) and error.errno is not None:
        return refusal(path, Code.NOT_OPENED, f"it cannot be opened: {os.strerror(error.errno)}")
    message = " ".join(str(error).split())[:MOST_ERROR] or type(error).__name__
    return refusal(path, Code.UNREADABLE, f"{failed}: {message}")


def check_kind(path: Path, elements: Elements) -> tuple[str, tuple[tuple[Code, str], ...]]:
    """Check that a file holds greyscale CT slices, not localizers or perfusion maps.

    Returns:
        SOP class UID, and (code, detail) pairs for accepted deviations.
    """
    sop_class = elements.text("SOPClassUID") or elements.media_sop_class
    modality = elements.text("Modality").upper()
    if sop_class == MediaStorageDirectoryStorage:
        raise refusal(path, Code.NOT_AN_IMAGE, "it is a DICOMDIR, the index of a medium")
    if modality not in ("", "CT"):
        raise refusal(path, Code.NOT_CT, f"modality is {modality!r}; CT is needed")
    if sop_class not in _CT:
        raise refusal(path, Code.NOT_CT, f"SOP class is {UID(sop_class).name}; CT Image Storage is needed")
    if not modality and not sop_class:
        if elements.pixel_offset < 0 and "StudyInstanceUID" not in elements.values:  # which follows both
            raise refusal(path, Code.UNREADABLE, "its header is truncated before Modality and SOP Class UID")
        raise refusal(path, Code.NOT_CT, "Modality and SOP Class UID are absent")
    image_type = [value.upper() for value in elements.texts("ImageType")]
    if "LOCALIZER" in image_type:
        raise refusal(path, Code.LOCALIZER, "ImageType is LOCALIZER")
    if "PERFUSION" in image_type:
        raise refusal(path, Code.NO_HU_SCALE, "ImageType is PERFUSION: a map of blood flow, not HU")
    photometric = elements.text("PhotometricInterpretation")
    # MONOCHROME1, MONOCHROME2 or absent (PS3.3 C.7.6.3.1.2)
    if photometric and not photometric.startswith("MONOCHROME"):
        raise refusal(path, Code.NOT_CT, f"pixels are {photometric}; grey values are needed")
    if (samples := elements.short("SamplesPerPixel") or 1) != 1:
        raise refusal(path, Code.NOT_CT, f"pixels have {samples} samples; grey values are needed")
    absent = ((Code.MODALITY_MISSING, f"Modality is absent; SOP class is {UID(sop_class).name}"),)
    return sop_class, () if modality else absent


def check_size(path: Path, elements: Elements) -> tuple[int, int]:
    """Check and return Rows and Columns (H, W)."""
    rows, columns = elements.short("Rows") or 0, elements.short("Columns") or 0
    if rows < 1 or columns < 1:
        raise refusal(path, Code.UNREADABLE, f"it has no Rows and Columns, {_WITHOUT_PIXELS}")
    if max(rows, columns) > MOST_PIXELS:
        reason = f"{rows} x {columns} pixels; no CT has more than {MOST_PIXELS} x {MOST_PIXELS}"
        raise refusal(path, Code.UNREADABLE, reason)
    return rows, columns


def check_uids(path: Path, elements: Elements) -> dict[str, str]:
    """Check and return SOP instance, study and series UID, by keyword."""
    uids = {name: elements.text(name) for name in ("SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")}
    if absent := [name for name, value in uids.items() if not value]:
        raise refusal(path, Code.NO_UID, f"{', '.join(absent)} absent: it cannot be assigned to a scan")
    return uids


def check_frame_number(path: Path, n_frames: int) -> None:
    """Check the number of frames before they are parsed."""
    if n_frames > MOST_FRAMES:
        reason = f"it has {n_frames} frames, {MOST_FRAMES} are allowed; export single frames"
        raise refusal(path, Code.MULTI_FRAME, reason)


def check_frames(path: Path, frames: Sequence[Elements], n_frames: int) -> None:
    """Check that every frame has its own description and that none is a localizer."""
    if n_frames != len(frames):
        reason = f"it has {n_frames} frames and the positions of {len(frames)}; export single frames"
        raise refusal(path, Code.MULTI_FRAME, reason)
    if n_localizers := sum("LOCALIZER" in frame.text("FrameType").upper().split("\\") for frame in frames):
        if n_localizers == n_frames:
            raise refusal(path, Code.LOCALIZER, "FrameType is LOCALIZER")
        reason = f"{n_localizers} of its {n_frames} frames are localizers; export single frames"
        raise refusal(path, Code.MULTI_FRAME, reason)


def check_capture(path: Path, elements: Elements) -> None:
    """Check that a file without position and orientation is not a dose sheet or screen capture.

    It is one by its words, or if it has no element of a CT slice.
    """
    if any(elements.decimals(name, _GEOMETRY[name]) for name in _PLANE):
        return
    for keyword in ("ImageType", "SeriesDescription"):
        if named := _CAPTURE.search(elements.text(keyword).replace("_", " ")):
            reason = f"it has no position, and {keyword} names {named[0]!r}: a dose sheet or screen capture"
            raise refusal(path, Code.CAPTURE, reason)
    if not any(elements.text(keyword) for keyword in _OF_SLICES):
        reason = f"it has no position and none of {', '.join(_OF_SLICES)}: a dose sheet or screen capture"
        raise refusal(path, Code.CAPTURE, reason)


def check_geometry(
    path: Path, frame: Elements
) -> tuple[tuple[float, float, float], tuple[float, ...], tuple[float, float]]:
    """Check and return position (mm), orientation and pixel spacing (mm) (PS3.3 C.7.6.2)."""
    values = {name: frame.decimals(name, count) for name, count in _GEOMETRY.items()}
    position, orientation, spacing = values.values()
    if position is None or orientation is None or spacing is None:
        absent = ", ".join(name for name, value in values.items() if value is None)
        raise refusal(path, Code.NO_GEOMETRY, f"{absent} absent or not numbers")
    row, column = orientation[:3], orientation[3:]
    off = max(abs(_dot(row, row) - 1), abs(_dot(column, column) - 1), abs(_dot(row, column)))
    if off > COSINE_TOLERANCE:
        reason = f"ImageOrientationPatient {orientation} is not two unit vectors at a right angle"
        raise refusal(path, Code.NO_GEOMETRY, reason)
    if max(map(abs, position)) > FARTHEST_MM:
        reason = f"ImagePositionPatient {position} is beyond {FARTHEST_MM:g} mm, farther than a couch moves"
        raise refusal(path, Code.NO_GEOMETRY, reason)
    smallest, largest = PIXEL_MM
    if not smallest <= min(spacing) <= max(spacing) <= largest:
        reason = f"PixelSpacing must be {smallest:g} to {largest:g} mm; got {spacing} mm"
        raise refusal(path, Code.NO_GEOMETRY, reason)
    return (position[0], position[1], position[2]), orientation, (spacing[0], spacing[1])


def check_rescale(path: Path, frame: Elements, *, needs_hu: bool) -> tuple[float, float]:
    """Check and return RescaleSlope (HU per stored unit) and RescaleIntercept (HU) (PS3.3 C.8.2.1).

    `needs_hu` is True for Enhanced CT, where values in HU have the RescaleType HU (PS3.3 C.8.15.3.10), and US
    denotes a map of another quantity.
    """
    slope, intercept = frame.decimal("RescaleSlope"), frame.decimal("RescaleIntercept")
    if slope is None or intercept is None or slope == 0:
        reason = "RescaleSlope or RescaleIntercept is absent, not a number, or a slope of 0"
        raise refusal(path, Code.NO_HU_SCALE, reason)
    unit = frame.text("RescaleType").upper()
    if unit not in ({"", "HU"} if needs_hu else _HU_TYPES):
        raise refusal(path, Code.NO_HU_SCALE, f"RescaleType is {unit!r}; HU is needed")
    return slope, intercept


def check_pixel_data(path: Path, elements: Elements, n_values: int) -> tuple[int, int]:
    """Check and return BitsAllocated and BitsStored; Pixel Data must hold all `n_values` pixels."""
    if elements.pixel_offset < 0:
        raise refusal(path, Code.UNREADABLE, f"it has no Pixel Data (7FE0,0010), {_WITHOUT_PIXELS}")
    allocated = elements.short("BitsAllocated")
    if allocated not in (8, 16):
        raise refusal(path, Code.UNREADABLE, f"BitsAllocated is {allocated}; CT values have 8 or 16")
    stored = elements.short("BitsStored") or allocated
    if not 1 <= stored <= allocated:
        raise refusal(path, Code.UNREADABLE, f"BitsStored is {stored}; BitsAllocated is {allocated}")
    have, needed = elements.n_bytes - elements.pixel_offset, 1
    if elements.syntax in UncompressedTransferSyntaxes:
        if elements.pixel_length < 0:
            reason = f"its pixel data are compressed, its transfer syntax is {UID(elements.syntax).name}"
            raise refusal(path, Code.UNREADABLE, f"{reason}: the header was changed; export the file again")
        have, needed = min(have, elements.pixel_length), n_values * allocated // 8
    elif elements.pixel_length == n_values * allocated // 8:
        reason = f"its pixel data are not compressed, its transfer syntax is {UID(elements.syntax).name}"
        raise refusal(path, Code.UNREADABLE, f"{reason}: the header was changed; export the file again")
    if have < needed:
        raise refusal(path, Code.UNREADABLE, f"pixel data are truncated: {max(have, 0)} of {needed} bytes")
    return allocated, stored


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))

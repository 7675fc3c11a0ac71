"""Header checks that refuse a file, and the errors for refused files.

In: the elements of one file or its frames. Out: the checked values, or a `DicomError` whose code gives the
reason for refusal. Pixels are checked by `ich_mil.dicom.pixels.read`, positions by `dicom.geometry.order`.

Source: DICOM PS3.3 A.3 (CT Image IOD), A.38 (Enhanced CT), C.7.6.2 (image plane), C.8.2.1 (CT image).
"""

import os
from collections.abc import Sequence
from pathlib import Path

from pydicom.uid import (
    UID,
    CTImageStorage,
    DeflatedExplicitVRLittleEndian,
    EnhancedCTImageStorage,
    LegacyConvertedEnhancedCTImageStorage,
    MediaStorageDirectoryStorage,
)

from ich_mil.dicom.files.dicomdir import lost_images
from ich_mil.dicom.files.elements import NATIVE, Elements
from ich_mil.dicom.files.frames import Frame
from ich_mil.dicom.files.tags import (
    BITS_ALLOCATED,
    BITS_STORED,
    COLUMNS,
    IMAGE_TYPE,
    MODALITY,
    PHOTOMETRIC,
    ROWS,
    SAMPLES,
    SERIES_UID,
    SOP_CLASS,
    SOP_UID,
    STUDY_UID,
)
from ich_mil.errors import DicomError
from ich_mil.ledger import Code

MOST_PIXELS = 4096
"""Maximum of Rows and Columns in an intact header: CT slices have 256 to 2048."""
FARTHEST_MM = 1e5
"""Maximum absolute coordinate in an intact header: couches move by a few metres."""
PIXEL_MM = (1e-3, 1e2)
"""Range of PixelSpacing in an intact header: CT pixels are 0.1 to 2 mm wide."""
MOST_REASON = 400
"""Maximum number of characters of a reason."""
MOST_ERROR = 160
"""Maximum number of characters from the message of a parser or decoder within a reason."""
MULTI_FRAME_CT = frozenset({EnhancedCTImageStorage, LegacyConvertedEnhancedCTImageStorage})

_CT = frozenset({"", CTImageStorage, *MULTI_FRAME_CT})
_WITHOUT_PIXELS = "though it says that it is CT: it is cut off, or only its header was exported"
# RescaleType (0028,1054) values for HU or an unspecified unit (PS3.3 C.11.1.1.2).
_HU_TYPES = {"", "HU", "US", "UNSPECIFIED"}
# Tolerance for unit length and orthogonality of direction cosines, above rounding to three decimals.
_COSINE_TOLERANCE = 5e-3


def refusal(path: str | Path, code: Code, reason: str) -> DicomError:
    """Error with file and reason on one line, without unprintable characters of a damaged header."""
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(reason.split()))
    return DicomError(f"{path}: {shown[:MOST_REASON]}", code=code)


def refusal_of(path: Path, error: Exception, *, failed: str) -> DicomError:
    """Convert an error of the operating system, a parser or a decoder to a refusal.

    Args:
        path: the file.
        error: the error. An `OSError` without errno comes from pydicom and means a damaged file.
        failed: description of the failed operation.

    Returns:
        An error with code `not-opened` for operating system errors and lack of memory, else `unreadable`.
    """
    if isinstance(error, MemoryError):
        return refusal(path, Code.NOT_OPENED, "it cannot be opened: there is too little memory")
    if isinstance(error, OSError) and error.errno is not None:
        return refusal(path, Code.NOT_OPENED, f"it cannot be opened: {os.strerror(error.errno)}")
    said = " ".join(str(error).split())[:MOST_ERROR] or type(error).__name__
    return refusal(path, Code.UNREADABLE, f"{failed}: {said}")


def check_kind(path: Path, elements: Elements) -> tuple[str, tuple[tuple[Code, str], ...]]:
    """Check that a file holds greyscale CT slices, not localizers or perfusion maps.

    Returns:
        SOP class UID, and (code, detail) pairs for accepted deviations.

    Raises:
        DicomError: the file is of another kind.
    """
    sop_class = elements.text(SOP_CLASS) or elements.media_sop_class
    modality = elements.text(MODALITY).upper()
    if sop_class == MediaStorageDirectoryStorage:
        if lost := lost_images(path, elements.sequences()):
            (_, name), studies = lost[0], {study for study, _ in lost}
            reason = f"it is a DICOMDIR, and {len(lost)} of the images it names are not there, such as {name}"
            error = refusal(path, Code.NOT_OPENED, reason)
            error.study_uid = studies.pop() if len(studies) == 1 else ""
            raise error
        raise refusal(path, Code.NOT_AN_IMAGE, "it is a DICOMDIR, the index of a medium")
    if modality not in ("", "CT"):
        raise refusal(path, Code.NOT_CT, f"modality is {modality!r}, CT is needed")
    if sop_class not in _CT:
        raise refusal(path, Code.NOT_CT, f"SOP class is {UID(sop_class).name}, CT Image Storage is needed")
    if not modality and not sop_class:
        if elements.pixel_offset < 0 and STUDY_UID not in elements.values:  # which follows both
            raise refusal(path, Code.UNREADABLE, "its header ends before it says what it is: it is cut off")
        raise refusal(path, Code.NOT_CT, "neither Modality nor SOP Class UID says that it is CT")
    image_type = [value.upper() for value in elements.texts(IMAGE_TYPE)]
    if "LOCALIZER" in image_type:
        raise refusal(path, Code.LOCALIZER, "ImageType says LOCALIZER")
    if "PERFUSION" in image_type:
        raise refusal(path, Code.NO_HU_SCALE, "ImageType says PERFUSION: a map of blood flow, no HU")
    photometric = elements.text(PHOTOMETRIC)
    # MONOCHROME1, MONOCHROME2 or absent (PS3.3 C.7.6.3.1.2)
    if photometric and not photometric.startswith("MONOCHROME"):
        raise refusal(path, Code.NOT_CT, f"pixels are {photometric}, not grey values")
    if (samples := elements.short(SAMPLES) or 1) != 1:
        raise refusal(path, Code.NOT_CT, f"pixels are of {samples} samples, not grey values")
    absent = ((Code.MODALITY_MISSING, f"Modality is absent; SOP class is {UID(sop_class).name}"),)
    return sop_class, () if modality else absent


def check_size(path: Path, elements: Elements) -> tuple[int, int]:
    """Check and return Rows and Columns (H, W)."""
    rows, columns = elements.short(ROWS) or 0, elements.short(COLUMNS) or 0
    if rows < 1 or columns < 1:
        raise refusal(path, Code.UNREADABLE, f"it has no Rows and Columns, {_WITHOUT_PIXELS}")
    if max(rows, columns) > MOST_PIXELS:
        reason = f"{rows} x {columns} pixels; no CT has more than {MOST_PIXELS} x {MOST_PIXELS}"
        raise refusal(path, Code.UNREADABLE, reason)
    return rows, columns


def check_uids(path: Path, elements: Elements) -> dict[int, str]:
    """Check and return SOP instance, study and series UID, by tag."""
    names = {SOP_UID: "SOPInstanceUID", STUDY_UID: "StudyInstanceUID", SERIES_UID: "SeriesInstanceUID"}
    uids = {tag: elements.text(tag) for tag in names}
    if absent := [names[tag] for tag, value in uids.items() if not value]:
        raise refusal(path, Code.NO_UID, f"{', '.join(absent)} absent: it cannot be assigned to a scan")
    return uids


def check_frames(path: Path, frames: Sequence[Frame], n_frames: int) -> None:
    """Check that every frame has its own description and that none is a localizer."""
    if n_frames != len(frames):
        reason = f"it holds {n_frames} frames and says of {len(frames)} where they lie; export single frames"
        raise refusal(path, Code.MULTI_FRAME, reason)
    if n_localizers := sum("LOCALIZER" in frame.kind.upper().split("\\") for frame in frames):
        if n_localizers == n_frames:
            raise refusal(path, Code.LOCALIZER, "FrameType says LOCALIZER")
        reason = f"{n_localizers} of its {n_frames} frames are localizers; export single frames"
        raise refusal(path, Code.MULTI_FRAME, reason)


def check_geometry(
    path: Path, frame: Frame
) -> tuple[tuple[float, float, float], tuple[float, ...], tuple[float, float]]:
    """Check and return position (mm), orientation and pixel spacing (mm) (PS3.3 C.7.6.2)."""
    position, orientation, spacing = frame.position, frame.orientation, frame.spacing
    if position is None or orientation is None or spacing is None:
        found = {
            "ImagePositionPatient": position,
            "ImageOrientationPatient": orientation,
            "PixelSpacing": spacing,
        }
        absent = ", ".join(name for name, value in found.items() if value is None)
        raise refusal(path, Code.NO_GEOMETRY, f"{absent} absent or not numbers")
    row, column = orientation[:3], orientation[3:]
    off = max(abs(_dot(row, row) - 1), abs(_dot(column, column) - 1), abs(_dot(row, column)))
    if off > _COSINE_TOLERANCE:
        reason = f"ImageOrientationPatient {orientation} is not two unit vectors at a right angle"
        raise refusal(path, Code.NO_GEOMETRY, reason)
    if max(map(abs, position)) > FARTHEST_MM:
        reason = f"ImagePositionPatient {position} lies beyond {FARTHEST_MM:g} mm, farther than a couch moves"
        raise refusal(path, Code.NO_GEOMETRY, reason)
    smallest, largest = PIXEL_MM
    if not smallest <= min(spacing) <= max(spacing) <= largest:
        reason = f"PixelSpacing must be {smallest:g} to {largest:g} mm; got {spacing} mm"
        raise refusal(path, Code.NO_GEOMETRY, reason)
    return (position[0], position[1], position[2]), orientation, (spacing[0], spacing[1])


def check_rescale(path: Path, frame: Frame, *, needs_hu: bool) -> tuple[float, float]:
    """Check and return RescaleSlope (HU per stored unit) and RescaleIntercept (HU).

    Both are required in a CT image (PS3.3 C.8.2.1).

    Args:
        path: the file.
        frame: frame with the rescale attributes.
        needs_hu: True for Enhanced CT, where values in HU have the RescaleType HU (PS3.3 C.8.15.3.10), and US
            denotes a map of another quantity.
    """
    if frame.slope is None or frame.intercept is None or frame.slope == 0:
        reason = "RescaleSlope or RescaleIntercept is absent, not a number, or a slope of 0"
        raise refusal(path, Code.NO_HU_SCALE, reason)
    unit = frame.rescale_type.upper()
    if unit not in ({"", "HU"} if needs_hu else _HU_TYPES):
        raise refusal(path, Code.NO_HU_SCALE, f"RescaleType is {unit!r}, HU is needed")
    return frame.slope, frame.intercept


def check_pixel_data(path: Path, elements: Elements, n_values: int) -> tuple[int, int]:
    """Check and return BitsAllocated and BitsStored; Pixel Data must hold all `n_values` pixels."""
    if elements.pixel_offset < 0:
        raise refusal(path, Code.UNREADABLE, f"it has no Pixel Data (7FE0,0010), {_WITHOUT_PIXELS}")
    allocated = elements.short(BITS_ALLOCATED)
    if allocated not in (8, 16):
        raise refusal(path, Code.UNREADABLE, f"BitsAllocated is {allocated}; CT values have 8 or 16")
    stored = elements.short(BITS_STORED) or allocated
    if not 1 <= stored <= allocated:
        raise refusal(path, Code.UNREADABLE, f"BitsStored is {stored}, BitsAllocated is {allocated}")
    needed = n_values * allocated // 8
    available = elements.n_bytes - elements.pixel_offset
    if elements.syntax == DeflatedExplicitVRLittleEndian:  # only the header was inflated
        available = elements.pixel_length
    if elements.syntax in NATIVE:
        have = max(min(elements.pixel_length, available), 0)
        if have < needed:
            raise refusal(path, Code.UNREADABLE, f"pixel data are cut off: {have} of {needed} bytes")
    elif available <= 0:
        raise refusal(path, Code.UNREADABLE, "pixel data are cut off: the file ends before them")
    return allocated, stored


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))

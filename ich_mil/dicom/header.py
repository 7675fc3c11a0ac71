"""One DICOM file's header: what it says of each of its CT slices, and where their pixels lie.

In: the path of one file. Out: a `SliceHeader` for each slice in it. A file that is no CT slice is refused
with a `DicomError` whose code says why. Pixels are not read: this is the fast pass over a whole data set.

Source: DICOM PS3.3 A.3 (CT Image IOD), A.38 (Enhanced CT), C.7.6.2 (image plane), C.8.2.1 (CT image).
Legend: `H, W` pixels.
"""

import math
import os
import re
import stat
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydicom.uid import (
    UID,
    CTImageStorage,
    DeflatedExplicitVRLittleEndian,
    EnhancedCTImageStorage,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    LegacyConvertedEnhancedCTImageStorage,
    MediaStorageDirectoryStorage,
)

from ich_mil.dicom.elements import (
    CHARACTER_SET,
    Elements,
    EmptyFileError,
    NotDicomError,
    read_elements,
    tag_of,
)
from ich_mil.dicom.frames import Frame, read_frames
from ich_mil.dicom.medium import lost_images
from ich_mil.errors import DicomError
from ich_mil.ledger import Code

MOST_PIXELS = 4096
"""Rows or columns above this are a damaged header: CT scanners make 256 to 2048."""
MOST_REASON = 400
"""Characters of a reason."""
MULTI_FRAME_CT = frozenset({EnhancedCTImageStorage, LegacyConvertedEnhancedCTImageStorage})
NATIVE = frozenset(
    {ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian}
)
"""Transfer syntaxes whose pixels are not compressed frame by frame (PS3.5 A.1-A.5)."""

_CT = frozenset({"", CTImageStorage, *MULTI_FRAME_CT})

_WITHOUT_PIXELS = "though it says that it is CT: it is cut off, or only its header was exported"
# RescaleType (0028,1054) values under which CT values are Hounsfield units, or not said (PS3.3 C.11.1.1.2).
_HU_TYPES = {"", "HU", "US", "UNSPECIFIED"}
# Names of archives; a .nii.gz or .csv.gz is no archive but a NIfTI file or a table.
_ARCHIVE = re.compile(r".+(\.(zip|7z|rar|tar|tgz)|(?<!\.nii|\.csv)\.(gz|bz2|xz|zst))", re.IGNORECASE)
# How far a direction cosine may be from unit length or right angle: rounding to three decimals stays below.
_COSINE_TOLERANCE = 5e-3
# What stands in ContrastBolusAgent where none was given.
_NO_CONTRAST = re.compile(
    r"(none|no|non(?!\W*ionic)|nil|n|n/?a|0|without|w/?o|unenhanced|plain)\b.*|\W*", re.IGNORECASE
)


SOP_CLASS = tag_of("SOPClassUID")
SOP_UID = tag_of("SOPInstanceUID")
STUDY_UID = tag_of("StudyInstanceUID")
SERIES_UID = tag_of("SeriesInstanceUID")
PATIENT_ID = tag_of("PatientID")
MODALITY = tag_of("Modality")
IMAGE_TYPE = tag_of("ImageType")
NUMBER_OF_FRAMES = tag_of("NumberOfFrames")
SAMPLES = tag_of("SamplesPerPixel")
PHOTOMETRIC = tag_of("PhotometricInterpretation")
ROWS = tag_of("Rows")
COLUMNS = tag_of("Columns")
POSITION = tag_of("ImagePositionPatient")
ORIENTATION = tag_of("ImageOrientationPatient")
SPACING = tag_of("PixelSpacing")
THICKNESS = tag_of("SliceThickness")
INSTANCE = tag_of("InstanceNumber")
ACQUISITION = tag_of("AcquisitionNumber")
DESCRIPTION = tag_of("SeriesDescription")
KERNEL = tag_of("ConvolutionKernel")
BODY_PART = tag_of("BodyPartExamined")
AGENT = tag_of("ContrastBolusAgent")
BITS_ALLOCATED = tag_of("BitsAllocated")
BITS_STORED = tag_of("BitsStored")
SIGNED = tag_of("PixelRepresentation")
SLOPE = tag_of("RescaleSlope")
INTERCEPT = tag_of("RescaleIntercept")
RESCALE_TYPE = tag_of("RescaleType")
PADDING = tag_of("PixelPaddingValue")
PADDING_LIMIT = tag_of("PixelPaddingRangeLimit")

# fmt: off
_TAGS = frozenset((
    CHARACTER_SET, SOP_CLASS, SOP_UID, STUDY_UID, SERIES_UID, PATIENT_ID, MODALITY, IMAGE_TYPE, ROWS, COLUMNS,
    NUMBER_OF_FRAMES, SAMPLES, PHOTOMETRIC, POSITION, ORIENTATION, SPACING, THICKNESS, INSTANCE, ACQUISITION,
    DESCRIPTION,
    KERNEL, BODY_PART, AGENT, BITS_ALLOCATED, BITS_STORED, SIGNED, SLOPE, INTERCEPT, RESCALE_TYPE, PADDING,
    PADDING_LIMIT,
))
# fmt: on


@dataclass(frozen=True)
class StoredPixels:
    """How the pixels of one slice are stored, and where.

    Args:
        syntax: transfer syntax UID (0002,0010).
        offset: first byte of the Pixel Data value in the file; in the inflated data set where it is deflated.
        frames: NumberOfFrames (0028,0008) of the file, 1 where absent.
        bits_allocated: (0028,0100): 8 or 16.
        bits_stored: (0028,0101).
        signed: PixelRepresentation (0028,0103) is 1.
        slope: RescaleSlope (0028,1053) of this slice, HU per stored unit.
        intercept: RescaleIntercept (0028,1052) of this slice, HU.
        padding: PixelPaddingValue (0028,0120) and PixelPaddingRangeLimit (0028,0121), lowest first; twice the
            value where there is no limit; None where there is no padding.
    """

    syntax: str
    offset: int
    frames: int
    bits_allocated: int
    bits_stored: int
    signed: bool
    slope: float
    intercept: float
    padding: tuple[int, int] | None


@dataclass(frozen=True)
class SliceHeader:
    """What the header of one CT slice says; texts are empty where the file has none.

    Args:
        path: the file, as given.
        frame: of a multi-frame file, from 0.
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
        instance_number: InstanceNumber (0020,0013); frames have that of their file.
        acquisition: AcquisitionNumber (0020,0012).
        description: SeriesDescription (0008,103E).
        kernel: ConvolutionKernel (0018,1210); several values are joined by a backslash.
        body_part: BodyPartExamined (0018,0015), upper case.
        contrast: ContrastBolusAgent (0018,0010) names an agent, or the frame says one was given (0018,9342).
        pixels: how its pixels are stored.
        notes: what was accepted though the standard asks for more, as (code, detail).
    """

    path: str
    frame: int
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
    acquisition: int | None
    description: str
    kernel: str
    body_part: str
    contrast: bool
    pixels: StoredPixels
    notes: tuple[tuple[Code, str], ...]


def read_headers(path: str | Path) -> tuple[SliceHeader, ...]:
    """The headers of the CT slices in one file, without their pixels.

    Args:
        path: a DICOM file, with or without the 128-byte preamble.

    Returns:
        One header; of a multi-frame file one for each frame, in the order of the frames.

    Raises:
        DicomError: the file is refused, with code
            `not-dicom` (text, AppleDouble),
            `not-an-image` (DICOMDIR),
            `not-ct` (another modality, SOP class or colour),
            `localizer` (ImageType says so),
            `multi-frame` (several frames that are not described one by one, or of which some are localizers),
            `no-uid` (study, series or SOP instance UID absent),
            `no-geometry` (position, orientation or pixel spacing absent or impossible),
            `no-hu-scale` (no rescale, or one to other units),
            `not-opened` (the system says no; an archive such as .zip; a DICOMDIR of which images are absent),
            `unreadable` (empty, cut off, no pixel data, cannot be parsed, impossible sizes).
    """
    path = Path(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom warns of invalid values; RSNA files are full of them
        try:
            if stat.S_ISFIFO(path.stat().st_mode):  # opening one waits for a writer
                raise NotDicomError
            elements = read_elements(path, _TAGS)
            try:
                return _headers(path, elements)
            except DicomError as error:
                error.study_uid = error.study_uid or elements.text(STUDY_UID)
                error.sop_uid = elements.text(SOP_UID)
                error.series_uid = elements.text(SERIES_UID)
                error.orientation = elements.decimals(ORIENTATION, 6)
                raise
        except DicomError:
            raise
        except EmptyFileError as error:
            failed = "it is empty, or zeros stand where it should begin: a copy that failed"
            raise refusal(path, Code.UNREADABLE, failed) from error
        except NotDicomError as error:
            if _ARCHIVE.fullmatch(path.name):
                packed = "it is an archive, and what is in it was not looked at: unpack it"
                raise refusal(path, Code.NOT_OPENED, packed) from error
            raise refusal(path, Code.NOT_DICOM, "it is not a DICOM file (PS3.10)") from error
        except Exception as error:  # a broken file can raise anything from inside pydicom's parser
            if reason := reason_of_the_system(error):
                raise refusal(path, Code.NOT_OPENED, f"it cannot be opened: {reason}") from error
            reason = f"its header cannot be parsed: {one_line(error)}"
            raise refusal(path, Code.UNREADABLE, reason) from error


def refusal(path: str | Path, code: Code, reason: str) -> DicomError:
    """The error that names file and reason: one line, whatever a damaged header holds."""
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(reason.split()))
    return DicomError(f"{path}: {shown[:MOST_REASON]}", code=code)


def reason_of_the_system(error: Exception) -> str | None:
    """What the system says where it, and not the file, is to blame; None where that is the file.

    An `OSError` that pydicom raises has no number.
    """
    if isinstance(error, MemoryError):
        return "there is too little memory"
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno is not None else None


def one_line(error: BaseException) -> str:
    """The beginning of an error's text, on one line; its class where it has no text."""
    return " ".join(str(error).split())[:160] or type(error).__name__


def _headers(path: Path, elements: Elements) -> tuple[SliceHeader, ...]:
    """Check that the file holds CT slices, and take what we need of them."""
    sop_class, notes = _check_kind(path, elements)
    rows, columns = _size(path, elements)
    uids = _uids(path, elements)
    multi_frame = sop_class in MULTI_FRAME_CT
    frames = read_frames(elements.sequences()) if multi_frame else [_only_frame(elements)]
    n_frames = elements.integer(NUMBER_OF_FRAMES) or 1
    if n_frames != len(frames):
        reason = f"it holds {n_frames} frames and says of {len(frames)} where they lie; export single frames"
        raise refusal(path, Code.MULTI_FRAME, reason)
    if n_localizers := sum("LOCALIZER" in frame.kind.upper().split("\\") for frame in frames):
        if n_localizers == n_frames:
            raise refusal(path, Code.LOCALIZER, "FrameType says LOCALIZER")
        reason = f"{n_localizers} of its {n_frames} frames are localizers; export single frames"
        raise refusal(path, Code.MULTI_FRAME, reason)
    pixels = _stored_pixels(path, elements, rows * columns, n_frames)
    with_agent = _NO_CONTRAST.fullmatch(elements.text(AGENT)) is None
    headers = []
    for index, frame in enumerate(frames):
        position, orientation, spacing = _geometry(path, frame)
        slope, intercept = _rescale(path, frame, needs_hu=multi_frame)
        headers.append(
            SliceHeader(
                path=str(path),
                frame=index,
                sop_uid=uids[SOP_UID],
                study_uid=uids[STUDY_UID],
                series_uid=uids[SERIES_UID],
                patient_id=elements.text(PATIENT_ID),
                rows=rows,
                columns=columns,
                position=position,
                orientation=orientation,
                spacing=spacing,
                thickness=frame.thickness if frame.thickness and frame.thickness > 0 else None,
                instance_number=elements.integer(INSTANCE),
                acquisition=elements.integer(ACQUISITION),
                description=elements.text(DESCRIPTION),
                kernel=frame.kernel,
                body_part=elements.text(BODY_PART).upper(),
                contrast=with_agent or frame.contrast,
                pixels=replace(pixels, slope=slope, intercept=intercept),
                notes=notes,
            )
        )
    return tuple(headers)


def _check_kind(path: Path, elements: Elements) -> tuple[str, tuple[tuple[Code, str], ...]]:
    """Refuse all but grey CT slices of a patient. Returns the SOP class, and what was accepted."""
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
        if elements.pixel_offset < 0 and STUDY_UID not in elements.values:  # which comes after both
            raise refusal(path, Code.UNREADABLE, "its header ends before it says what it is: it is cut off")
        raise refusal(path, Code.NOT_CT, "neither Modality nor SOP Class UID says that it is CT")
    image_type = [value.upper() for value in elements.texts(IMAGE_TYPE)]
    if "LOCALIZER" in image_type:
        raise refusal(path, Code.LOCALIZER, "ImageType says LOCALIZER")
    if "PERFUSION" in image_type:
        raise refusal(path, Code.NO_HU_SCALE, "ImageType says PERFUSION: a map of blood flow, no HU")
    photometric = elements.text(PHOTOMETRIC)
    # MONOCHROME1, MONOCHROME2 or not said (PS3.3 C.7.6.3.1.2)
    if photometric and not photometric.startswith("MONOCHROME"):
        raise refusal(path, Code.NOT_CT, f"pixels are {photometric}, not grey values")
    if (samples := elements.short(SAMPLES) or 1) != 1:
        raise refusal(path, Code.NOT_CT, f"pixels are of {samples} samples, not grey values")
    absent = ((Code.MODALITY_MISSING, f"Modality is absent; SOP class is {UID(sop_class).name}"),)
    return sop_class, () if modality else absent


def _size(path: Path, elements: Elements) -> tuple[int, int]:
    """Rows and columns."""
    rows, columns = elements.short(ROWS) or 0, elements.short(COLUMNS) or 0
    if rows < 1 or columns < 1:
        raise refusal(path, Code.UNREADABLE, f"it has no Rows and Columns, {_WITHOUT_PIXELS}")
    if max(rows, columns) > MOST_PIXELS:
        reason = f"{rows} x {columns} pixels; no CT has more than {MOST_PIXELS} x {MOST_PIXELS}"
        raise refusal(path, Code.UNREADABLE, reason)
    return rows, columns


def _uids(path: Path, elements: Elements) -> dict[int, str]:
    """The three UIDs that place a slice."""
    names = {SOP_UID: "SOPInstanceUID", STUDY_UID: "StudyInstanceUID", SERIES_UID: "SeriesInstanceUID"}
    uids = {tag: elements.text(tag) for tag in names}
    if absent := [names[tag] for tag, value in uids.items() if not value]:
        raise refusal(path, Code.NO_UID, f"{', '.join(absent)} absent: it cannot be assigned to a scan")
    return uids


def _only_frame(elements: Elements) -> Frame:
    """Geometry and rescale of a file that holds one slice."""
    thickness = elements.decimals(THICKNESS, 1) or (None,)
    slope, intercept = elements.decimals(SLOPE, 1) or (None,), elements.decimals(INTERCEPT, 1) or (None,)
    return Frame(
        position=elements.decimals(POSITION, 3),
        orientation=elements.decimals(ORIENTATION, 6),
        spacing=elements.decimals(SPACING, 2),
        thickness=thickness[0],
        slope=slope[0],
        intercept=intercept[0],
        rescale_type=elements.text(RESCALE_TYPE),
        kernel=elements.text(KERNEL),
        contrast=False,  # said of the file
        kind="",
    )


def _geometry(
    path: Path, frame: Frame
) -> tuple[tuple[float, float, float], tuple[float, ...], tuple[float, float]]:
    """Position (mm), orientation and pixel spacing (mm), checked (PS3.3 C.7.6.2)."""
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
    if min(spacing) <= 0:
        raise refusal(path, Code.NO_GEOMETRY, f"PixelSpacing must be positive; got {spacing} mm")
    return (position[0], position[1], position[2]), orientation, (spacing[0], spacing[1])


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _rescale(path: Path, frame: Frame, *, needs_hu: bool) -> tuple[float, float]:
    """RescaleSlope (HU per unit) and RescaleIntercept (HU), both required of a CT image (PS3.3 C.8.2.1).

    `needs_hu`: an Enhanced CT says HU where it means HU (PS3.3 C.8.15.3.10), `US` is a map of something else.
    """
    if frame.slope is None or frame.intercept is None or frame.slope == 0:
        reason = "RescaleSlope or RescaleIntercept is absent, not a number, or a slope of 0"
        raise refusal(path, Code.NO_HU_SCALE, reason)
    unit = frame.rescale_type.upper()
    if unit not in ({"", "HU"} if needs_hu else _HU_TYPES):
        raise refusal(path, Code.NO_HU_SCALE, f"RescaleType is {unit!r}, HU is needed")
    return frame.slope, frame.intercept


def _stored_pixels(path: Path, elements: Elements, n_pixels: int, n_frames: int) -> StoredPixels:
    """Where the pixels lie and how they are stored; slope and intercept are those of each frame."""
    if elements.pixel_offset < 0:
        raise refusal(path, Code.UNREADABLE, f"it has no Pixel Data (7FE0,0010), {_WITHOUT_PIXELS}")
    allocated = elements.short(BITS_ALLOCATED)
    if allocated not in (8, 16):
        raise refusal(path, Code.UNREADABLE, f"BitsAllocated is {allocated}; CT values have 8 or 16")
    stored = elements.short(BITS_STORED) or allocated
    if not 1 <= stored <= allocated:
        raise refusal(path, Code.UNREADABLE, f"BitsStored is {stored}, BitsAllocated is {allocated}")
    available = elements.n_bytes - elements.pixel_offset
    length = elements.pixel_length
    needed = n_pixels * n_frames * allocated // 8
    deflated = elements.syntax == DeflatedExplicitVRLittleEndian  # only its header was inflated
    if elements.syntax in NATIVE:
        if length < needed or (available < needed and not deflated):
            have = max(min(length, available), 0)
            reason = f"pixel data are cut off: {have} of {needed} bytes"
            raise refusal(path, Code.UNREADABLE, reason)
    elif available <= 0:
        raise refusal(path, Code.UNREADABLE, "pixel data are cut off: the file ends before them")
    signed = elements.short(SIGNED) == 1
    padding = elements.short(PADDING, signed=signed)
    limit = elements.short(PADDING_LIMIT, signed=signed)
    ends = None if padding is None else sorted((padding, padding if limit is None else limit))
    return StoredPixels(
        syntax=elements.syntax,
        offset=elements.pixel_offset,
        frames=n_frames,
        bits_allocated=allocated,
        bits_stored=stored,
        signed=signed,
        slope=math.nan,
        intercept=math.nan,
        padding=None if ends is None else (ends[0], ends[1]),
    )

"""Header reader for DICOM CT files.

In: the path of one file. Out: one `SliceHeader` per CT slice in the file, or a `DicomError` whose code gives
the reason for refusal (`ich_mil.dicom.files.refusal`). Pixels are not read, so indexing is fast.

Source: DICOM PS3.3 A.3 (CT Image IOD), A.38 (Enhanced CT).
Legend: `H, W` pixels.
"""

import re
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from ich_mil.dicom.files.contrast_agent import agent_given
from ich_mil.dicom.files.elements import Elements, EmptyFileError, NotDicomError, read_elements
from ich_mil.dicom.files.frames import Frame, read_frames
from ich_mil.dicom.files.refusal import (
    MULTI_FRAME_CT,
    check_frames,
    check_geometry,
    check_kind,
    check_pixel_data,
    check_rescale,
    check_size,
    check_uids,
    refusal,
    refusal_of,
)
from ich_mil.dicom.files.tags import (
    ACQUISITION,
    BODY_PART,
    DESCRIPTION,
    HEADER_TAGS,
    IMAGE_TYPE,
    INSTANCE,
    INTERCEPT,
    KERNEL,
    LOSSY,
    NUMBER_OF_FRAMES,
    ORIENTATION,
    PADDING,
    PADDING_LIMIT,
    PATIENT_ID,
    POSITION,
    RESCALE_TYPE,
    SERIES_UID,
    SIGNED,
    SLOPE,
    SOP_UID,
    SPACING,
    STUDY_UID,
    THICKNESS,
)
from ich_mil.errors import DicomError
from ich_mil.ledger import Code

# File names of archives; .nii.gz (NIfTI) and .csv.gz (a table) are not archives.
_ARCHIVE = re.compile(r".+(\.(zip|7z|rar|tar|tgz)|(?<!\.nii|\.csv)\.(gz|bz2|xz|zst))", re.IGNORECASE)
# ImageType of a projection (Siemens writes 'CT_SOM5 MIP'), a subtraction, an iodine map or a virtual
# non-contrast image: all are derived from an angiography (PS3.3 C.8.2.1.1.1, C.8.16.1).
_OF_ANGIOGRAPHY = re.compile(r"\b(mip|m(ax|in)[ _]?ip|subtraction|mat_(specific|removed))\b", re.IGNORECASE)


@dataclass(frozen=True)
class StoredPixels:
    """Storage attributes and location of the pixels of one slice.

    Attributes:
        syntax: transfer syntax UID (0002,0010).
        offset: offset of the Pixel Data value in the file, inflated if it is deflated [bytes].
        frames: NumberOfFrames (0028,0008) of the file, 1 if absent.
        bits_allocated: BitsAllocated (0028,0100), 8 or 16.
        bits_stored: BitsStored (0028,0101).
        signed: True if PixelRepresentation (0028,0103) is 1.
        slope: RescaleSlope (0028,1053) of this slice, HU per stored unit.
        intercept: RescaleIntercept (0028,1052) of this slice, HU.
        padding: PixelPaddingValue (0028,0120) and PixelPaddingRangeLimit (0028,0121), lowest first; the value
            twice if there is no limit; None without padding.
        lossy: True if LossyImageCompression (0028,2110) is 01.
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
    lossy: bool = False


@dataclass(frozen=True)
class SliceHeader:
    """Header attributes of one CT slice; texts are empty if absent.

    Attributes:
        path: path of the file, as given.
        frame: index of the frame in a multi-frame file, from 0.
        sop_uid: SOPInstanceUID (0008,0018).
        study_uid: StudyInstanceUID (0020,000D).
        series_uid: SeriesInstanceUID (0020,000E).
        patient_id: PatientID (0010,0020), may be empty.
        rows: Rows (0028,0010), H.
        columns: Columns (0028,0011), W.
        position: ImagePositionPatient (0020,0032), mm.
        orientation: ImageOrientationPatient (0020,0037), six direction cosines.
        spacing: PixelSpacing (0028,0030), mm between rows and between columns.
        thickness: SliceThickness (0018,0050), mm; None if absent or not positive.
        instance_number: InstanceNumber (0020,0013); the same for all frames of a file.
        acquisition: AcquisitionNumber (0020,0012).
        description: SeriesDescription (0008,103E).
        kernel: ConvolutionKernel (0018,1210), several values joined by a backslash.
        body_part: BodyPartExamined (0018,0015), upper case.
        contrast: True if a contrast agent was given according to the file (0018,0010) or the frame
            (0018,9342), or if ImageType or FrameType is a projection, a subtraction, a material map or an
            image with a material removed.
        pixels: storage attributes of the pixels.
        notes: accepted deviations from the standard, as (code, detail) pairs.
        no_contrast: True if the file or the frame states that no agent was given.
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
    no_contrast: bool = False


def read_headers(path: str | Path) -> tuple[SliceHeader, ...]:
    """Read the headers of the CT slices in one file.

    Args:
        path: a DICOM file, with or without the 128-byte preamble.

    Returns:
        One header; for a multi-frame file one per frame, in frame order.

    Raises:
        DicomError: the file is refused, with code
            `not-dicom` (for example text, AppleDouble),
            `not-an-image` (DICOMDIR),
            `not-ct` (another modality or SOP class, or colour pixels),
            `localizer` (by ImageType or FrameType),
            `multi-frame` (frames without per-frame description, or only some frames are localizers),
            `no-uid` (study, series or SOP instance UID absent),
            `no-geometry` (position, orientation or pixel spacing absent or impossible),
            `no-hu-scale` (no rescale, rescale to other units, or a perfusion map),
            `not-opened` (operating system error, archive such as .zip, DICOMDIR with absent images),
            `unreadable` (empty, truncated, no pixel data, cannot be parsed, impossible sizes).
    """
    path = Path(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom warns about invalid values, frequent in RSNA files
        try:
            if stat.S_ISFIFO(path.stat().st_mode):  # opening a FIFO blocks until a writer opens it
                raise NotDicomError
            elements = read_elements(path, HEADER_TAGS)
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
        except Exception as error:  # a damaged file can raise any exception in pydicom's parser
            raise _refused(path, error) from error


def _refused(path: Path, error: Exception) -> DicomError:
    """Error for a file that could not be opened or parsed."""
    if isinstance(error, EmptyFileError):
        failed = "it is empty, or zeros stand where it should begin: a copy that failed"
        refused = refusal(path, Code.UNREADABLE, failed)
    elif isinstance(error, NotDicomError) and _ARCHIVE.fullmatch(path.name):
        packed = "it is an archive, and what is in it was not looked at: unpack it"
        refused = refusal(path, Code.NOT_OPENED, packed)
    elif isinstance(error, NotDicomError):
        refused = refusal(path, Code.NOT_DICOM, "it is not a DICOM file (PS3.10)")
    else:
        refused = refusal_of(path, error, failed="its header cannot be parsed")
    refused.is_dicom = not isinstance(error, NotDicomError) and refused.code != Code.NOT_OPENED
    return refused


def _headers(path: Path, elements: Elements) -> tuple[SliceHeader, ...]:
    """Check that the file holds CT slices and extract their headers."""
    sop_class, notes = check_kind(path, elements)
    rows, columns = check_size(path, elements)
    uids = check_uids(path, elements)
    multi_frame = sop_class in MULTI_FRAME_CT
    frames = read_frames(elements.sequences()) if multi_frame else [_only_frame(elements)]
    n_frames = elements.integer(NUMBER_OF_FRAMES) or 1
    check_frames(path, frames, n_frames)
    allocated, stored = check_pixel_data(path, elements, rows * columns * n_frames)
    signed = elements.short(SIGNED) == 1
    padding = _padding(elements, signed=signed)
    agent, kind = agent_given(elements), elements.text(IMAGE_TYPE)
    headers = []
    for index, frame in enumerate(frames):
        position, orientation, spacing = check_geometry(path, frame)
        slope, intercept = check_rescale(path, frame, needs_hu=multi_frame)
        given = agent if frame.contrast is None else frame.contrast
        contrast = bool(given) or _OF_ANGIOGRAPHY.search(f"{kind}\\{frame.kind}") is not None
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
                contrast=contrast,
                no_contrast=given is False and not contrast,
                pixels=StoredPixels(
                    syntax=elements.syntax,
                    offset=elements.pixel_offset,
                    frames=n_frames,
                    bits_allocated=allocated,
                    bits_stored=stored,
                    signed=signed,
                    slope=slope,
                    intercept=intercept,
                    padding=padding,
                    lossy=elements.text(LOSSY) == "01",
                ),
                notes=notes,
            )
        )
    return tuple(headers)


def _only_frame(elements: Elements) -> Frame:
    """Geometry and rescale of a single-frame file."""
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
        contrast=None,  # `agent_given` reads it from the file
        kind="",
    )


def _padding(elements: Elements, *, signed: bool) -> tuple[int, int] | None:
    """Range from PixelPaddingValue to PixelPaddingRangeLimit, lowest first; None without padding."""
    value = elements.short(PADDING, signed=signed)
    if value is None:
        return None
    limit = elements.short(PADDING_LIMIT, signed=signed)
    return (value, value) if limit is None else (min(value, limit), max(value, limit))

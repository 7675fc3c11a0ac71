"""One DICOM file's header: what it says of each of its CT slices, and where their pixels lie.

In: the path of one file. Out: a `SliceHeader` for each slice in it; or a `DicomError`, whose code says why
it is refused (`ich_mil.dicom.refusal`). Pixels are not read: this is the fast pass over a whole data set.

Source: DICOM PS3.3 A.3 (CT Image IOD), A.38 (Enhanced CT).
Legend: `H, W` pixels.
"""

import re
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from ich_mil.dicom.agent import agent_given
from ich_mil.dicom.elements import Elements, EmptyFileError, NotDicomError, read_elements
from ich_mil.dicom.frames import Frame, read_frames
from ich_mil.dicom.refusal import (
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
from ich_mil.dicom.tags import (
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

# Names of archives; a .nii.gz or .csv.gz is no archive but a NIfTI file or a table.
_ARCHIVE = re.compile(r".+(\.(zip|7z|rar|tar|tgz)|(?<!\.nii|\.csv)\.(gz|bz2|xz|zst))", re.IGNORECASE)
# ImageType of a projection (Siemens writes 'CT_SOM5 MIP'), a subtraction, a map of iodine or a picture
# without its iodine: all are made of an angiography (PS3.3 C.8.2.1.1.1, C.8.16.1).
_OF_ANGIOGRAPHY = re.compile(r"\b(mip|m(ax|in)[ _]?ip|subtraction|mat_(specific|removed))\b", re.IGNORECASE)


@dataclass(frozen=True)
class StoredPixels:
    """How the pixels of one slice are stored, and where.

    Attributes:
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
        lossy: LossyImageCompression (0028,2110) is 01.
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
    """What the header of one CT slice says; texts are empty where the file has none.

    Attributes:
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
        contrast: an agent was given, as the file or the frame says (0018,0010; 0018,9342), or as ImageType or
            FrameType do: a projection, a subtraction, a map of a material or a picture without it.
        pixels: how its pixels are stored.
        notes: what was accepted though the standard asks for more, as (code, detail).
        no_contrast: the file or the frame says that no agent was given.
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
        except Exception as error:  # a broken file can raise anything from inside pydicom's parser
            raise _refused(path, error) from error


def _refused(path: Path, error: Exception) -> DicomError:
    """The refusal of a file that could not be opened or parsed."""
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
    """Check that the file holds CT slices, and take what we need of them."""
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
        contrast=None,  # said of the file
        kind="",
    )


def _padding(elements: Elements, *, signed: bool) -> tuple[int, int] | None:
    """The range of PixelPaddingValue, lowest first."""
    value = elements.short(PADDING, signed=signed)
    if value is None:
        return None
    limit = elements.short(PADDING_LIMIT, signed=signed)
    return (value, value) if limit is None else (min(value, limit), max(value, limit))

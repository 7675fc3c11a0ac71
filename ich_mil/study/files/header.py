"""Header reader for DICOM CT files.

In: the path of one file. Out: one `SliceHeader` per CT slice in the file, or a `DicomError` whose code gives
the reason for refusal (`ich_mil.study.files.refusal`). Pixels are not read, so indexing is fast. Headers are
kept as JSON in the header index, and slices have a name in the ledger.

Source: DICOM PS3.3 A.3 (CT Image IOD), A.38 (Enhanced CT).
Legend: `H, W` pixels.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ich_mil.errors import DicomError
from ich_mil.ledger import Code, LedgerEntry
from ich_mil.study.files.elements import Elements, EmptyFileError, NotDicomError, read_elements
from ich_mil.study.files.frames import SEQUENCES, agent_given, frames_of
from ich_mil.study.files.refusal import (
    MULTI_FRAME_CT,
    check_capture,
    check_frame_number,
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

SEPARATORS = (",", ":")
"""JSON separators of the header index, fixed because headers are compared as text."""

_KEYWORDS = frozenset(
    """
    SOPClassUID SOPInstanceUID StudyInstanceUID SeriesInstanceUID PatientID Modality ImageType NumberOfFrames
    SamplesPerPixel PhotometricInterpretation Rows Columns ImagePositionPatient ImageOrientationPatient
    PixelSpacing SliceThickness InstanceNumber AcquisitionNumber SeriesDescription ConvolutionKernel
    BodyPartExamined LossyImageCompression ContrastBolusAgent ContrastBolusAgentSequence ContrastBolusRoute
    ContrastBolusVolume BitsAllocated BitsStored PixelRepresentation RescaleSlope RescaleIntercept RescaleType
    PixelPaddingValue PixelPaddingRangeLimit KVP Exposure
    """.split()  # noqa: SIM905 (a list literal would take 34 lines)
) | {*SEQUENCES}
# File names of archives; .nii.gz (NIfTI) and .csv.gz (a table) are not archives.
_ARCHIVE = re.compile(r".+(\.(zip|7z|rar|tar|tgz)|(?<!\.nii|\.csv)\.(gz|bz2|xz|zst))", re.IGNORECASE)
_PAIR = re.compile(r".+\.(hdr|img)(\.gz)?", re.IGNORECASE)
# ImageType of a projection (Siemens writes 'CT_SOM5 MIP'), a subtraction, an iodine map or a virtual
# non-contrast image: all are derived from an angiography (PS3.3 C.8.2.1.1.1, C.8.16.1).
_OF_ANGIOGRAPHY = re.compile(r"\b(mip|m(ax|in)[ _]?ip|subtraction|mat_(specific|removed))\b", re.IGNORECASE)


@dataclass(frozen=True)
class StoredPixels:
    """Storage attributes and location of the pixels of one slice.

    Attributes:
        syntax: transfer syntax UID.
        offset: offset of the Pixel Data value in the file, inflated if it is deflated [bytes].
        frames: number of frames of the file.
        slope, intercept: HU per stored unit, HU.
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
        frame: index of the frame in a multi-frame file, from 0.
        position: ImagePositionPatient, mm.
        orientation: ImageOrientationPatient, six direction cosines.
        spacing: distance between rows and between columns, mm.
        thickness: mm; None if absent or not positive.
        instance_number: the same for all frames of a file.
        kernel: ConvolutionKernel, several values joined by a backslash.
        body_part: BodyPartExamined, upper case.
        contrast: True if a contrast agent was given according to the file (0018,0010) or the frame
            (0018,9342), or if ImageType or FrameType is derived from an angiography.
        notes: accepted deviations from the standard, as (code, detail) pairs.
        no_contrast: True if the file or the frame states that no agent was given.
        image_type: ImageType and FrameType, their values joined by a backslash.
        kvp: tube voltage, kV; None if absent.
        exposure: Exposure, mAs; None if absent.
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
    image_type: str = ""
    kvp: float | None = None
    exposure: float | None = None


def read_headers(path: str | Path) -> tuple[SliceHeader, ...]:
    """Read the headers of the CT slices in one file, with or without the 128-byte preamble.

    Returns:
        One header; for a multi-frame file one per frame, in frame order.

    Raises:
        DicomError: the file is refused, with code
            `not-dicom` (for example text, AppleDouble),
            `not-an-image` (DICOMDIR),
            `not-ct` (another modality or SOP class, or colour pixels),
            `localizer` (by ImageType or FrameType),
            `capture` (a dose sheet or screen capture without position),
            `multi-frame` (too many frames, frames without per-frame description, some of them localizers),
            `no-uid` (study, series or SOP instance UID absent),
            `no-geometry` (position, orientation or pixel spacing absent or impossible),
            `no-hu-scale` (no rescale, rescale to other units, or a perfusion map),
            `not-opened` (operating system error, archive such as .zip, DICOMDIR with absent images),
            `unreadable` (empty, truncated, no pixel data, cannot be parsed, impossible sizes).
    """
    return headers_and_elements(path)[0]


def headers_and_elements(
    path: str | Path, more: Iterable[str] = ()
) -> tuple[tuple[SliceHeader, ...], Elements]:
    """Headers of `read_headers`, and the elements of the file with `more` keywords; one read of the file."""
    path = Path(path)
    try:
        elements = read_elements(path, {*_KEYWORDS, *more})
    except Exception as error:  # a damaged file can raise any exception in pydicom's parser
        raise _refused(path, error) from error
    try:
        return _headers(path, elements), elements
    except Exception as error:  # pydicom parses a sequence when it is read
        refused = error if isinstance(error, DicomError) else _refused(path, error)
        refused.study_uid = elements.text("StudyInstanceUID")
        refused.sop_uid = elements.text("SOPInstanceUID")
        refused.series_uid = elements.text("SeriesInstanceUID")
        refused.orientation = elements.decimals("ImageOrientationPatient", 6)
        raise refused from error.__cause__


def _refused(path: Path, error: Exception) -> DicomError:
    """Error for a file that could not be opened or parsed."""
    if isinstance(error, EmptyFileError):
        failed = "the file is empty or begins with zeros, as after a failed copy: copy it again"
        refused = refusal(path, Code.UNREADABLE, failed)
    elif isinstance(error, NotDicomError) and _ARCHIVE.fullmatch(path.name):
        packed = "it is an archive, whose contents are not read: unpack it"
        refused = refusal(path, Code.NOT_OPENED, packed)
    elif isinstance(error, NotDicomError):
        pair = "; save a NIfTI pair .hdr and .img as one .nii file" if _PAIR.fullmatch(path.name) else ""
        refused = refusal(path, Code.NOT_DICOM, f"it is not a DICOM file (PS3.10){pair}")
    else:
        refused = refusal_of(path, error, failed="not a readable DICOM file")
    refused.is_dicom = not isinstance(error, NotDicomError) and refused.code != Code.NOT_OPENED
    return refused


def _headers(path: Path, elements: Elements) -> tuple[SliceHeader, ...]:
    """Check that the file holds CT slices and extract their headers."""
    sop_class, notes = check_kind(path, elements)
    rows, columns = check_size(path, elements)
    uids = check_uids(path, elements)
    multi_frame = sop_class in MULTI_FRAME_CT
    if not multi_frame:
        check_capture(path, elements)
    n_frames = elements.integer("NumberOfFrames") or 1
    check_frame_number(path, n_frames)
    frames = frames_of(elements) if multi_frame else [elements]
    check_frames(path, frames, n_frames)
    allocated, stored = check_pixel_data(path, elements, rows * columns * n_frames)
    signed = elements.short("PixelRepresentation") == 1
    kind = elements.text("ImageType")
    of_file: dict[str, Any] = {
        "path": str(path),
        "sop_uid": uids["SOPInstanceUID"],
        "study_uid": uids["StudyInstanceUID"],
        "series_uid": uids["SeriesInstanceUID"],
        "patient_id": elements.text("PatientID"),
        "rows": rows,
        "columns": columns,
        "instance_number": elements.integer("InstanceNumber"),
        "acquisition": elements.integer("AcquisitionNumber"),
        "description": elements.text("SeriesDescription"),
        "body_part": elements.text("BodyPartExamined").upper(),
        "notes": notes,
    }
    pixels: dict[str, Any] = {
        "syntax": elements.syntax,
        "offset": elements.pixel_offset,
        "frames": n_frames,
        "bits_allocated": allocated,
        "bits_stored": stored,
        "signed": signed,
        "padding": _padding(elements, signed=signed),
        "lossy": elements.text("LossyImageCompression") == "01",
    }
    headers = []
    for index, frame in enumerate(frames):
        position, orientation, spacing = check_geometry(path, frame)
        slope, intercept = check_rescale(path, frame, needs_hu=multi_frame)
        given, thickness = agent_given(frame), frame.decimal("SliceThickness")
        image_type = "\\".join(filter(None, (kind, frame.text("FrameType"))))
        contrast = bool(given) or _OF_ANGIOGRAPHY.search(image_type) is not None
        header = SliceHeader(
            **of_file,
            frame=index,
            position=position,
            orientation=orientation,
            spacing=spacing,
            thickness=thickness if thickness and thickness > 0 else None,
            kernel=frame.text("ConvolutionKernel"),
            contrast=contrast,
            no_contrast=given is False and not contrast,
            image_type=image_type,
            kvp=frame.decimal("KVP"),
            exposure=frame.decimal("Exposure"),
            pixels=StoredPixels(**pixels, slope=slope, intercept=intercept),
        )
        headers.append(header)
    return tuple(headers)


def _padding(elements: Elements, *, signed: bool) -> tuple[int, int] | None:
    """Range from PixelPaddingValue to PixelPaddingRangeLimit, lowest first; None without padding."""
    value = elements.short("PixelPaddingValue", signed=signed)
    if value is None:
        return None
    limit = elements.short("PixelPaddingRangeLimit", signed=signed)
    return (value, value) if limit is None else (min(value, limit), max(value, limit))


def slice_name(header: SliceHeader) -> str:
    """Name of a slice in the ledger: path, and for a multi-frame file the frame index from 0."""
    return header.path if header.pixels.frames == 1 else f"{header.path} frame {header.frame}"


def slice_file(root: Path, name: str) -> tuple[Path, int]:
    """File below `root` and frame index for a name from `slice_name`."""
    match = re.fullmatch(r"(.*) frame (\d+)", name, re.DOTALL)
    if match and not (root / name).exists():
        return root / match[1], int(match[2])
    return root / name, 0


def slice_entry(header: SliceHeader, code: Code, detail: str) -> LedgerEntry:
    """Ledger entry for one slice."""
    frame = "" if header.pixels.frames == 1 else f"frame {header.frame}: "
    return LedgerEntry(header.study_uid, header.path, code, frame + detail)


def header_text(header: SliceHeader) -> str:
    """Serialize a header to JSON."""
    return json.dumps(vars(header) | {"pixels": vars(header.pixels)}, separators=SEPARATORS)


def header_of(path: str, text: str) -> SliceHeader:
    """Restore a header with the given path from JSON; lists become tuples."""
    row: dict[str, Any] = json.loads(text)
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    values["path"] = path
    values["notes"] = tuple((Code(code), detail) for code, detail in row["notes"])
    pixels = row["pixels"]
    pixels["padding"] = tuple(pixels["padding"]) if pixels["padding"] else None
    values["pixels"] = StoredPixels(**pixels)
    return SliceHeader(**values)

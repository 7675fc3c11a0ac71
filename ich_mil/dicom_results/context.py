"""Patient, study and source images of a scan, with values that are valid for DICOM results.

The source files must still be at the paths they were prepared from; only headers are read. Values that are
missing or invalid in the sources are supplied here, each with a line in `StudyContext.notes`: UIDs such as
`ID_...` become derived UIDs; FrameOfReferenceUID is derived from the series; SliceThickness is the median
distance between slices. A slice averaged from thin slices refers to all of them, with their mean position and
total extent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from pydicom.dataset import Dataset
from pydicom.uid import CTImageStorage

from ich_mil.dicom_results.patient import CARRIED, REQUIRED, SEQUENCES, patient_and_study
from ich_mil.dicom_results.values import derived_uid, paragraph, valid_or_empty, valid_uid
from ich_mil.errors import DataError, DicomError
from ich_mil.model.predictions import ScanPrediction
from ich_mil.study.files.elements import Elements
from ich_mil.study.files.header import SliceHeader, headers_and_elements, slice_file
from ich_mil.study.files.nifti import is_nifti
from ich_mil.study.geometry.planes import heights_along, normal_of
from ich_mil.study.geometry.upright import Upright
from ich_mil.study.study import Study

NOMINAL_THICKNESS_MM = 5.0
"""Thickness of a single slice without SliceThickness: most head CT is read in slices of 5 mm."""

_FRAME_OF_REFERENCE, _LOSSY = "FrameOfReferenceUID", "LossyImageCompression"
_LOSSY_MORE = {"LossyImageCompressionRatio": "DS", "LossyImageCompressionMethod": "CS"}
_SUPPLIED = {
    "SOPClassUID": "SOPClassUID is absent: that of the file meta information, else CT Image Storage.",
    _FRAME_OF_REFERENCE: "FrameOfReferenceUID is absent or not valid: one was derived.",
}
_THICKNESS_DIGITS = 3
"""Decimals of a thickness in mm: rounding to micrometres makes computed thicknesses of equal slices equal."""


_KEYWORDS = ("SOPClassUID", *REQUIRED, *CARRIED, *SEQUENCES, _FRAME_OF_REFERENCE, _LOSSY, *_LOSSY_MORE)


@dataclass(frozen=True)
class SourceImage:
    """One source image, or one frame (from 1) of a multi-frame image; all UIDs are valid.

    `supplied` are the DICOM keywords of values that are missing or invalid in the image; `lossy` is its
    LossyImageCompression, ratio and method by keyword, if any. The thickness of `header` is always set in a
    `StudyContext`.
    """

    sop_class: str
    sop_uid: str
    series_uid: str
    frame: int | None
    frame_of_reference: str
    supplied: tuple[str, ...]
    lossy: dict[str, str]
    header: SliceHeader


@dataclass(frozen=True)
class SourceSlice:
    """One slice and its source images from below, in most slices one; `original` is the UID in the files."""

    original: str
    images: tuple[SourceImage, ...]

    @property
    def middle(self) -> SourceImage:
        """The middle source image, which represents the slice."""
        return self.images[len(self.images) // 2]

    @property
    def position(self) -> tuple[float, ...]:
        """ImagePositionPatient, mm; the mean over the source images."""
        return tuple(map(fmean, zip(*(image.header.position for image in self.images), strict=True)))

    @property
    def thickness(self) -> float:
        """SliceThickness, mm; for several images from the lower face of the first to the top of the last."""
        every = [image.header.thickness or 0.0 for image in self.images]
        if len(every) == 1:
            return every[0]
        ends = [self.images[0].header, self.images[-1].header]
        first, last = heights_along(ends, normal_of(ends[0]))  # with tilt, positions shift in the plane too
        return round(last - first + fmean(every), _THICKNESS_DIGITS)


@dataclass(frozen=True)
class StudyContext:
    """Content of the source images for the DICOM results: valid patient and study elements, and slices.

    `notes` has one line for each supplied or changed value; `upright` turned the stored pixels of the slices.
    """

    elements: Dataset
    slices: tuple[SourceSlice, ...]
    notes: tuple[str, ...]
    upright: Upright

    @property
    def images(self) -> tuple[SourceImage, ...]:
        """All source images of all slices."""
        return tuple(image for slice_ in self.slices for image in slice_.images)


def loss_of(slices: Sequence[SourceSlice]) -> dict[str, str]:
    """Lossy compression elements, by keyword, of the first lossy source image; empty if there is none."""
    return next((image.lossy for slice_ in slices for image in slice_.images if image.lossy), {})


def frames_of(images: Iterable[SourceImage]) -> dict[tuple[str, str], list[int]]:
    """Frame numbers by file (SOP class UID, SOP instance UID); an empty list for a single-frame image."""
    frames: dict[tuple[str, str], list[int]] = {}
    for image in images:
        numbers = frames.setdefault((image.sop_class, image.sop_uid), [])
        numbers += [] if image.frame is None else [image.frame]
    return frames


def read_context(scan: ScanPrediction, study: Study) -> StudyContext:
    """Read the headers of the source images of a study.

    Raises:
        DataError: the slices of the study are not those of `scan`, or a source file is missing, has changed
            or is not DICOM.
    """
    if is_nifti(study.files[0].name):
        raise DataError(f"{study.files[0]}: is NIfTI; DICOM results need DICOM files, leave out --dicom")
    if [row["sop"] for row in study.rows] != [slice_.name for slice_ in scan.slices]:
        raise DataError(
            f"{study.root}: the slices of scan {scan.scan!r} are not those of the predictions; "
            "run 'ich-mil predict' again"
        )
    files: dict[Path, tuple[tuple[SliceHeader, ...], Elements]] = {}
    slices = [_source_slice(row, study.root, files) for row in study.rows]
    first = next(iter(files.values()))[1]
    notes: list[str] = []
    elements = patient_and_study(first, slices[0].middle.header.study_uid, notes)
    upright = Upright.of(slices[0].images[0].header)
    return StudyContext(elements, tuple(_supplied(slices, study, notes)), tuple(notes), upright)


def _source_slice(
    row: dict, root: Path, files: dict[Path, tuple[tuple[SliceHeader, ...], Elements]]
) -> SourceSlice:
    images = []
    for name, sop in zip(row["sources"], row["sops"], strict=True):
        path, frame = slice_file(root, name)
        if path not in files:
            try:
                files[path] = headers_and_elements(path, _KEYWORDS)
            except (DicomError, OSError) as error:
                raise DataError(
                    f"{path}: a source image can no longer be read; put the study back where it was prepared "
                    "from, or prepare and predict again"
                ) from error
        headers, elements = files[path]
        if frame >= len(headers) or headers[frame].sop_uid != sop:
            raise DataError(
                f"{path}: is no longer the image {sop} that was prepared; prepare and predict again"
            )
        images.append(_source_image(headers[frame], elements))
    return SourceSlice(row["sop"], tuple(images))


def _source_image(header: SliceHeader, elements: Elements) -> SourceImage:
    frame_of_reference = elements.text(_FRAME_OF_REFERENCE)
    sop_class = elements.text("SOPClassUID")
    given = {"SOPClassUID": sop_class, _FRAME_OF_REFERENCE: frame_of_reference}
    lossy = {_LOSSY: "01"} if elements.text(_LOSSY) == "01" else {}
    if lossy:
        texts = {keyword: valid_or_empty(elements.text(keyword), vr) for keyword, vr in _LOSSY_MORE.items()}
        lossy |= {keyword: text for keyword, text in texts.items() if text}
    return SourceImage(
        sop_class=valid_uid(sop_class or elements.media_sop_class or CTImageStorage),
        sop_uid=valid_uid(header.sop_uid),
        series_uid=valid_uid(header.series_uid),
        frame=header.frame + 1 if header.pixels.frames > 1 else None,
        frame_of_reference=valid_uid(frame_of_reference)
        if frame_of_reference
        else derived_uid("frame of reference", header.study_uid, header.series_uid),
        supplied=tuple(name for name, uid in given.items() if valid_uid(uid) != uid),
        lossy=lossy,
        header=header,
    )


def _supplied(slices: Sequence[SourceSlice], study: Study, notes: list[str]) -> list[SourceSlice]:
    """Set a missing slice thickness, and add a note on every value supplied here or by `_source_image`."""
    images = [image for slice_ in slices for image in slice_.images]
    header = images[0].header
    for name, original in (("StudyInstanceUID", header.study_uid), ("SeriesInstanceUID", header.series_uid)):
        if valid_uid(original) != original:
            notes.append(f"{name} {paragraph(original)!r} is not valid, here it is {valid_uid(original)}.")
    if any(valid_uid(image.header.sop_uid) != image.header.sop_uid for image in images):
        notes.append("SOPInstanceUIDs that are not valid are replaced; tracking identifiers name them.")
    notes += [why for name, why in _SUPPLIED.items() if any(name in image.supplied for image in images)]
    if all(image.header.thickness is not None for image in images):
        return list(slices)
    positions = [row["position_mm"] for row in study.rows]
    steps = [b - a for a, b in pairwise(positions)]
    thickness = round(median(steps), _THICKNESS_DIGITS) if steps else NOMINAL_THICKNESS_MM
    notes.append(
        f"SliceThickness is absent: {thickness:.3f} mm, "
        + ("the distance of slices." if steps else "a nominal value.")
    )
    return [replace(slice_, images=_with_thickness(slice_.images, thickness)) for slice_ in slices]


def _with_thickness(images: Sequence[SourceImage], thickness: float) -> tuple[SourceImage, ...]:
    share = thickness / len(images)
    return tuple(
        image
        if image.header.thickness is not None
        else replace(image, header=replace(image.header, thickness=share))
        for image in images
    )

"""Geometry and rescale of each frame of an Enhanced CT image.

In: the data set of a multi-frame file, without Pixel Data. Out: one `Frame` per frame. Attributes that are
absent from the per-frame functional groups are taken from the shared functional groups.

Source: DICOM PS3.3 C.7.6.16 (functional groups), C.8.15 (Enhanced CT).
"""

from dataclasses import dataclass
from typing import Any

from pydicom.dataset import Dataset

from ich_mil.dicom.files.elements import finite_numbers


@dataclass(frozen=True)
class Frame:
    """Header attributes of one frame; None if absent or not finite numbers.

    Attributes:
        position: ImagePositionPatient, mm.
        orientation: ImageOrientationPatient, six direction cosines.
        spacing: PixelSpacing, mm.
        thickness: SliceThickness, mm.
        slope: RescaleSlope, HU per stored unit.
        intercept: RescaleIntercept, HU.
        rescale_type: RescaleType, '' if absent.
        kernel: ConvolutionKernel, '' if absent.
        contrast: whether a contrast agent was given; None if the functional groups do not say.
        kind: FrameType, values joined by a backslash.
    """

    position: tuple[float, ...] | None
    orientation: tuple[float, ...] | None
    spacing: tuple[float, ...] | None
    thickness: float | None
    slope: float | None
    intercept: float | None
    rescale_type: str
    kernel: str
    contrast: bool | None
    kind: str


def read_frames(ds: Dataset) -> list[Frame]:
    """Frames of a multi-frame data set, in the order of Pixel Data.

    Args:
        ds: data set with the functional group sequences.

    Returns:
        One frame per item of the per-frame functional groups; empty without that sequence.
    """
    shared = next(iter(ds.get("SharedFunctionalGroupsSequence") or []), Dataset())
    return [_frame(own, shared) for own in ds.get("PerFrameFunctionalGroupsSequence") or []]


def _frame(own: Dataset, shared: Dataset) -> Frame:
    def value(sequence: str, keyword: str) -> Any:
        """Value in the frame's own functional group, else in the shared group."""
        for groups in (own, shared):
            for item in groups.get(sequence) or []:
                if item.get(keyword) is not None:
                    return item.get(keyword)
        return None

    # one item per agent (PS3.3 C.7.6.16.2.12)
    agents = own.get("ContrastBolusUsageSequence") or shared.get("ContrastBolusUsageSequence") or []
    given = {told for agent in agents if (told := agent.get("ContrastBolusAgentAdministered"))}
    return Frame(
        position=finite_numbers(value("PlanePositionSequence", "ImagePositionPatient"), 3),
        orientation=finite_numbers(value("PlaneOrientationSequence", "ImageOrientationPatient"), 6),
        spacing=finite_numbers(value("PixelMeasuresSequence", "PixelSpacing"), 2),
        thickness=_number(value("PixelMeasuresSequence", "SliceThickness")),
        slope=_number(value("PixelValueTransformationSequence", "RescaleSlope")),
        intercept=_number(value("PixelValueTransformationSequence", "RescaleIntercept")),
        rescale_type=str(value("PixelValueTransformationSequence", "RescaleType") or "").strip(),
        kernel=_text(value("CTReconstructionSequence", "ConvolutionKernel")),
        contrast="YES" in given if given else None,
        kind=_text(value("CTImageFrameTypeSequence", "FrameType")),
    )


def _text(value: Any) -> str:
    """Text of one value, or several values joined by a backslash."""
    if value is None or isinstance(value, str):
        return str(value or "").strip()
    return "\\".join(str(part).strip() for part in value)


def _number(value: Any) -> float | None:
    """Convert one value to a finite number, or None."""
    numbers = finite_numbers([value], 1)
    return numbers[0] if numbers else None

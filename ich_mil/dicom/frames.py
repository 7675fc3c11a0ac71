"""The frames of an Enhanced CT: where each lies and how its values become HU.

In: the data set of a multi-frame file, without its pixels. Out: a `Frame` for each of them. What a frame's
own groups do not say, the shared groups say for all.

Source: DICOM PS3.3 C.7.6.16 (functional groups), C.8.15 (Enhanced CT).
"""

from dataclasses import dataclass
from typing import Any

from pydicom.dataset import Dataset

from ich_mil.dicom.elements import finite_numbers


@dataclass(frozen=True)
class Frame:
    """What the header says of one slice; None where it says nothing, or no finite numbers.

    Attributes:
        position: ImagePositionPatient, mm.
        orientation: ImageOrientationPatient, six direction cosines.
        spacing: PixelSpacing, mm.
        thickness: SliceThickness, mm.
        slope: RescaleSlope, HU per stored unit.
        intercept: RescaleIntercept, HU.
        rescale_type: RescaleType, '' where absent.
        kernel: ConvolutionKernel, '' where absent.
        contrast: whether an agent had been given; None where the frame's groups do not tell.
        kind: FrameType, its values joined by a backslash.
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
    """The frames of a multi-frame data set, in the order of its pixels.

    Args:
        ds: the data set, with its functional group sequences.

    Returns:
        One frame for each item of the per-frame groups; none where there is no such sequence.
    """
    shared = next(iter(ds.get("SharedFunctionalGroupsSequence") or []), Dataset())
    return [_frame(own, shared) for own in ds.get("PerFrameFunctionalGroupsSequence") or []]


def _frame(own: Dataset, shared: Dataset) -> Frame:
    def value(sequence: str, keyword: str) -> Any:
        """What the frame's own group says, else the shared one."""
        for groups in (own, shared):
            for item in groups.get(sequence) or []:
                if item.get(keyword) is not None:
                    return item.get(keyword)
        return None

    # an item for each agent (PS3.3 C.7.6.16.2.12)
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
    """One value or several as one text."""
    if value is None or isinstance(value, str):
        return str(value or "").strip()
    return "\\".join(str(part).strip() for part in value)


def _number(value: Any) -> float | None:
    """One finite number, or None."""
    numbers = finite_numbers([value], 1)
    return numbers[0] if numbers else None

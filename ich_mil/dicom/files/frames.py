"""Geometry, rescale and contrast agent of each frame of a CT file.

In: the elements of a single-frame file, or the data set of an Enhanced CT image without Pixel Data. Out: one
`Frame` per frame. Attributes that are absent from the per-frame functional groups are taken from the shared
functional groups.

Source: DICOM PS3.3 C.7.6.4 (Contrast/Bolus), C.7.6.16 (functional groups), C.8.15 (Enhanced CT).
"""

import re
from dataclasses import dataclass
from typing import Any

from pydicom.dataset import Dataset

from ich_mil.dicom.contrast import contrast_words
from ich_mil.dicom.files.elements import MOST_VALUE_BYTES, Elements, finite_numbers


@dataclass(frozen=True)
class Frame:
    """Header attributes of one frame: numbers are None if absent or not finite, texts '' if absent.

    Position, spacing and thickness are in mm, the orientation has six direction cosines, slope is in HU per
    stored unit and intercept in HU. `contrast` is None if the functional groups do not say whether an agent
    was given. `kind` is FrameType, values joined by a backslash.
    """

    position: tuple[float, ...] | None
    orientation: tuple[float, ...] | None
    spacing: tuple[float, ...] | None
    thickness: float | None
    slope: float | None
    intercept: float | None
    rescale_type: str
    kernel: str
    contrast: bool | None = None
    kind: str = ""


def only_frame(elements: Elements) -> Frame:
    """Frame of a single-frame file. Its contrast and kind are those of the file."""
    return Frame(
        position=elements.decimals("ImagePositionPatient", 3),
        orientation=elements.decimals("ImageOrientationPatient", 6),
        spacing=elements.decimals("PixelSpacing", 2),
        thickness=elements.decimal("SliceThickness"),
        slope=elements.decimal("RescaleSlope"),
        intercept=elements.decimal("RescaleIntercept"),
        rescale_type=elements.text("RescaleType"),
        kernel=elements.text("ConvolutionKernel"),
    )


def agent_given(elements: Elements) -> bool | None:
    """Whether a contrast agent was given, None if unknown.

    The first informative element decides, in this order: ContrastBolusAgent, ContrastBolusAgentSequence,
    ContrastBolusRoute, ContrastBolusVolume. De-identification empties ContrastBolusAgent and keeps the others
    (PS3.15 table E.1-1).
    """
    none_given = contrast_words().means_none
    if re.search(r"\w", agent := elements.text("ContrastBolusAgent")):
        return not none_given(agent)
    if "ContrastBolusAgentSequence" in elements.values:
        agents = elements.sequences().get("ContrastBolusAgentSequence") or []
        if names := [str(one.get("CodeMeaning") or "agent") for one in agents if len(one)]:
            return not all(map(none_given, names))
    if re.search(r"\w", route := elements.text("ContrastBolusRoute")):
        return not none_given(route)
    volume = elements.decimal("ContrastBolusVolume")
    return None if volume is None else volume > 0


def read_frames(ds: Dataset) -> list[Frame]:
    """Frames of a multi-frame data set, in the order of Pixel Data; empty without functional groups."""
    shared = next(iter(ds.get("SharedFunctionalGroupsSequence") or []), Dataset())
    return [_frame(own, shared) for own in ds.get("PerFrameFunctionalGroupsSequence") or []]


def _frame(own: Dataset, shared: Dataset) -> Frame:
    def value(sequence: str, keyword: str) -> Any:
        """Value in the frame's own functional group, else in the shared group."""
        items = (item for groups in (own, shared) for item in groups.get(sequence) or [])
        return next((found for item in items if (found := item.get(keyword)) is not None), None)

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
        rescale_type=_text(value("PixelValueTransformationSequence", "RescaleType")),
        kernel=_text(value("CTReconstructionSequence", "ConvolutionKernel")),
        contrast="YES" in given if given else None,
        kind=_text(value("CTImageFrameTypeSequence", "FrameType")),
    )


def _text(value: Any) -> str:
    """Text of one value, or several values joined by a backslash."""
    parts = [value] if value is None or isinstance(value, str) else value
    return "\\".join(str(part or "").strip() for part in parts)[:MOST_VALUE_BYTES]


def _number(value: Any) -> float | None:
    numbers = finite_numbers([value], 1)
    return numbers[0] if numbers else None

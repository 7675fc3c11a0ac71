"""Elements of each frame of a CT file, and whether a contrast agent was given.

In: the elements of a file. Out: one `Elements` per frame, in which attributes of an Enhanced CT come from the
per-frame functional groups, else from the shared ones.

Source: DICOM PS3.3 C.7.6.4 (Contrast/Bolus), C.7.6.16 (functional groups), C.8.15 (Enhanced CT).
"""

import re
from dataclasses import replace

from pydicom.dataset import Dataset

from ich_mil.study.contrast import means_no_agent
from ich_mil.study.files.elements import Elements, quiet, text_of

SEQUENCES = (
    "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
    "ContrastBolusAgentSequence",
)
"""Keywords of the sequences that this module reads."""
_FUNCTIONAL_GROUPS = {
    "ImagePositionPatient": "PlanePositionSequence",
    "ImageOrientationPatient": "PlaneOrientationSequence",
    "PixelSpacing": "PixelMeasuresSequence",
    "SliceThickness": "PixelMeasuresSequence",
    "RescaleSlope": "PixelValueTransformationSequence",
    "RescaleIntercept": "PixelValueTransformationSequence",
    "RescaleType": "PixelValueTransformationSequence",
    "ConvolutionKernel": "CTReconstructionSequence",
    "FrameType": "CTImageFrameTypeSequence",
    "KVP": "CTXRayDetailsSequence",
}


def frames_of(elements: Elements) -> list[Elements]:
    """Elements of each frame of a multi-frame file, in order; [] without functional groups."""
    shared = next(iter(elements.values.get("SharedFunctionalGroupsSequence") or []), Dataset())
    frames = elements.values.get("PerFrameFunctionalGroupsSequence") or []
    with quiet():
        return [replace(elements, values=elements.values | _frame_values(frame, shared)) for frame in frames]


def _frame_values(frame: Dataset, shared: Dataset) -> dict[str, object]:
    values: dict[str, object] = {}
    for keyword, sequence in _FUNCTIONAL_GROUPS.items():
        items = [item for groups in (frame, shared) for item in groups.get(sequence) or []]
        values[keyword] = next((v for item in items if (v := item.get(keyword)) is not None), None)
    # one item per agent (PS3.3 C.7.6.16.2.12)
    usage = frame.get("ContrastBolusUsageSequence") or shared.get("ContrastBolusUsageSequence") or []
    values["ContrastBolusAgentAdministered"] = [
        agent.get("ContrastBolusAgentAdministered") for agent in usage
    ]
    return values


def agent_given(frame: Elements) -> bool | None:
    """Whether a contrast agent was given, None if unknown.

    The first informative element decides, in this order: ContrastBolusAgentAdministered of the frame,
    ContrastBolusAgent, ContrastBolusAgentSequence, ContrastBolusRoute, ContrastBolusVolume. De-identification
    empties ContrastBolusAgent and keeps the others (PS3.15 table E.1-1).
    """
    if administered := set(filter(None, frame.values.get("ContrastBolusAgentAdministered", ()))):
        return "YES" in administered
    agents = [item for item in frame.values.get("ContrastBolusAgentSequence") or [] if len(item)]
    names = [text_of(item.get("CodeMeaning")) or "agent" for item in agents]
    for texts in ([frame.text("ContrastBolusAgent")], names, [frame.text("ContrastBolusRoute")]):
        if texts := [text for text in texts if re.search(r"\w", text)]:
            return not all(map(means_no_agent, texts))
    volume = frame.decimal("ContrastBolusVolume")
    return None if volume is None else volume > 0

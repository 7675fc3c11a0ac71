"""Contrast agent administration according to a DICOM header.

In: the elements of one file. Out: True if a contrast agent was given, False if not, None if unknown.

Source: DICOM PS3.3 C.7.6.4 (Contrast/Bolus), C.7.6.4b (Enhanced Contrast/Bolus).
"""

import re

from ich_mil.dicom.contrast import contrast_words
from ich_mil.dicom.files.elements import Elements
from ich_mil.dicom.files.tags import AGENT, AGENT_ROUTE, AGENT_SEQUENCE, AGENT_VOLUME


def agent_given(elements: Elements) -> bool | None:
    """Whether a contrast agent was given, None if unknown.

    The first informative element decides, in this order: ContrastBolusAgent, ContrastBolusAgentSequence,
    ContrastBolusRoute, ContrastBolusVolume. De-identification empties ContrastBolusAgent and keeps the others
    (PS3.15 table E.1-1).
    """
    none_given = contrast_words().means_none
    if re.search(r"\w", agent := elements.text(AGENT)):
        return not none_given(agent)
    if AGENT_SEQUENCE in elements.values:
        agents = elements.sequences().get("ContrastBolusAgentSequence") or []
        if names := [str(one.get("CodeMeaning") or "agent") for one in agents if len(one)]:
            return not all(map(none_given, names))
    if re.search(r"\w", route := elements.text(AGENT_ROUTE)):
        return not none_given(route)
    volume = elements.decimals(AGENT_VOLUME, 1)
    return None if volume is None else volume[0] > 0

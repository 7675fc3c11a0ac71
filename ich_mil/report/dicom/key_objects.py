"""The slices to look at first: a Key Object Selection Document, and which slices these are.

In: the result of one scan and its context. Out: one object with references to the source images; of a slice
averaged from thin ones to the middle one, of multi-frame files to the frame. Its title is 'Of Interest'
(CID 7010), its description says that a model chose, and how.

Source: DICOM PS3.16 TID 2010; PS3.3 A.35.4.
"""

import numpy as np
from highdicom.ko import KeyObjectSelection, KeyObjectSelectionDocument

from ich_mil.evaluate.metrics import THRESHOLD
from ich_mil.predictions import NOTICE, ScanResult
from ich_mil.report.dicom import codes
from ich_mil.report.dicom.context import StudyContext
from ich_mil.report.dicom.identity import Identity, Kind, reference
from ich_mil.report.dicom.structured_report import device_context
from ich_mil.report.page import percent

KEY_SLICES = 8
"""Most key slices: the summary picture has room for as many."""


def key_slices(scan: ScanResult) -> list[int]:
    """Places of the slices to look at first, rising: the most probable of each run, then the most probable.

    Up to `KEY_SLICES`; of several that are equally probable the lowest.
    """
    probability = np.array([one.probability for one in scan.slices])
    best = [run.first + int(np.argmax(probability[run.first : run.last + 1])) for run in scan.runs]
    best.sort(key=lambda place: -probability[place])
    rest = np.argsort(-probability, kind="stable").tolist()
    return sorted(list(dict.fromkeys([*best, *rest]))[:KEY_SLICES])


def key_objects(scan: ScanResult, context: StudyContext, identity: Identity) -> KeyObjectSelectionDocument:
    """The selection of the key slices of one scan."""
    images = [context.slices[place].middle for place in key_slices(scan)]
    sources = [reference(context, image) for image in images]
    content = KeyObjectSelection(
        document_title=codes.OF_INTEREST,
        referenced_objects=sources,
        observer_device_context=device_context(identity),
        description=_description(scan),
    )
    references = [item for item in content[0].ContentSequence if item.ValueType == "IMAGE"]
    for image, item in zip(images, references, strict=True):
        if image.frame is not None:
            item.ReferencedSOPSequence[0].ReferencedFrameNumber = image.frame
    selection = KeyObjectSelectionDocument(
        evidence=list({one.SOPInstanceUID: one for one in sources}.values()),
        content=content,
        **identity.of_object(Kind.KEY),
    )
    identity.finish(selection, context)
    return selection


def _description(scan: ScanResult) -> str:
    """What was chosen and by whom, with a probability for each slice."""
    chosen = ", ".join(
        f"slice {place + 1} ({percent(scan.slices[place].probability)})" for place in key_slices(scan)
    )
    return (
        f"Chosen by a model: the most probable slice of each run of neighbours with at least "
        f"{100 * THRESHOLD:.0f} % probability of hemorrhage, then the most probable slices. From below: "
        f"{chosen}, of {len(scan.slices)}. {NOTICE}"
    )

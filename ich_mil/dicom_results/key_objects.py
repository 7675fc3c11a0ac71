"""Key Object Selection Document: the slices to look at first.

The reference of a slice averaged from thin slices is its middle image; for multi-frame files it includes the
frame number. The description states that a model selected the slices, and by which rule.

Source: DICOM PS3.16 TID 2010, CID 7010; PS3.3 A.35.4.
"""

import numpy as np
from highdicom.ko import KeyObjectSelection, KeyObjectSelectionDocument

from ich_mil.dicom_results import codes
from ich_mil.dicom_results.context import StudyContext
from ich_mil.dicom_results.identity import Identity, Kind, reference
from ich_mil.dicom_results.structured_report import device_context
from ich_mil.ledger import NOTICE, THRESHOLD
from ich_mil.model.predictions import ScanPrediction
from ich_mil.pages.page import percent

KEY_SLICES = 8
"""Largest number of key slices: the capacity of the summary picture."""


def key_slices(scan: ScanPrediction) -> list[int]:
    """Indices of at most `KEY_SLICES` key slices, the most probable first.

    The most probable slice of each run comes first in the selection, then the most probable slices of the
    scan; ties go to the lowest slice.
    """
    probability = np.array([slice_.probability for slice_ in scan.slices])
    best = [run.first + int(np.argmax(probability[run.first : run.last + 1])) for run in scan.runs]
    best.sort(key=lambda i: -probability[i])
    rest = np.argsort(-probability, kind="stable").tolist()
    chosen = list(dict.fromkeys([*best, *rest]))[:KEY_SLICES]
    return sorted(chosen, key=lambda i: (-probability[i], i))


def key_objects(
    scan: ScanPrediction, context: StudyContext, identity: Identity
) -> KeyObjectSelectionDocument:
    """Create the Key Object Selection Document of one scan."""
    images = [context.slices[i].middle for i in key_slices(scan)]
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
        evidence=list({source.SOPInstanceUID: source for source in sources}.values()),
        content=content,
        **identity.of_object(Kind.KEY),
    )
    identity.finish(selection, context)
    return selection


def _description(scan: ScanPrediction) -> str:
    chosen = ", ".join(f"slice {i + 1} ({percent(scan.slices[i].probability)})" for i in key_slices(scan))
    return (
        f"Chosen by a model: the most probable slice of each run of neighbours with at least "
        f"{100 * THRESHOLD:.0f} % probability of hemorrhage, then the most probable slices. From below: "
        f"{chosen}, of {len(scan.slices)}. {NOTICE}"
    )

"""Secondary Capture images of a result, which every DICOM viewer can display.

A series of RGB images: the summary, then one image for each slice with maps, the most probable first, which
shows the slice, the likely location of a bleed and its uncertainty. The images are in JPEG-LS without loss
and refer to the source images; their pixels contain no name of the patient.

Source: DICOM PS3.3 A.8.1 (Secondary Capture Image).
"""

from collections.abc import Sequence

import numpy as np
from highdicom.sc import SCImage
from pydicom.dataset import Dataset
from pydicom.uid import JPEGLSLossless

from ich_mil.dicom_results.context import SourceSlice, StudyContext, frames_of, loss_of
from ich_mil.dicom_results.identity import Identity, Kind, reference
from ich_mil.dicom_results.key_objects import key_slices
from ich_mil.dicom_results.picture import slice_picture, summary_picture
from ich_mil.dicom_results.values import paragraph
from ich_mil.ledger import NOTICE
from ich_mil.model.maps import ScanMaps
from ich_mil.model.predictions import Results, ScanPrediction
from ich_mil.study.geometry.planes import edges_of

_MOST_COMMENT = 10240
"""Largest number of characters of a long text (LT)."""


def secondary_captures(
    scan: ScanPrediction,
    results: Results,
    hu: np.ndarray,
    maps: ScanMaps | None,
    context: StudyContext,
    identity: Identity,
) -> list[SCImage]:
    """Create the Secondary Capture images of one scan, from `hu` (n, H, W) and `maps` (k, H, W) if any."""
    shown = key_slices(scan)
    edges = [
        edges_of(context.upright.orientation(slice_.middle.header.orientation)) for slice_ in context.slices
    ]
    summary = summary_picture(scan, results.model, results.decided_by, hu, maps, edges, shown)
    pictures = [(summary, shown, "summary")]
    if maps is not None:
        pictures += [
            (slice_picture(scan, i, hu, maps, edges[i]), [i], f"slice {i + 1} from below")
            for i in sorted(maps.slices.tolist(), key=lambda i: (-scan.slices[i].probability, i))
        ]
    captures = []
    for number, (pixels, indices, what) in enumerate(pictures, start=1):
        slices = [context.slices[i] for i in indices]
        captures.append(_capture(pixels, slices, what, number, context, identity))
    return captures


def _capture(
    pixels: np.ndarray,
    slices: Sequence[SourceSlice],
    what: str,
    number: int,
    context: StudyContext,
    identity: Identity,
) -> SCImage:
    image = SCImage.from_ref_dataset(
        reference(context, context.slices[0].middle),
        pixel_array=pixels,
        photometric_interpretation="RGB",
        bits_allocated=8,
        coordinate_system="PATIENT",
        patient_orientation=("L", "P"),
        transfer_syntax_uid=JPEGLSLossless,
        **identity.of_object(Kind.CAPTURE, number),
    )
    image.PatientOrientation = []  # undefined for several pictures on a page; highdicom requires a value
    image.ConversionType = "WSD"  # workstation
    del image.DateOfSecondaryCapture, image.TimeOfSecondaryCapture
    image.BodyPartExamined = "HEAD"
    image.BurnedInAnnotation = "NO"  # the drawn text does not identify the patient
    image.DerivationDescription = f"Result of a model, {what}"
    image.ImageComments = paragraph("\n".join([NOTICE, *context.notes]))[:_MOST_COMMENT]
    image.SourceImageSequence = _source_items(slices)
    for keyword, text in loss_of(slices).items():
        setattr(image, keyword, text)
    identity.finish(image, context)
    return image


def _source_items(slices: Sequence[SourceSlice]) -> list[Dataset]:
    """References to the displayed images: one item for each file, with its frame numbers."""
    items = []
    for file, frames in frames_of(image for slice_ in slices for image in slice_.images).items():
        item = Dataset()
        item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = file
        if frames:
            item.ReferencedFrameNumber = frames
        items.append(item)
    return items

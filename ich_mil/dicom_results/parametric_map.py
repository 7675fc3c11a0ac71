"""Parametric Maps of the location of a bleed: its probability and the standard deviation of that.

Two objects, each with one frame for each slice that has maps. Values are probabilities without unit
(`ich_mil.model.maps`), stored as 16-bit shares of 1 in JPEG-LS without loss. A frame has the position of its
slice and refers to all source images of that slice. Thickness and orientation are per-frame functional groups
where they differ between slices. Slices of another frame of reference, as in a scan of several series, are
stored in separate objects and series.

Source: DICOM PS3.3 A.75 (Parametric Map), C.7.6.16 (functional groups), C.7.6.16.2.11 (real world values).
Shapes: k slices with maps, H, W pixels.
"""

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
from highdicom import (
    CoordinateSystemNames,
    PixelMeasuresSequence,
    PlaneOrientationSequence,
    VOILUTFunctionValues,
    VOILUTTransformation,
)
from highdicom.pm import ParametricMap, RealWorldValueMapping
from highdicom.sr import CodedConcept
from pydicom.dataset import Dataset
from pydicom.uid import CTImageStorage, JPEGLSLossless
from pydicom.valuerep import DS

from ich_mil.dicom_results import codes
from ich_mil.dicom_results.context import SourceImage, SourceSlice, StudyContext, loss_of
from ich_mil.dicom_results.identity import Identity, Kind, reference
from ich_mil.model.maps import ScanMaps

_QUANTITIES: tuple[tuple[str, str, CodedConcept], ...] = (
    ("mean", "LOCATION", codes.LOCATION),
    ("std", "LOCATION_STD", codes.LOCATION_STD),
)
"""Attribute of `ScanMaps`, ContentLabel, quantity code."""
_ONE = 2**16 - 1
"""Stored value of 1."""


def parametric_maps(maps: ScanMaps, context: StudyContext, identity: Identity) -> list[ParametricMap]:
    """Create the Parametric Maps of one scan, on the stored pixels, from `maps` on the pixels of its slices.

    Returns:
        Probability and standard deviation for each frame of reference; most scans have one.
    """
    groups: dict[str, list[int]] = {}
    for row, i in enumerate(maps.slices.tolist()):
        groups.setdefault(context.slices[i].middle.frame_of_reference, []).append(row)
    objects: list[ParametricMap] = []
    for frame_of_reference, chosen in groups.items():
        slices = [context.slices[i] for i in maps.slices[chosen].tolist()]
        for attribute, label, quantity in _QUANTITIES:
            stored = context.upright.as_stored(getattr(maps, attribute)[chosen])
            values = np.rint(stored.astype(float) * _ONE).astype(np.uint16)
            arguments = identity.of_object(Kind.MAP, len(objects) + 1, series=frame_of_reference)
            objects.append(_parametric_map(values, slices, context, label, quantity, arguments))
            identity.finish(objects[-1], context)
            organization = identity.uid("dimensions", frame_of_reference)
            objects[-1].DimensionOrganizationSequence[0].DimensionOrganizationUID = organization
            for index in objects[-1].DimensionIndexSequence:
                index.DimensionOrganizationUID = organization
    return objects


def _parametric_map(
    values: np.ndarray,
    slices: Sequence[SourceSlice],
    context: StudyContext,
    label: str,
    quantity: CodedConcept,
    arguments: dict,
) -> ParametricMap:
    dataset = ParametricMap(
        source_images=[_flat_source(slice_, i, slices, context) for i, slice_ in enumerate(slices)],
        pixel_array=values,
        contains_recognizable_visual_features=False,
        real_world_value_mappings=[
            RealWorldValueMapping(
                lut_label=label,
                lut_explanation=quantity.meaning,
                unit=codes.NO_UNITS,
                value_range=(0, _ONE),
                slope=1 / _ONE,
                intercept=0.0,
                quantity_definition=quantity,
            )
        ],
        voi_lut_transformations=[
            VOILUTTransformation(_ONE / 2, _ONE, voi_lut_function=VOILUTFunctionValues.LINEAR_EXACT)
        ],
        content_label=label,
        content_description=quantity.meaning,
        coding_schemes=[codes.coding_scheme()],
        transfer_syntax_uid=JPEGLSLossless,
        **arguments,
    )
    dataset.BodyPartExamined = "HEAD"
    _describe_frames(dataset, slices)
    return dataset


def _flat_source(
    slice_: SourceSlice, number: int, slices: Sequence[SourceSlice], context: StudyContext
) -> Dataset:
    """Single-frame CT dataset for one slice, with its index as SOPInstanceUID.

    highdicom reads the geometry from it and sorts the frames. `_describe_frames` then writes the true
    references and the values that differ between slices.
    """
    first = slices[0].middle
    source = reference(context, first)
    source.SOPClassUID, source.SOPInstanceUID = CTImageStorage, str(number)
    source.FrameOfReferenceUID = first.frame_of_reference
    source.ImagePositionPatient = [DS(mm, auto_format=True) for mm in slice_.position]
    source.ImageOrientationPatient = list(first.header.orientation)
    source.PixelSpacing = list(first.header.spacing)
    source.SliceThickness = DS(slices[0].thickness, auto_format=True)
    for keyword, text in loss_of(slices).items():
        setattr(source, keyword, text)
    return source


def _describe_frames(dataset: ParametricMap, slices: Sequence[SourceSlice]) -> None:
    """Set the references to the source images, and per-frame groups for values that differ between slices."""
    shared = dataset.SharedFunctionalGroupsSequence[0]
    same_plane = len({slice_.middle.header.orientation for slice_ in slices}) == 1
    same_size = len({(slice_.middle.header.spacing, slice_.thickness) for slice_ in slices}) == 1
    if not same_plane:
        del shared.PlaneOrientationSequence
        dataset.pop("DimensionOrganizationType", None)
    if not (same_plane and same_size):
        del shared.PixelMeasuresSequence
    for frame in dataset.PerFrameFunctionalGroupsSequence:
        derivation = frame.DerivationImageSequence[0]
        (flat,) = derivation.SourceImageSequence
        slice_ = slices[int(flat.ReferencedSOPInstanceUID)]
        images, header = slice_.images, slice_.middle.header
        derivation.SourceImageSequence = [_source_item(flat, image, len(images)) for image in images]
        if "PlaneOrientationSequence" not in shared:
            frame.PlaneOrientationSequence = PlaneOrientationSequence(
                CoordinateSystemNames.PATIENT, header.orientation
            )
        if "PixelMeasuresSequence" not in shared:
            frame.PixelMeasuresSequence = PixelMeasuresSequence(header.spacing, slice_.thickness)
    by_series: dict[str, dict[str, Dataset]] = {}
    for image in (image for slice_ in slices for image in slice_.images):
        item = Dataset()
        item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = image.sop_class, image.sop_uid
        by_series.setdefault(image.series_uid, {})[image.sop_uid] = item
    dataset.SourceImageSequence = [item for items in by_series.values() for item in items.values()]
    dataset.ReferencedSeriesSequence = []
    for series_uid, items in by_series.items():
        series = Dataset()
        series.SeriesInstanceUID = series_uid
        series.ReferencedInstanceSequence = list(items.values())
        dataset.ReferencedSeriesSequence.append(series)


def _source_item(flat: Dataset, image: SourceImage, n_images: int) -> Dataset:
    item = deepcopy(flat)
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = image.sop_class, image.sop_uid
    if image.frame is not None:
        item.ReferencedFrameNumber = image.frame
    item.SpatialLocationsPreserved = "YES" if n_images == 1 else "NO"
    return item

"""Parametric Maps: values to 16 bits, geometry and references, read with pydicom and with highdicom."""

import io
from dataclasses import replace

import numpy as np
import pytest
from highdicom.pm import ParametricMap
from pydicom import dcmread
from pydicom.uid import EnhancedCTImageStorage

from ich_mil.dicom_results.context import read_context
from ich_mil.dicom_results.key_objects import key_slices
from ich_mil.dicom_results.parametric_map import parametric_maps
from ich_mil.study.files.header import read_headers
from ich_mil.study.geometry.planes import edges_of
from tests import phantoms
from tests.dicom_results.made import few_slices, identity_of, maps_of, referenced, write


def test_maps_are_stored_to_16_bits(made):
    context = read_context(made.scan, made.study)
    assert made.maps is not None
    fine = made.maps.on_grid(*made.prepared.hu(made.scan.scan).shape[1:])
    for path, values, code in zip(
        made.named("map"), (fine.mean, fine.std), ("LOCATION", "LOCATION-STD"), strict=True
    ):
        plain, rich = dcmread(path), ParametricMap.from_file(path)
        stored = plain.pixel_array / 65535
        assert len(stored) == len(values) == 2
        order = []
        for i, frame in enumerate(plain.PerFrameFunctionalGroupsSequence):
            (derivation,) = frame.DerivationImageSequence
            found = [referenced(item) for item in derivation.SourceImageSequence]
            images = [
                [(image.sop_uid, [] if image.frame is None else [image.frame]) for image in one.images]
                for one in (context.slices[place] for place in fine.slices)
            ]
            at = images.index(found)
            order.append(at)
            source = context.slices[int(fine.slices[at])]
            position = frame.PlanePositionSequence[0].ImagePositionPatient
            np.testing.assert_allclose(position, source.position, rtol=0, atol=1e-9)
            np.testing.assert_allclose(stored[i], values[at], rtol=0, atol=0.5 / 65535 + 1e-9)
            told = rich.get_frame(i + 1, apply_real_world_transform=True)
            np.testing.assert_allclose(told, stored[i], rtol=1e-12)
        assert sorted(order) == [0, 1]
        shared = plain.SharedFunctionalGroupsSequence[0]
        (mapping,) = shared.RealWorldValueMappingSequence
        assert (mapping.RealWorldValueSlope, mapping.RealWorldValueIntercept) == (1 / 65535, 0)
        assert mapping.RealWorldValueFirstValueMapped == 0
        assert mapping.RealWorldValueLastValueMapped == 65535
        assert mapping.MeasurementUnitsCodeSequence[0].CodeValue == "1"
        assert mapping.QuantityDefinitionSequence[0].ConceptCodeSequence[0].CodeValue == code
        assert shared.FrameVOILUTSequence[0].VOILUTFunction == "LINEAR_EXACT"
        assert plain.ContentQualification == "RESEARCH"
        header = context.slices[0].middle.header
        measures = shared.PixelMeasuresSequence[0]
        assert tuple(measures.PixelSpacing) == header.spacing
        assert measures.SliceThickness == context.slices[0].thickness
        orientation = shared.PlaneOrientationSequence[0].ImageOrientationPatient
        assert tuple(orientation) == header.orientation
        assert plain.FrameOfReferenceUID == context.slices[0].middle.frame_of_reference


def test_maps_of_turned_slices_lie_on_stored_pixels(rsna, folder):
    """The same stored pixels, said to run the other way: the study is mirrored, its stored pixels are not."""

    def mirror(path):
        (header,) = read_headers(path)
        right = np.add(header.position, np.multiply(header.orientation[:3], header.spacing[1] * 63))
        orientation = [-x for x in header.orientation[:3]] + list(header.orientation[3:])
        phantoms.rewrite(path, ImageOrientationPatient=orientation, ImagePositionPatient=list(right))

    turned = write(few_slices(folder, change=mirror), folder)
    (scan,) = turned.prepared.scans.index
    np.testing.assert_array_equal(turned.prepared.hu(scan), rsna.prepared.hu(scan)[:, :, ::-1])
    assert edges_of(read_context(turned.scan, turned.study).slices[0].middle.header.orientation).left == "L"
    for plain, mirrored in zip(rsna.read("map"), turned.read("map"), strict=True):
        maps, places = zip(*(_frames_from_below(ds) for ds in (plain, mirrored)), strict=True)
        np.testing.assert_array_equal(maps[1], maps[0][:, :, ::-1])
        spacing = plain.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].PixelSpacing[1]
        np.testing.assert_allclose(np.subtract(*places[::-1]), [[63 * spacing, 0, 0]] * 2, atol=1e-3)


def test_maps_of_pixels_that_are_not_square_lie_on_stored_pixels(folder):
    """Columns half as far apart as rows: values between two columns of the prepared picture."""

    def stretch(path):
        (header,) = read_headers(path)
        phantoms.rewrite(path, PixelSpacing=[header.spacing[0], header.spacing[1] / 2])

    made = write(few_slices(folder, change=stretch), folder)
    (scan,) = made.prepared.scans.index
    rows, columns = made.prepared.hu(scan).shape[1:]
    maps = made.maps.on_grid(rows, columns)
    for ds, values in zip(made.read("map"), (maps.mean, maps.std), strict=True):
        stored = _frames_from_below(ds)[0] / 65535
        assert stored.shape[1:] == (rows, 2 * columns)
        right = (3 * values[:, :, :-1] + values[:, :, 1:]) / 4
        np.testing.assert_allclose(stored[:, :, 1:-1:2], right, atol=2 / 65535)


def _frames_from_below(ds):
    """Values (k, H, W) and positions (k, 3) of the frames of a map."""
    values = ds.pixel_array
    frames = ds.PerFrameFunctionalGroupsSequence
    places = np.array([frame.PlanePositionSequence[0].ImagePositionPatient for frame in frames], float)
    order = np.argsort(places[:, 2])
    return values[order], places[order]


def test_position_of_averaged_slices(averaged):
    context = read_context(averaged.scan, averaged.study)
    assert {len(one.images) for one in context.slices} == {2}
    for one, row in zip(context.slices, averaged.scan.slices, strict=True):
        assert one.original == row.name
        positions = np.array([image.header.position for image in one.images])
        np.testing.assert_allclose(one.position, positions.mean(0), rtol=0, atol=1e-12)
        # thin slices say nothing of their thickness: together they fill what one of the scan takes
        steps = np.linalg.norm(np.diff(positions, axis=0), axis=1)
        assert one.thickness == pytest.approx(steps.sum() + one.images[0].header.thickness, abs=6e-4)
    (ds, _) = averaged.read("map")
    for frame in ds.PerFrameFunctionalGroupsSequence:
        items = frame.DerivationImageSequence[0].SourceImageSequence
        assert len(items) > 1
        assert {item.SpatialLocationsPreserved for item in items} == {"NO"}


def test_thickness_of_an_averaged_tilted_slice(averaged):
    context = read_context(averaged.scan, averaged.study)
    low, high = context.slices[0].images
    tilted, x, y, z = (1.0, 0.0, 0.0, 0.0, 0.8, -0.6), *low.header.position
    images = (  # 5 mm apart as the couch moves, 4 mm along the normal
        replace(low, header=replace(low.header, orientation=tilted, thickness=4.0)),
        replace(high, header=replace(low.header, orientation=tilted, thickness=4.0, position=(x, y, z + 5))),
    )
    assert replace(context.slices[0], images=images).thickness == pytest.approx(8.0, abs=1e-9)


def test_references_to_frames(multi_frame):
    context = read_context(multi_frame.scan, multi_frame.study)
    # the file holds them from above
    assert [one.middle.frame for one in context.slices] == [6, 5, 4, 3, 2, 1]
    assert {image.sop_class for image in context.images} == {EnhancedCTImageStorage}
    assert {image.sop_uid for image in context.images} == {"1.2.3.1"}
    (report,) = multi_frame.read("report")
    (study,) = report.CurrentRequestedProcedureEvidenceSequence
    (item,) = study.ReferencedSeriesSequence[0].ReferencedSOPSequence
    assert item.ReferencedSOPClassUID == EnhancedCTImageStorage
    summary = multi_frame.read("capture")[0]
    frames = [6 - place for place in key_slices(multi_frame.scan)]
    assert [referenced(item) for item in summary.SourceImageSequence] == [("1.2.3.1", frames)]


def test_differences_between_slices_are_per_frame(rsna):
    context = read_context(rsna.scan, rsna.study)
    tilted = (1.0, 0.0, 0.0, 0.0, 0.8, -0.6)
    changed = tuple(
        one
        if place < 3
        else replace(
            one,
            images=tuple(
                replace(image, header=replace(image.header, orientation=tilted, thickness=7.0))
                for image in one.images
            ),
        )
        for place, one in enumerate(context.slices)
    )
    maps = replace(maps_of(6, most=6)).on_grid(64, 64)
    other = replace(context, slices=changed)
    made = parametric_maps(maps, other, identity_of(rsna, other))
    assert len(made) == 2
    buffer = io.BytesIO()
    made[0].save_as(buffer)
    buffer.seek(0)
    ds = ParametricMap.from_file(buffer)
    shared = ds.SharedFunctionalGroupsSequence[0]
    assert "PlaneOrientationSequence" not in shared
    assert "PixelMeasuresSequence" not in shared
    assert "DimensionOrganizationType" not in ds
    uids = [one.middle.sop_uid for one in changed]
    for i, frame in enumerate(ds.PerFrameFunctionalGroupsSequence):
        (item,) = frame.DerivationImageSequence[0].SourceImageSequence
        place = uids.index(item.ReferencedSOPInstanceUID)
        header = changed[place].middle.header
        assert tuple(frame.PlaneOrientationSequence[0].ImageOrientationPatient) == header.orientation
        assert frame.PixelMeasuresSequence[0].SliceThickness == header.thickness
        np.testing.assert_allclose(ds.pixel_array[i] / 65535, maps.mean[place], rtol=0, atol=1e-5)


def test_each_frame_of_reference_has_its_own_series(rsna):
    context = read_context(rsna.scan, rsna.study)
    changed = tuple(
        one
        if place < 2
        else replace(one, images=tuple(replace(image, frame_of_reference="1.9") for image in one.images))
        for place, one in enumerate(context.slices)
    )
    other = replace(context, slices=changed)
    maps = maps_of(6, most=6).on_grid(64, 64)
    made = parametric_maps(maps, other, identity_of(rsna, other))
    assert [ds.NumberOfFrames for ds in made] == [2, 2, 4, 4]
    assert [ds.InstanceNumber for ds in made] == [1, 2, 3, 4]
    assert len({ds.SOPInstanceUID for ds in made}) == 4
    assert [made[2].FrameOfReferenceUID, made[3].FrameOfReferenceUID] == ["1.9", "1.9"]
    assert made[0].SeriesInstanceUID == made[1].SeriesInstanceUID != made[2].SeriesInstanceUID
    spaces = [ds.DimensionOrganizationSequence[0].DimensionOrganizationUID for ds in made]
    assert spaces[0] == spaces[1] != spaces[2] == spaces[3]
    for ds, values in zip(made, (maps.mean[:2], maps.std[:2], maps.mean[2:], maps.std[2:]), strict=True):
        wanted = np.rint(values.astype(float) * 65535).astype(np.uint16)
        assert {one.tobytes() for one in ds.pixel_array} == {one.tobytes() for one in wanted}

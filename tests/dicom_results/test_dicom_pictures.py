"""Secondary Captures and Key Objects: what they show, refer to, and how slices are chosen."""

from dataclasses import replace

import numpy as np
import pytest
from highdicom import imread
from highdicom.ko import KeyObjectSelectionDocument
from pydicom import dcmread
from pydicom.uid import JPEGLSLossless

from ich_mil.dicom_results import picture
from ich_mil.dicom_results.capture import secondary_captures
from ich_mil.dicom_results.context import read_context
from ich_mil.dicom_results.key_objects import KEY_SLICES, key_slices
from ich_mil.dicom_results.picture import slice_picture, summary_picture
from ich_mil.ledger import NOTICE
from ich_mil.model.maps import ScanMaps
from ich_mil.model.predictions import Run, ScanPrediction
from ich_mil.pages.canvas import VERMILION
from ich_mil.pages.page import percent
from ich_mil.study.geometry.planes import Edges
from tests.dicom_results.made import identity_of, maps_of, referenced, sources


def test_captures_are_summary_and_mapped_slices(made):
    context = read_context(made.scan, made.study)
    assert made.maps is not None
    summary, *slices = made.read("capture")
    assert summary.pixel_array.shape == (1024, 1024, 3)
    shown = key_slices(made.scan)
    expected_sources: dict[str, list[int]] = {}
    for place in shown:
        for uid, frames in sources(context, place):
            expected_sources.setdefault(uid, []).extend(frames)
    assert [referenced(item) for item in summary.SourceImageSequence] == list(expected_sources.items())
    assert len(slices) == 2
    probable = sorted(made.maps.slices, key=lambda place: -made.scan.slices[place].probability)
    for place, ds in zip(probable, slices, strict=True):
        assert ds.pixel_array.shape == (480, 1200, 3)
        assert [referenced(item) for item in ds.SourceImageSequence] == sources(context, int(place))
        assert (ds.BurnedInAnnotation, ds.PhotometricInterpretation) == ("NO", "RGB")
    for path in made.named("capture"):
        assert dcmread(path).file_meta.TransferSyntaxUID == JPEGLSLossless
        np.testing.assert_array_equal(imread(path).pixel_array, dcmread(path).pixel_array)


def test_the_pictures_show_slice_and_maps(rsna):
    assert rsna.maps is not None
    hu = rsna.prepared.hu(rsna.scan.scan)
    context = read_context(rsna.scan, rsna.study)
    maps = rsna.maps.on_grid(64, 64)
    none = replace(maps, mean=np.zeros_like(maps.mean), std=np.zeros_like(maps.std))

    def pictures(values):
        objects = secondary_captures(rsna.scan, rsna.results, hu, values, context, identity_of(rsna, context))
        return [ds.pixel_array.astype(int) for ds in objects]

    with_maps, without = pictures(maps), pictures(none)
    for a, b in zip(with_maps[1:], without[1:], strict=True):
        panels = [slice(10 + 398 * i, 394 + 398 * i) for i in range(3)]
        rows = slice(480 - 30 - 384, 480 - 30)
        np.testing.assert_array_equal(a[rows, panels[0]], b[rows, panels[0]])  # the slice itself
        grey = b[rows, panels[0]]
        assert (grey.max(-1) == grey.min(-1)).all()
        np.testing.assert_array_equal(grey, b[rows, panels[1]])  # no evidence, no colour
        warm = (a - b)[rows, panels[1]]
        assert (warm[..., 0] > warm[..., 2]).any()
        assert not (warm[..., 2] > warm[..., 0] + 3).any()
        cold = (a - b)[rows, panels[2]]
        assert (cold[..., 2] > cold[..., 0]).any()


def test_the_pictures_mark_the_sides_of_the_patient(rsna, monkeypatch):
    monkeypatch.setattr(picture, "_pixels", lambda figure: figure)
    n, hu = len(rsna.scan.slices), rsna.prepared.hu(rsna.scan.scan)
    edges = Edges("R", "L", "A", "P")
    maps = rsna.maps.on_grid(64, 64)
    one = slice_picture(rsna.scan, int(maps.slices[0]), hu, maps, edges)
    whole = summary_picture(rsna.scan, rsna.results.model, "", hu, maps, [edges] * n, range(n))
    for figure, left, side, panels in ((one, 10, 384, 3), (whole, 32, 228, n)):
        width, height = figure.get_size_inches() * 100
        marks = [text for text in figure.texts if text.get_text() in edges]
        assert [text.get_text() for text in marks] == [*edges] * panels
        (x, y), *others = (
            (text.get_position()[0] * width, text.get_position()[1] * height) for text in marks
        )
        right, top, bottom = others[:3]
        assert (x - left, right[0] - left) == pytest.approx((12, side - 12))  # half-way up, R on the left
        assert y == pytest.approx(right[1])
        assert (top[0], bottom[0]) == pytest.approx([left + side / 2] * 2)
        assert (top[1] - y, y - bottom[1]) == pytest.approx([side / 2 - 12] * 2)


def test_squares_of_the_summary(rsna, monkeypatch):
    monkeypatch.setattr(picture, "_pixels", lambda figure: figure)
    n, shown = len(rsna.scan.slices), [1, 3, 4]
    hu = np.stack([np.full((64, 64), 10 * place, np.int16) for place in range(n)])  # 0 to 80 are 0 to 1
    mean = np.zeros((2, 64, 64), np.float32)
    mean[0, :16, :16] = mean[1, -16:, -16:] = 1.0  # of slice 1 and of slice 4
    edges = [None] * n
    edges[4] = Edges("R", "L", "A", "P")
    model, by = rsna.results.model, rsna.results.decided_by
    figure = summary_picture(rsna.scan, model, by, hu, ScanMaps(np.array([1, 4]), mean, mean), edges, shown)
    squares = [image.get_array() for image in figure.images]  # (228, 228, 3) each
    assert [float(one[114, 114, 0]) for one in squares] == pytest.approx([p / 8 for p in shown], abs=1e-6)
    corners = [[bool(np.ptp(one[at, at]) > 0.1) for at in (20, 207)] for one in squares]
    assert corners == [[True, False], [False, False], [False, True]]
    said = [text.get_text() for text in figure.texts]
    titles = [f"slice {place + 1}: {percent(rsna.scan.slices[place].probability)}" for place in shown]
    assert [text for text in said if text.startswith("slice ")] == titles
    (letter,) = (text for text in figure.texts if text.get_text() == "R")
    assert 32 + 244 * 2 < 1024 * letter.get_position()[0] < 32 + 244 * 2 + 228
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "v"]
    assert [float(line.get_xdata()[0]) for line in marks] == [2, 4, 5]
    assert [line.get_color() == VERMILION for line in marks] == [False, True, False]  # from 50 %
    low, high = figure.axes[0].get_xlim()
    ticks = [tick for tick in figure.axes[0].get_xticks() if low <= tick <= high]
    assert ticks == list(range(1, n + 1))


def test_results_of_a_scan_without_maps(rsna, folder):
    (folder / "notes.txt").write_text("mine")
    rsna.again(folder)
    names = [path.name for path in replace(rsna, maps=maps_of(6, most=0)).again(folder)]
    assert names == ["capture-1.dcm", "report-1.dcm", "key-1.dcm"]
    # nothing of the earlier result is left beside it, and nothing else is touched
    assert {path.name for path in folder.iterdir()} == {*names, "notes.txt"}
    (report,) = replace(rsna, maps=None).again(folder)[1:2]
    assert not list(folder.glob("map-*"))
    assert report.name == "report-1.dcm"


# key slices


def test_choice_of_key_slices(rsna):
    def scan(probabilities, runs=()) -> ScanPrediction:
        slices = tuple(
            replace(rsna.scan.slices[0], slice=i, probability=p) for i, p in enumerate(probabilities)
        )
        return replace(rsna.scan, slices=slices, runs=runs)

    assert key_slices(scan([0.1, 0.3, 0.2])) == [1, 2, 0]
    high = [0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.1, 0.5, 0.6]
    runs = (Run(0, 8, 0.2), Run(10, 11, 0.9))
    # the second run is shown by its best slice, though eight slices of the first are more probable
    assert key_slices(scan(high, runs)) == [8, 7, 6, 5, 4, 3, 2, 11]
    assert len(key_slices(scan(high, runs))) == KEY_SLICES
    assert key_slices(scan([0.5, 0.4] * 20)) == list(range(0, 16, 2))
    # of nine runs of one slice each the least probable, which is the lowest, is left out
    rising = [0.1 if place % 2 else 0.51 + place / 100 for place in range(18)]
    single = tuple(Run(place, place, 0.2) for place in range(0, 18, 2))
    assert key_slices(scan(rising, single)) == list(range(16, 0, -2))


def test_key_objects_refer_to_the_key_slices(made):
    context = read_context(made.scan, made.study)
    (ds,) = made.read("key")
    document = KeyObjectSelectionDocument.from_dataset(ds)
    found = [
        referenced(item.ReferencedSOPSequence[0]) for item in ds.ContentSequence if item.ValueType == "IMAGE"
    ]
    middle = [context.slices[place].middle for place in key_slices(made.scan)]
    assert found == [(image.sop_uid, [] if image.frame is None else [image.frame]) for image in middle]
    for image in middle:
        study, series, _ = document.resolve_reference(image.sop_uid)
        assert (study, series) == (context.elements.StudyInstanceUID, image.series_uid)
    assert ds.ConceptNameCodeSequence[0].CodeValue == "113000"
    (description,) = (
        item.TextValue
        for item in ds.ContentSequence
        if item.ValueType == "TEXT" and item.ConceptNameCodeSequence[0].CodeValue == "113012"
    )
    assert NOTICE in description
    best = max(made.scan.slices, key=lambda one: one.probability)
    assert f"slice {best.slice + 1} ({percent(best.probability)})" in description

"""Maps in a file: what is written is what is read, for these slices by this model only; a grid by hand."""

from dataclasses import replace

import numpy as np
import pytest

from ich_mil.errors import DataError
from ich_mil.report.maps import ScanMaps, make_maps, maps_file, read_maps, write_maps
from tests.results import MODEL, phantom, scan_of


@pytest.fixture(scope="module")
def scan():
    return scan_of(phantom(64, 12)[1])


@pytest.fixture
def maps():
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=(2, 2, 4, 4)).astype(np.float32)
    return ScanMaps(np.array([3, 7]), mean, abs(std))


def test_what_is_written_is_what_is_read(scan, maps, tmp_path):
    write_maps(maps, tmp_path, scan, MODEL)
    found = read_maps(tmp_path, scan, MODEL)
    for name in ("slices", "mean", "std"):
        np.testing.assert_array_equal(getattr(found, name), getattr(maps, name))
    write_maps(None, tmp_path, scan, MODEL)
    assert read_maps(tmp_path, scan, MODEL) is None


def test_maps_of_another_model_or_of_other_slices_are_none(scan, maps, tmp_path):
    write_maps(maps, tmp_path, scan, MODEL)
    assert read_maps(tmp_path, scan, replace(MODEL, weights="other")) is None
    other = replace(scan, slices=(replace(scan.slices[0], name="9.9"), *scan.slices[1:]))
    assert read_maps(tmp_path, other, MODEL) is None


def test_a_damaged_file_is_told(scan, maps, tmp_path):
    write_maps(maps, tmp_path, scan, MODEL)
    path = maps_file(tmp_path, scan.scan)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="predict again"):
        read_maps(tmp_path, scan, MODEL)


def test_on_a_grid_the_padding_is_cut_away():
    mean = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    maps = ScanMaps(np.array([0]), mean, mean)
    np.testing.assert_array_equal(maps.on_grid(4, 4).mean, mean)
    np.testing.assert_array_equal(maps.on_grid(2, 4).mean, mean[:, 1:3])  # a row above, a row below
    np.testing.assert_array_equal(maps.on_grid(4, 2).std, mean[:, :, 1:3])


def test_maps_of_a_box_lie_in_it_and_are_kept_with_it(scan, tmp_path):
    mean = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4)
    maps = ScanMaps(np.array([0]), mean, 2 * mean, np.array([1, 2, 5, 6]))
    write_maps(maps, tmp_path, scan, MODEL)
    found = read_maps(tmp_path, scan, MODEL).on_grid(7, 6)
    wanted = np.zeros((1, 7, 6), np.float32)
    wanted[:, 1:5, 2:6] = mean
    np.testing.assert_array_equal(found.mean, wanted)
    np.testing.assert_array_equal(found.std, 2 * wanted)


def test_a_scan_of_one_slice_has_no_map(scan):
    class Model:
        cnn = "a CNN"

    assert make_maps(Model(), None, replace(scan, slices=scan.slices[:1])) is None

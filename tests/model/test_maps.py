"""Maps in a file: what is written is what is read, for these slices by this model only; a grid by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ich_mil.errors import DataError
from ich_mil.model import maps as module
from ich_mil.model.maps import ScanMaps, make_maps, maps_file, read_maps, write_maps
from ich_mil.network.settings import EncoderSettings
from ich_mil.study.head_box import HeadBox
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


def test_maps_of_another_model_are_none(scan, maps, tmp_path):
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


def test_maps_of_a_box(scan, tmp_path):
    mean = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4)
    maps = ScanMaps(np.array([0]), mean, 2 * mean, np.array([1, 2, 5, 6]))
    write_maps(maps, tmp_path, scan, MODEL)
    found = read_maps(tmp_path, scan, MODEL).on_grid(7, 6)
    wanted = np.zeros((1, 7, 6), np.float32)
    wanted[:, 1:5, 2:6] = mean
    np.testing.assert_array_equal(found.mean, wanted)
    np.testing.assert_array_equal(found.std, 2 * wanted)


class Locates:
    """In place of a location: part (y, x) of slice n has the probability n · `value`."""

    def __init__(self, value):
        self.value = value

    def maps(self, cnn, hu, chosen):
        assert tuple(hu.shape) == (12, *cnn.shown)
        return self.value * hu[chosen, :1, :1].expand(-1, 4, 4).numpy()


def network(*, crop=True):
    """In place of a CNN that is given the head, or the whole slices."""
    return SimpleNamespace(encoder_settings=EncoderSettings(crop=crop), shown=(2, 2) if crop else (4, 4))


@pytest.fixture
def made(scan, monkeypatch):
    """Maps by members of a scan of 12 slices, slice n of HU n, whose head is in a box."""
    monkeypatch.setattr(module, "head_box", lambda hu: HeadBox(0, 2, 2, 4))
    hu = np.arange(12, dtype=np.int16)[:, None, None] * np.ones((1, 4, 4), np.int16)

    def make(*pairs):
        members = [SimpleNamespace(cnn=cnn, location=location) for cnn, location in pairs]
        return make_maps(SimpleNamespace(members=members), hu, scan)

    return make


def test_maps_are_of_the_most_probable_slices(made, scan):
    maps = made((network(), Locates(0.01)))
    said = np.array([one.probability for one in scan.slices])
    ranked = sorted(range(12), key=lambda n: -said[n])
    assert maps.slices.tolist() == sorted(ranked[: module.MAPPED])
    np.testing.assert_allclose(maps.mean[:, 0, 0], said[maps.slices] * 0.01 * maps.slices, rtol=1e-6)
    assert maps.box.tolist() == [0, 2, 2, 4]
    assert not maps.std.any()


def test_maps_of_several_members_are_mean_and_spread(made, scan):
    left = (network(crop=False), Locates(0.9)), (network(), None), (None, None)
    maps = made((network(), Locates(0.01)), (network(), Locates(0.03)), *left)
    said = np.array([scan.slices[n].probability for n in maps.slices]) * maps.slices
    np.testing.assert_allclose(maps.mean[:, 3, 3], 0.02 * said, rtol=1e-6)
    np.testing.assert_allclose(maps.std[:, 0, 0], 0.01 * said, rtol=1e-5)


def test_maps_of_whole_slices_have_no_box(made):
    assert made((network(crop=False), Locates(0.01))).box is None


def test_members_without_a_location_have_no_maps(made):
    assert made((network(), None)) is None
    assert made((None, None)) is None

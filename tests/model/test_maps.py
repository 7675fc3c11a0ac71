"""Maps in a file: what is written is what is read, for these slices by this model only; a grid by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from ich_mil.errors import DataError
from ich_mil.model import maps as module
from ich_mil.model.maps import ScanMaps, make_maps, maps_file, read_maps, write_maps
from ich_mil.network.slice_encoders import EncoderSettings
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


def test_a_scan_of_one_slice_has_no_map(scan):
    assert make_maps(None, None, replace(scan, slices=scan.slices[:1])) is None


class Reads(torch.nn.Linear):
    """In place of a CNN: its pictures are its name."""

    def __init__(self, name, crop):
        super().__init__(1, 1)
        self.name, self.encoder_settings = name, EncoderSettings(crop=crop)

    def pictures(self):
        return SimpleNamespace(scan=lambda hu: self.name)


class Head(NamedTuple):
    """A head whose draws name it."""

    name: str

    def evidence_draws(self, *_):
        return f"weights of {self.name}"


@pytest.fixture
def mixed(scan, monkeypatch):
    """The maps of members (name, crop), and of a scan of 12 slices whose head is in `box`."""
    parts = {"coarse": (torch.full((8, 2, 2), 4.0), 0.8), "fine": (torch.full((8, 4, 4), 3.0), 0.4)}

    def slice_maps(network, head, pictures, chosen, weights):
        assert (network.name, pictures, weights) == (head.name, head.name, f"weights of {head.name}")
        mean, std = parts[head.name]
        return mean.double(), torch.full_like(mean, std).double()

    monkeypatch.setattr(module, "slice_maps", slice_maps)
    monkeypatch.setattr(module, "head_box", lambda hu: HeadBox(0, 2, 2, 4))

    def make(*members):
        found = [SimpleNamespace(cnn=Reads(name, crop), head=Head(name)) for name, crop in members]
        prepared = SimpleNamespace(hu=lambda scan: np.zeros((12, 4, 4), np.int16))
        return make_maps(SimpleNamespace(members=found, seed=0), prepared.hu(scan.scan), scan)

    return make


@pytest.mark.parametrize("crop", [False, True])
def test_maps_of_an_ensemble_are_of_its_mixture(mixed, crop):
    """Evidence of 4 in one cell of a coarse map is 1 in each of its four cells of a fine one."""
    maps = mixed(("coarse", crop), ("fine", crop))
    assert maps.mean.shape == (8, 4, 4)
    assert (maps.box is None) != crop
    np.testing.assert_allclose(maps.mean, 2.0)
    # within (0.2² + 0.4²) / 2 and between 1
    np.testing.assert_allclose(maps.std, np.sqrt(0.1 + 1), rtol=1e-6)
    np.testing.assert_array_equal(mixed(("fine", crop)).std, np.float32(0.4))


def test_a_mixed_ensemble_crops_as_its_first_member(mixed):
    maps = mixed(("fine", True), ("coarse", False))
    np.testing.assert_array_equal(maps.box, [0, 2, 2, 4])
    np.testing.assert_allclose(maps.mean, 3.0)

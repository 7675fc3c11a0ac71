"""Pixels of prepared scans: exact within 12 bits, the pictures of a network unchanged, damage is told."""

from zipfile import ZipFile

import numpy as np
import pytest
import torch

import ich_mil
from ich_mil.errors import DataError
from ich_mil.network.settings import EncoderSettings
from ich_mil.network.windows import to_pictures
from ich_mil.sets.stored_hu import read_hu, write_hu
from ich_mil.study.head_box import head_box
from ich_mil.study.window_presets import HIGHEST, LOWEST, PRESETS
from tests.results import phantom

BONE = ((500.0, 2000.0),)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 7, 11), (3, 64, 96), (2, 512, 512)])
def test_every_value_in_range_comes_back(tmp_path, shape):
    hu = np.random.default_rng(0).integers(LOWEST, HIGHEST + 1, size=shape).astype(np.int16)
    hu.flat[0], hu.flat[-1] = LOWEST, HIGHEST
    write_hu(tmp_path / "s.zip", hu)
    back = read_hu(tmp_path / "s.zip")
    assert back.dtype == np.int16
    np.testing.assert_array_equal(back, hu)


def test_values_out_of_range_are_clipped(tmp_path):
    hu = np.array([-1024, -801, -800, 0, 3295, 3296, 32767, -32768] * 8, np.int16).reshape(1, 8, 8)
    write_hu(tmp_path / "s.zip", hu)
    assert read_hu(tmp_path / "s.zip")[0, 0].tolist() == [-800, -800, -800, 0, 3295, 3295, 3295, -800]


def test_slices_that_are_too_small_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"s\.zip: slices of 1 x 3 pixels"):
        write_hu(tmp_path / "s.zip", np.zeros((2, 1, 3), np.int16))


def same_pictures(hu, path):
    write_hu(path, hu)
    back = read_hu(path)
    box = head_box(hu)
    assert head_box(back) == box
    for windows in (*PRESETS.values(), BONE):
        own, other = (to_pictures(torch.from_numpy(box.crop(x).copy()), windows, 96) for x in (hu, back))
        assert torch.equal(own, other)


def test_pictures_of_a_network_are_unchanged(tmp_path):
    hu, _ = phantom(128, 12)
    same_pictures(hu, tmp_path / "s.zip")
    assert (tmp_path / "s.zip").stat().st_size < hu.nbytes / 2


@pytest.mark.realdata
def test_pictures_of_a_real_head_are_unchanged(shared_data, tmp_path):
    hu = ich_mil.read_study(shared_data / "ge_head_ct").hu
    assert hu.min() < LOWEST
    same_pictures(hu, tmp_path / "s.zip")
    assert (tmp_path / "s.zip").stat().st_size < hu.nbytes / 7


@pytest.mark.parametrize("window", [[-600.0, 1500.0], [0.0, 1601.0], [3000.0, 1200.0]])
def test_windows_beyond_the_stored_range_are_refused(window):
    EncoderSettings(channels=[list(BONE[0])])
    with pytest.raises(ValueError, match="-800 to 3295 HU"):
        EncoderSettings(channels=[window])


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "s.zip"
    write_hu(path, np.zeros((2, 8, 8), np.int16))
    whole = path.read_bytes()
    for content in (b"", whole[:-30], whole[:60] + bytes([whole[60] ^ 255]) + whole[61:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"s\.zip: cannot be read"):
            read_hu(path)
    for members in ({}, {"0000.jls": b"\xff\xd8 none"}):
        with ZipFile(path, "w") as file:
            for name, content in members.items():
                file.writestr(name, content)
        with pytest.raises(DataError, match=r"s\.zip: cannot be read"):
            read_hu(path)

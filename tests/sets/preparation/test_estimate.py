"""Disk and time of a preparation, printed before it starts."""

import shutil
from collections import namedtuple

import pytest

from ich_mil.errors import DiskFullError
from ich_mil.sets.preparation.estimate import MANY, Todo, estimate
from ich_mil.sets.store import scan_file

TODO = [Todo(f"s{i:03}", "", 10 * (1 + (i % 34 == 0))) for i in range(102)]
"""The three scans that are tried have 20 slices each, the others 10."""
Usage = namedtuple("Usage", "total used free")


def make_work(out, slice_bytes, done):
    def work(batch):
        for one in batch:
            done.append(one)
            path = scan_file(out, one.scan)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes(one.slices * slice_bytes))

    return work


@pytest.fixture
def free(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(4e9, 1e9, 3e9))


def test_disk_and_scans_are_told(tmp_path, free, capsys):
    done = []
    rest = estimate(TODO, tmp_path, make_work(tmp_path, 100_000, done), jobs=4)
    printed = capsys.readouterr().out
    assert "102 scans of 1050 slices" in printed
    assert "about 0.1 GB (3.0 GB are free)" in printed
    assert sorted(done + rest) == sorted(TODO)
    assert len(done) == 3


def test_disk_that_is_too_small_is_refused(tmp_path, free):
    done = []
    with pytest.raises(DiskFullError, match=r"about 3\.\d GB are needed and 3\.0 GB are free"):
        estimate(TODO, tmp_path, make_work(tmp_path, 3_200_000, done), jobs=4)
    assert len(done) == 3


def test_few_scans_are_left_as_they_are(tmp_path, capsys):
    assert estimate(TODO[:MANY], tmp_path, lambda _: pytest.fail("no try"), jobs=1) == TODO[:MANY]
    assert capsys.readouterr().out == ""

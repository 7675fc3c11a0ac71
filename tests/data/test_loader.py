"""Steps read ahead by workers: they come as they are, and what a worker cannot do is said, not waited for."""

import errno
import gc
import os
import resource
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from ich_mil.data.bags import ScanDataset
from ich_mil.data.loader import loader, reading_ahead
from ich_mil.errors import DataError, ProcessError


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_pack_scans_without_padding(dataset, prepared, workers):
    (batch,) = loader(dataset, workers=workers, steps=[[2, 0, 1]])
    chosen = [dataset[i] for i in (2, 0, 1)]
    assert batch.scans == tuple(prepared.scans.index[[2, 0, 1]])
    assert batch.offsets.diff().tolist() == prepared.scans.slices.iloc[[2, 0, 1]].tolist()
    assert batch.labels.tolist() == prepared.scans.label.iloc[[2, 0, 1]].tolist()
    assert all(torch.equal(hu, one.hu[0]) for hu, one in zip(batch.hu, chosen, strict=True))


class Unreadable(ScanDataset):
    def __getitem__(self, index):
        if index == 1:
            raise DataError("1.npy: cannot be read; run prepare again")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_is_raised_as_it_is_also_by_a_worker(prepared, workers):
    dataset = Unreadable(prepared, list(prepared.scans.index))
    batches = iter(loader(dataset, workers=workers, steps=[[2], [0, 1, 3]]))
    assert next(batches).scans == (prepared.scans.index[2],)
    with pytest.raises(DataError) as caught:
        next(batches)
    assert str(caught.value) == "1.npy: cannot be read; run prepare again"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("error", [MemoryError("15 MiB"), OSError(errno.EIO, "x", "1.npy"), EOFError("end")])
def test_so_are_those_of_the_machine(prepared, monkeypatch, workers, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(ScanDataset, "__getitem__", fail)
    dataset = ScanDataset(prepared, list(prepared.scans.index))
    with pytest.raises(type(error), match=str(error.args[-1])) as caught, reading_ahead():
        list(loader(dataset, workers=workers, steps=[[0]]))
    if not isinstance(error, EOFError):  # torch puts a worker's traceback into the program's own
        assert str(caught.value) == str(error)


class Cramped(ScanDataset):
    """In a worker no file may grow beyond some bytes, not in shared memory either."""

    def __getitem__(self, index):
        assert get_worker_info() is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        return super().__getitem__(index)


@pytest.mark.timeout(60)
def test_a_worker_without_shared_memory_says_so(prepared):
    dataset = Cramped(prepared, list(prepared.scans.index))
    with pytest.raises(ProcessError) as caught:
        list(loader(dataset, workers=1, steps=[[0, 1]]))
    for words in ("cannot hand on a step of", "File too large", "lower training.workers"):
        assert words in str(caught.value)


class FewFiles(ScanDataset):
    """In a worker so many files can be opened beside those that are, once it has read a scan."""

    left = 0
    full = False

    def __getitem__(self, index):
        assert get_worker_info() is not None
        batch = super().__getitem__(index)
        if not self.full:
            highest = max(int(file.name) for file in Path("/proc/self/fd").iterdir())
            held = [os.open(os.devnull, os.O_RDONLY)]
            while held[-1] < highest + self.left:
                held.append(os.open(os.devnull, os.O_RDONLY))
            for number in held[len(held) - self.left :]:
                os.close(number)
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1, hard))
            self.full = True
        # a copy: it needs no file
        return replace(batch, hu=tuple(one.clone() for one in batch.hu))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("left", range(8))
def test_a_worker_without_open_files_hands_on_or_says_so(prepared, left):
    dataset = FewFiles(prepared, list(prepared.scans.index))
    dataset.left = left
    got, refused = [], ""
    try:
        with reading_ahead():
            got = [batch.scans[0] for batch in loader(dataset, workers=1, steps=[[0], [1], [0], [1]])]
    except (ProcessError, DataError) as error:
        refused = str(error)
    if left < 4:
        assert "Too many open files" in refused or "no longer read ahead" in refused
    if left > 6 or not refused:
        assert got == [dataset.scans[place] for place in (0, 1, 0, 1)]


@pytest.mark.timeout(60)
def test_a_step_of_many_scans_takes_few_open_files(prepared):
    dataset = FewFiles(prepared, list(prepared.scans.index))
    dataset.left = 12
    (batch,) = loader(dataset, workers=1, steps=[[0, 1, 2, 3] * 5])
    assert batch.scans == tuple(prepared.scans.index) * 5


class Killed(ScanDataset):
    """Some time after its first scan a worker is killed, as where memory runs out."""

    after = 0.0
    armed = False

    def __getitem__(self, index):
        assert get_worker_info() is not None
        if not self.armed:
            threading.Timer(self.after, os.kill, (os.getpid(), signal.SIGKILL)).start()
            self.armed = True
        return super().__getitem__(index)


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets to the dead
def test_the_end_of_a_worker_is_an_error_that_says_so(prepared):
    dataset = Killed(prepared, list(prepared.scans.index))
    for dataset.after in np.linspace(0, 0.03, 40):
        with pytest.raises(ProcessError, match="are no longer read ahead"), reading_ahead():
            for _ in loader(dataset, workers=1, steps=[[0, 1]] * 100_000):
                pass
        time.sleep(0.05)  # no second error comes


class Tidy(ScanDataset):
    """Collects garbage, and fails where that fails."""

    def __getitem__(self, index):
        failed = []
        sys.unraisablehook = lambda about: failed.append(str(about.exc_value))
        gc.collect()
        if failed:
            raise DataError(failed[0])
        return super().__getitem__(index)


def test_a_worker_leaves_an_old_loader_of_its_parent_alone(prepared):
    scans = list(prepared.scans.index)
    gc.disable()
    try:
        old = iter(loader(ScanDataset(prepared, scans), workers=1, steps=[[0], [1]]))
        kept = [old]
        kept.append(kept)  # a cycle: it waits for the collector
        next(old)
        del old, kept
        (batch,) = loader(Tidy(prepared, scans), workers=1, steps=[[2]])
    finally:
        gc.enable()
    assert batch.scans == (scans[2],)


class Wrong(ScanDataset):
    def __getitem__(self, index):
        raise RuntimeError("shapes do not fit")


@pytest.mark.parametrize("workers", [0, 1])
def test_other_errors_while_reading_are_left_alone(prepared, workers):
    dataset = Wrong(prepared, list(prepared.scans.index))
    with pytest.raises(RuntimeError, match="shapes do not fit"), reading_ahead():
        list(loader(dataset, workers=workers, steps=[[0]]))

"""Steps read ahead by workers: they come as they are, and what a worker cannot do is said, not waited for."""

import errno
import gc
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from ich_mil.data.bags import Batch, ScanDataset
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


def test_pixels_alone_travel_in_shared_memory(dataset, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # or they were pinned, which is a copy
    (batch,) = loader(dataset, workers=1, steps=[[2, 0, 1]])
    assert all(one.is_shared() for one in batch.hu)
    assert not any(one.is_shared() for one in (batch.offsets, batch.labels))


class Signed(ScanDataset):
    def __getitem__(self, index):
        return replace(super().__getitem__(index), scans=(str(os.getpid()),))


def test_a_worker_lives_for_all_epochs(prepared):
    steps = loader(Signed(prepared, list(prepared.scans.index)), workers=1, steps=[[0]])
    (first,), (second,) = steps, steps
    assert first.scans == second.scans != (str(os.getpid()),)


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
    tempfile.gettempdir()  # to look for it takes a file; a listener that ends forgets it
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


@pytest.mark.timeout(60)
def test_a_reader_without_open_files_says_so(prepared):
    batches = iter(loader(ScanDataset(prepared, list(prepared.scans.index)), workers=1, steps=[[0]] * 9))
    next(batches)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with reading_ahead():
            list(batches)
    except ProcessError as error:
        refused = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "no longer read ahead (Too many open files" in refused


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
    assert gc.get_freeze_count() == 0, "what lies about is collected again"


@pytest.fixture
def gpu_log(monkeypatch):
    """What a GPU that is pretended is told to do, in order."""
    log = []

    class Stream:
        def __init__(self, device):
            self.device = device

        def record_event(self):
            return log[-1].replace("send", "sent")

        def wait_event(self, event):
            log.append(f"wait until {event}")

    @contextmanager
    def on(stream):
        log.append("aside")
        yield
        log.append("back")

    def to(batch, device):
        assert device.type == "cuda"
        assert log[-1] == "aside"
        log.append(f"send {','.join(batch.scans)}")
        return replace(batch)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(device))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda one, _: log.append(f"keep {one.data_ptr()}"))
    monkeypatch.setattr(Batch, "to", to)
    return log


GPU = torch.device("cuda")


@pytest.mark.parametrize("workers", [0, 1])
def test_each_batch_is_sent_while_the_one_before_it_is_worked_on(prepared, gpu_log, workers):
    dataset = ScanDataset(prepared, list(prepared.scans.index))
    a, b, c = (prepared.scans.index[place] for place in (2, 0, 1))
    steps = loader(dataset, workers=workers, steps=[[2], [0], [1]], device=GPU)
    for _ in range(2):  # two epochs
        for batch in steps:
            # changed is empty, and hu and labels are none of the memory of others
            kept = [f"keep {one.data_ptr()}" for one in (*batch.hu, *batch.changed, batch.labels)]
            assert gpu_log[-3:] == kept
            del gpu_log[-3:]
            gpu_log.append(f"given {batch.scans[0]}")
        assert gpu_log == [
            *(
                "aside",
                f"send {a}",
                "back",
                "aside",
                f"send {b}",
                "back",
                f"wait until sent {a}",
                f"given {a}",
            ),
            *("aside", f"send {c}", "back", f"wait until sent {b}", f"given {b}"),
            *(f"wait until sent {c}", f"given {c}"),
        ]
        gpu_log.clear()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("good", [[], [[2]], [[2], [0]], [[2], [0], [3]]])
def test_an_error_comes_after_all_batches_that_were_sent_before_it(prepared, gpu_log, workers, good):
    dataset = Unreadable(prepared, list(prepared.scans.index))
    batches = iter(loader(dataset, workers=workers, steps=[*good, [0, 1, 3], [2]], device=GPU))
    assert [next(batches).scans for _ in good] == [(prepared.scans.index[place],) for (place,) in good]
    with pytest.raises(DataError) as caught:
        next(batches)
    assert str(caught.value) == "1.npy: cannot be read; run prepare again"
    assert list(batches) == []


def test_what_is_left_before_its_end_sends_no_more(prepared, gpu_log):
    dataset = ScanDataset(prepared, list(prepared.scans.index))
    batches = iter(loader(dataset, workers=0, steps=[[2], [0], [1]], device=GPU))
    next(batches)
    batches.close()
    assert sum(line.startswith("send") for line in gpu_log) == 2


class Alone(ScanDataset):
    """Fails where the pixels that were read before are still held."""

    before = staticmethod(lambda: None)

    def __getitem__(self, index):
        if self.before() is not None:
            raise DataError("still held")
        one = super().__getitem__(index)
        self.before = weakref.ref(one.hu[0])
        return one


def test_what_was_sent_is_held_no_longer_when_the_next_is_read(prepared, gpu_log, monkeypatch):
    send = Batch.to
    monkeypatch.setattr(
        Batch, "to", lambda one, device: replace(send(one, device), hu=tuple(hu.clone() for hu in one.hu))
    )
    dataset = Alone(prepared, list(prepared.scans.index))
    assert len(list(loader(dataset, workers=0, steps=[[2], [0], [1]], device=GPU))) == 3


@pytest.mark.parametrize("where", [None, torch.device("cpu")])
def test_where_no_gpu_is_asked_for_nothing_is_sent(prepared, gpu_log, where):
    dataset = ScanDataset(prepared, list(prepared.scans.index))
    assert len(list(loader(dataset, workers=0, steps=[[2], [0]], device=where))) == 2
    assert gpu_log == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_on_a_gpu_keep_their_values_while_they_are_worked_on(prepared, workers):
    dataset = ScanDataset(prepared, list(prepared.scans.index))
    keys = [[2], [0, 1], [1, 3], [3]] * 10
    expected = list(loader(dataset, workers=0, steps=keys))
    found = []
    for batch in loader(dataset, workers=workers, steps=keys, device=GPU):
        torch.cuda._sleep(5_000_000)  # the next ones arrive before this one is read
        found.append(
            (torch.cat([one.flatten() for one in batch.hu]).clone(), batch.labels.clone(), batch.scans)
        )
        del batch
    for (hu, labels, scans), batch in zip(found, expected, strict=True):
        assert hu.device.type == labels.device.type == "cuda"
        assert torch.equal(hu.cpu(), torch.cat([one.flatten() for one in batch.hu]))
        assert torch.equal(labels.cpu(), batch.labels)
        assert scans == batch.scans


class Wrong(ScanDataset):
    def __getitem__(self, index):
        raise RuntimeError("shapes do not fit")


@pytest.mark.parametrize("workers", [0, 1])
def test_other_errors_while_reading_are_left_alone(prepared, workers):
    dataset = Wrong(prepared, list(prepared.scans.index))
    with pytest.raises(RuntimeError, match="shapes do not fit"), reading_ahead():
        list(loader(dataset, workers=workers, steps=[[0]]))

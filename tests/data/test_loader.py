"""Steps read ahead by threads: they come as they are and in order, and so do errors."""

import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from ich_mil.data.bags import Batch, ScanDataset
from ich_mil.data.loader import AHEAD, loader
from ich_mil.errors import DataError

PATIENCE = 30
"""Seconds after which a thread that waits for another one fails."""


@pytest.mark.parametrize("workers", [0, 3])
def test_batches_pack_scans_without_padding(dataset, prepared, workers):
    (batch,) = loader(dataset, workers=workers, steps=[[2, 0, 1]])
    chosen = [dataset[i] for i in (2, 0, 1)]
    assert batch.scans == tuple(prepared.scans.index[[2, 0, 1]])
    assert batch.offsets.diff().tolist() == prepared.scans.slices.iloc[[2, 0, 1]].tolist()
    assert batch.labels.tolist() == prepared.scans.label.iloc[[2, 0, 1]].tolist()
    assert all(torch.equal(hu, one.hu[0]) for hu, one in zip(batch.hu, chosen, strict=True))


class Watched(ScanDataset):
    """Tells what is asked for, and by whom; may be held up at scans until another one is asked for."""

    def __init__(self, prepared, held=(), until=None):
        super().__init__(prepared, list(prepared.scans.index))
        self.held, self.until = held, until
        self.asked, self.threads = [], set()
        self.changed = threading.Condition()

    def ask(self, place):
        with self.changed:
            self.asked.append(place)
            self.changed.notify_all()

    def wait_for(self, place):
        with self.changed:
            assert self.changed.wait_for(lambda: place in self.asked, PATIENCE)

    def __getitem__(self, index):
        self.threads.add(threading.current_thread())
        self.ask(index)
        if index in self.held:
            self.wait_for(self.until)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [2, 3])
def test_steps_come_in_order_whichever_is_read_first(prepared, workers):
    dataset = Watched(prepared, held=[2], until=1)
    batches = loader(dataset, workers=workers, steps=[[2], [1], [0], [3]])
    assert [batch.scans[0] for batch in batches] == [dataset.scans[place] for place in (2, 1, 0, 3)]
    assert 1 < len(dataset.threads) <= workers  # one that waits for work takes the next step
    assert threading.current_thread() not in dataset.threads


@pytest.mark.parametrize("workers", [1, 2])
def test_so_many_steps_are_read_ahead_and_no_more(prepared, workers):
    dataset, taken = Watched(prepared), []

    def steps():
        for place in [0, 1, 2, 3] * 5:
            taken.append(place)
            yield [place]

    batches = iter(loader(dataset, workers=workers, steps=steps()))
    for done in range(3):
        next(batches)
        assert len(taken) == AHEAD * workers + done
    with dataset.changed:
        assert dataset.changed.wait_for(lambda: len(dataset.asked) == len(taken), PATIENCE)


def test_what_is_left_before_its_end_begins_no_more_reads(prepared, monkeypatch):
    dataset = Watched(prepared, held=[2, 3], until="released")
    shutdown = ThreadPoolExecutor.shutdown

    def release(pool, wait=True, *, cancel_futures=False):
        """Only now the reads under way may end."""
        shutdown(pool, wait=False, cancel_futures=cancel_futures)
        dataset.ask("released")
        shutdown(pool, wait=wait)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", release)
    batches = iter(loader(dataset, workers=2, steps=[[0], [2], [3], [1]]))
    next(batches)
    dataset.wait_for(2)
    dataset.wait_for(3)
    batches.close()
    assert not any(thread.is_alive() for thread in dataset.threads), "a read under way is waited for"
    assert dataset.asked[-1] == "released", "1 was asked for"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_held_by_none_but_its_reader(prepared, workers):
    for batch in loader(Watched(prepared), workers=workers, steps=[[0], [1], [2], [3]]):
        held = weakref.ref(batch.hu[0])
        del batch
        end = time.monotonic() + PATIENCE
        while held() is not None and time.monotonic() < end:  # the thread may not have left its call yet
            time.sleep(0.001)
        assert held() is None


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_is_read_before_a_batch_is_asked_for(prepared, workers):
    """Lightning says which epoch it is between the two."""
    dataset, steps = Watched(prepared), []
    batches = iter(loader(dataset, workers=workers, steps=steps))
    steps += [[1], [2]]
    assert [batch.scans[0] for batch in batches] == [dataset.scans[place] for place in (1, 2)]
    assert dataset.asked == [1, 2]


class Unreadable(ScanDataset):
    error: Exception = DataError("1.npy: cannot be read; run prepare again")

    def __getitem__(self, index):
        if index == 1:
            raise self.error
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize(
    "error", [Unreadable.error, KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
def test_an_error_is_raised_as_it_is_after_the_steps_before_it(prepared, monkeypatch, workers, error):
    monkeypatch.setattr(Unreadable, "error", error)
    dataset = Unreadable(prepared, list(prepared.scans.index))
    batches = iter(loader(dataset, workers=workers, steps=[[2], [3], [0, 1, 3], [2]]))
    assert [next(batches).scans for _ in range(2)] == [(prepared.scans.index[place],) for place in (2, 3)]
    with pytest.raises(type(error)) as caught:
        next(batches)
    assert caught.value is error


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
        assert all(one.was_pinned for one in (*batch.hu, batch.labels))
        log.append(f"send {','.join(batch.scans)}")
        return replace(batch)

    empty = torch.empty

    def pinned(*shape, pin_memory=False, **how):
        """Without a GPU none can be had."""
        memory = empty(*shape, **how)
        memory.was_pinned = pin_memory
        return memory

    monkeypatch.setattr(torch, "empty", pinned)
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
            # hu and labels are none of the memory of others
            kept = [f"keep {one.data_ptr()}" for one in (*batch.hu, batch.labels)]
            assert gpu_log[-2:] == kept
            del gpu_log[-2:]
            (plain,) = loader(dataset, workers=0, steps=[[dataset.scans.index(batch.scans[0])]])
            assert torch.equal(batch.hu[0], plain.hu[0])
            assert torch.equal(batch.labels, plain.labels)
            gpu_log.append(f"given {batch.scans[0]}")
        assert gpu_log == [
            *("aside", f"send {a}", "back"),
            *("aside", f"send {b}", "back", f"wait until sent {a}", f"given {a}"),
            *("aside", f"send {c}", "back", f"wait until sent {b}", f"given {b}"),
            *(f"wait until sent {c}", f"given {c}"),
        ]
        gpu_log.clear()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("good", [[], [[2]], [[2], [0], [3]]])
def test_an_error_comes_after_all_batches_that_were_sent_before_it(prepared, gpu_log, workers, good):
    dataset = Unreadable(prepared, list(prepared.scans.index))
    batches = iter(loader(dataset, workers=workers, steps=[*good, [0, 1, 3], [2]], device=GPU))
    assert [next(batches).scans for _ in good] == [(prepared.scans.index[place],) for (place,) in good]
    with pytest.raises(DataError) as caught:
        next(batches)
    assert caught.value is Unreadable.error
    assert list(batches) == []


def test_what_is_left_before_its_end_sends_no_more(prepared, gpu_log):
    dataset = ScanDataset(prepared, list(prepared.scans.index))
    batches = iter(loader(dataset, workers=0, steps=[[2], [0], [1]], device=GPU))
    next(batches)
    batches.close()
    assert sum(line.startswith("send") for line in gpu_log) == 2


def test_what_was_sent_is_held_no_longer_when_the_next_is_read(prepared, gpu_log, monkeypatch):
    send, before = Batch.to, [lambda: None]
    monkeypatch.setattr(
        Batch, "to", lambda one, device: replace(send(one, device), hu=tuple(hu.clone() for hu in one.hu))
    )
    pin = Batch.pinned

    def alone(batch):
        assert before[-1]() is None
        copy = pin(batch)
        before.append(weakref.ref(copy.hu[0]))
        return copy

    monkeypatch.setattr(Batch, "pinned", alone)
    dataset = ScanDataset(prepared, list(prepared.scans.index))
    assert len(list(loader(dataset, workers=0, steps=[[2], [0], [1]], device=GPU))) == 3
    assert len(before) == 4


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

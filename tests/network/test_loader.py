"""Steps of scans, read on request or ahead by processes: their order, content and errors."""

import pytest
import torch

from ich_mil.errors import DataError
from ich_mil.network.bags import ScanDataset
from ich_mil.network.loader import loader


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_follow_the_steps(dataset, prepared, workers):
    steps = [[2, 0, 1], [3], [1]]
    state = torch.get_rng_state()
    batches = list(loader(dataset, workers=workers, steps=steps))
    assert torch.equal(torch.get_rng_state(), state)
    assert [batch.scans for batch in batches] == [tuple(prepared.scans.index[step]) for step in steps]
    for batch, step in zip(batches, steps, strict=True):
        chosen = prepared.scans.iloc[step]
        assert batch.offsets.diff().tolist() == chosen.slices.tolist()
        assert batch.labels.tolist() == chosen.label.tolist()
        assert all(torch.equal(hu, dataset[i].hu[0]) for hu, i in zip(batch.hu, step, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_steps_are_read_when_requested(dataset, workers):
    """Lightning sets the epoch between the two."""
    steps = []
    batches = loader(dataset, workers=workers, steps=steps)
    for epoch in ([[1], [2]], [[3]]):
        iterator = iter(batches)
        steps[:] = epoch
        assert [batch.scans[0] for batch in iterator] == [dataset.scans[place] for (place,) in epoch]


class Unreadable(ScanDataset):
    """Dataset whose scan 1 cannot be read."""

    def __getitem__(self, index):
        if index == 1:
            raise DataError("1.npy: cannot be read; run prepare again")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_follow_earlier_steps(prepared, workers):
    dataset = Unreadable(prepared, list(prepared.scans.index))
    batches = iter(loader(dataset, workers=workers, steps=[[2], [3], [0, 1, 3], [2]]))
    assert [next(batches).scans for _ in range(2)] == [(prepared.scans.index[place],) for place in (2, 3)]
    with pytest.raises(DataError, match=r"^1\.npy: cannot be read; run prepare again$"):
        next(batches)


def test_a_pinned_batch_has_pinned_tensors(dataset, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda value: value + 1)
    batch = dataset[0]
    pinned = batch.pin_memory()
    assert torch.equal(pinned.hu[0], batch.hu[0] + 1)
    assert torch.equal(pinned.labels, batch.labels + 1)
    assert pinned.offsets is batch.offsets  # the host reads them


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_on_a_gpu_keep_their_values(dataset, workers):
    steps = [[2], [0, 1], [1, 3], [3]] * 5
    expected = loader(dataset, workers=0, steps=steps)
    found = loader(dataset, workers=workers, steps=steps, device=torch.device("cuda"))
    for batch, other in zip(found, expected, strict=True):
        assert all(hu.is_pinned() for hu in batch.hu)
        there = batch.to(torch.device("cuda"))
        torch.cuda._sleep(5_000_000)  # the next batch is read meanwhile
        assert all(torch.equal(hu.cpu(), own) for hu, own in zip(there.hu, other.hu, strict=True))
        assert torch.equal(there.labels.cpu(), other.labels)

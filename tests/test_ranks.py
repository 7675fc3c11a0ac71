import datetime
import signal
import time

import pytest
import torch
import torch.distributed as dist

from ich_mil.errors import ConfigError, ProcessError
from ich_mil.ranks import ALONE, Ranks, device, joined, these_ranks
from tests.together import together


def reductions() -> tuple[object, ...]:
    ranks = these_ranks()
    value = torch.tensor([1.0, -5.0, 2.0]) * (ranks.rank + 1)
    rows = torch.full((1 + 2 * ranks.rank, 2), float(ranks.rank))
    found = ranks.total(value), ranks.most(value), ranks.gathered(rows)
    table = torch.arange(6.0).view(2, 3)
    if ranks.rank == 1:  # the same in another order in memory
        table = table.mT.contiguous().mT
    assert torch.equal(ranks.total(table), 2 * table)
    return ranks.rank, ranks.size, *found, value


def ahead(path):
    ranks = these_ranks()
    with ranks.first_ahead():
        if ranks.first:
            time.sleep(0.3)
            path.write_text("made")
        return path.read_text()


def working(path):
    return reductions(), ahead(path)


def test_all_ranks_have_sum_maximum_and_files_of_the_first(tmp_path):
    for rank, (reduced, text) in enumerate(together(working, tmp_path / "file", folder=tmp_path)):
        own, size, total, most, rows, value = reduced
        assert text == "made"
        assert (own, size) == (rank, 2)
        assert total.tolist() == [3.0, -15.0, 6.0]
        assert most.tolist() == [2.0, -5.0, 4.0]
        assert rows.tolist() == [[0.0, 0.0]] + 3 * [[1.0, 1.0]]
        assert value.tolist() == [1.0 + rank, -5.0 - 5 * rank, 2.0 + 2 * rank], "an argument was changed"


def leave_or_sum():
    with joined() as ranks:
        if ranks.rank == 1:
            dist.destroy_process_group()
            raise ProcessError("on purpose")
        ranks.total(torch.ones(2))


def loses_the_other():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "init_process_group", lambda *_, **__: None)  # `together` has done it
        with pytest.raises(ProcessError) as caught:
            leave_or_sum()
    return str(caught.value)


def test_a_rank_that_has_lost_another_says_so_and_what_to_do(tmp_path):
    first, other = together(loses_the_other, folder=tmp_path)
    assert other == "on purpose"
    assert first.startswith("process 1 of 2 has lost another one;")
    assert "--resume" in first


@pytest.fixture
def torchrun(monkeypatch):
    """As if torchrun had started this process alone."""
    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("torchrun")
def test_an_error_of_another_kind_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shapes do not fit"), joined():
        raise RuntimeError("shapes do not fit")


@pytest.mark.usefixtures("torchrun")
def test_an_error_of_nccl_is_a_lost_process():
    with pytest.raises(ProcessError, match="has lost another one"), joined():
        raise dist.DistBackendError("NCCL communicator was aborted")


@pytest.mark.usefixtures("torchrun")
def test_processes_that_cannot_reach_each_other_say_why(monkeypatch):
    def refused(_backend):
        raise dist.DistNetworkError("connect: no route to host\nC++ stack")

    monkeypatch.setattr(dist, "init_process_group", refused)
    reason = r"cannot reach each other \(connect: no route to host\);"
    with pytest.raises(ProcessError, match=reason), joined():
        pass


@pytest.mark.usefixtures("torchrun")
def test_after_the_work_the_group_is_left_and_sigterm_means_what_it_did_before(monkeypatch):
    before, left = signal.getsignal(signal.SIGTERM), []
    monkeypatch.setattr(dist, "destroy_process_group", lambda: left.append(True))
    with joined():
        assert signal.getsignal(signal.SIGTERM) != before
        assert not left
    assert signal.getsignal(signal.SIGTERM) == before
    assert left == [True]


def test_more_processes_than_gpus_are_refused_before_they_wait_for_each_other(monkeypatch):
    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: pytest.fail("they wait"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="3 processes on a machine of 2 GPU") as caught, joined():
        pass
    assert str(caught.value).endswith("--nproc-per-node 2")


@pytest.mark.usefixtures("torchrun")
def test_each_process_takes_the_gpu_of_its_number(monkeypatch):
    taken, backends = [], []
    monkeypatch.setattr(dist, "init_process_group", backends.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with joined():
        assert taken == [1]
        assert device() == torch.device("cuda")
    assert backends == ["cpu:gloo,cuda:nccl"]  # sums are of tensors on either


def one_here_two_there():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "init_process_group", lambda *_, **__: None)  # `together` has done it
        patch.setenv("LOCAL_WORLD_SIZE", str(1 + these_ranks().rank))
        with pytest.raises(ConfigError) as caught, joined():
            pass
    return str(caught.value)


def test_machines_with_different_numbers_of_processes_are_refused_by_all(tmp_path):
    for message in together(one_here_two_there, folder=tmp_path):
        assert "give torchrun the same --nproc-per-node on each" in message


def test_alone_everything_is_its_own():
    assert these_ranks() is ALONE
    with joined() as ranks:
        assert ranks is ALONE
    value = torch.tensor([1.0, 2.0])
    assert all(one is value for one in (ALONE.total(value), ALONE.most(value)))
    assert ALONE.share(torch.tensor([3, 1, 2])).tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_bag_is_shared_out_once_and_evenly(size):
    sizes = torch.randint(1, 60, (40,), generator=torch.Generator().manual_seed(size))
    shares = [Ranks(rank, size).share(sizes) for rank in range(size)]
    assert torch.cat(shares).sort().values.tolist() == list(range(40))
    loads = torch.stack([sizes[share].sum() for share in shares])
    # the greedy rule: nobody can have more than the lightest and the longest bag
    assert int(loads.max() - loads.min()) <= int(sizes.max())
    assert all(share.tolist() == sorted(share.tolist()) for share in shares)


def test_bags_of_very_different_lengths():
    shares = [Ranks(rank, 2).share(torch.tensor([1, 1, 100, 1, 1])).tolist() for rank in range(2)]
    assert shares == [[2], [0, 1, 3, 4]]


def test_of_fewer_bags_than_ranks_some_have_none():
    shares = [Ranks(rank, 3).share(torch.tensor([4, 5])).tolist() for rank in range(3)]
    assert shares == [[1], [0], []]


def fail_or_go_ahead():
    with joined() as ranks:
        if ranks.rank == 1:
            dist.destroy_process_group()
            raise ProcessError("on purpose")
        with ranks.first_ahead():
            pass


def fails_before_the_first_goes_ahead():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "init_process_group", lambda *_, **__: None)  # `together` has done it
        patch.setattr("ich_mil.ranks.PATIENCE", datetime.timedelta(seconds=2))  # a test has no 12 hours
        with pytest.raises(ProcessError) as caught:
            fail_or_go_ahead()
    return str(caught.value)


def test_a_rank_that_fails_before_the_first_goes_ahead_is_not_waited_for(tmp_path):
    message, _ = together(fails_before_the_first_goes_ahead, folder=tmp_path)
    assert message.startswith("process 1 of 2 has lost another one")


def sleep_ahead():
    ranks = these_ranks()
    with ranks.first_ahead():
        if ranks.first:
            time.sleep(1.5)


def too_long_ahead():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ich_mil.ranks.PATIENCE", datetime.timedelta(seconds=0.5))
        with pytest.raises(RuntimeError):
            sleep_ahead()


def test_the_others_wait_for_the_first_as_long_as_patience_says(tmp_path):
    together(too_long_ahead, folder=tmp_path)

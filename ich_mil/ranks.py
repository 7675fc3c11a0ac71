"""Distributed computation over the processes (ranks) of `torchrun`, one per GPU or machine.

All ranks run the same program on the same data. The CNN is trained, and features are extracted, by all ranks,
each on its share of the scans; rank 0 alone fits heads and writes files. Without `torchrun` there is a single
rank.

Shapes: B bags (scans).
"""

import datetime
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ich_mil.errors import ConfigError, ProcessError

PATIENCE = datetime.timedelta(hours=12)
"""Timeout of the other ranks while rank 0 prepares scans; elsewhere torch's default (minutes) applies."""


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, and collective operations over all ranks.

    All methods except `first` and `share` are collective: all ranks must call them in the same order.

    Attributes:
        rank: rank of this process, from 0.
        size: number of ranks.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which alone writes files."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """Elementwise sum over all ranks; `value` itself for a single rank."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def most(self, value: Tensor) -> Tensor:
        """Elementwise maximum over all ranks."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def gathered(self, rows: Tensor) -> Tensor:
        """Rows (n, ...) of all ranks, in their order; n may differ."""
        counts = torch.zeros(self.size, device=rows.device)
        counts[self.rank] = len(rows)
        first, last = self.total(counts).cumsum(0).long()[[self.rank, -1]].tolist()
        whole = rows.new_zeros(last, *rows.shape[1:])
        whole[first - len(rows) : first] = rows
        return self.total(whole)

    def share(self, sizes: Tensor) -> Tensor:
        """Indices (C,) int64 of the bags of this rank, ascending, balanced by number of slices `sizes` (B,).

        Greedy: bags by decreasing size, each to the rank with the fewest slices so far. Every bag belongs to
        exactly one rank; with fewer bags than ranks some ranks have none.
        """
        loads, mine = [0] * self.size, []
        for bag in sizes.argsort(descending=True, stable=True).tolist():
            rank = loads.index(min(loads))
            loads[rank] += int(sizes[bag])
            if rank == self.rank:
                mine.append(bag)
        return torch.tensor(sorted(mine), dtype=torch.int64)

    @contextmanager
    def first_ahead(self) -> Iterator[None]:
        """Run this block on rank 0 first, then on the other ranks, which find its files written."""
        if self.size == 1:
            yield
            return
        # new_group waits without noticing a failed rank; this all-reduce notices
        self.total(torch.zeros(1))
        group = dist.new_group(backend="gloo", timeout=PATIENCE)
        assert isinstance(group, dist.ProcessGroup)  # the group contains every rank
        if not self.first:
            dist.barrier(group)
        yield
        if self.first:
            dist.barrier(group)

    def _reduce(self, value: Tensor, operation: "dist.ReduceOp.RedOpType") -> Tensor:
        if self.size == 1:
            return value
        value = value.contiguous().clone()
        dist.all_reduce(value, operation)
        return value


ALONE = Ranks()
"""A single process without `torchrun`."""


def device() -> torch.device:
    """The GPU of this process, or the CPU where there is no GPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def these_ranks() -> Ranks:
    """`Ranks` of the current process group; `ALONE` without a process group."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    return Ranks(dist.get_rank(), dist.get_world_size())


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the process group of `torchrun` for the duration of this block.

    Within the block, and after an error in it, SIGTERM ends this process with a message on how to resume.

    Yields:
        The rank of this process; `ALONE` without `torchrun`.

    Raises:
        ConfigError: more processes than GPUs on a machine with GPUs, or machines with different numbers of
            processes.
        ProcessError: another process cannot be reached, or has ended within the block.
    """
    if not dist.is_torchelastic_launched():
        yield ALONE
        return
    ranks = _meet()

    def report(*_: object) -> None:
        """Print the message and end; an exception raised here could be lost in a destructor."""
        os.write(2, f"error: {_ended(ranks, 'was ended by SIGTERM')}\n".encode())
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    # torchrun sends SIGTERM to the remaining processes after a failure, even while they report an error
    before = signal.signal(signal.SIGTERM, report)
    try:
        yield ranks
    except RuntimeError as error:
        # gloo has no error class
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise _ended(ranks, "has lost another one") from error
    # not after an error: the other ranks are still running, and `torchrun` ends them
    dist.destroy_process_group()
    signal.signal(signal.SIGTERM, before)


def _meet() -> Ranks:
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    backend = "gloo"
    if torch.cuda.is_available():
        cards = torch.cuda.device_count()
        if local > cards:
            raise ConfigError(
                f"torchrun has started {local} processes on a machine of {cards} GPU(s), each needs one; "
                f"give it --nproc-per-node {cards}"
            )
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend)
        ranks, count = these_ranks(), torch.tensor(float(local))
        alike = bool(ranks.most(count) == -ranks.most(-count))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ProcessError(
            f"the processes that torchrun has started cannot reach each other ({reason}); let machines "
            "connect to each other, and name their network in GLOO_SOCKET_IFNAME if they are in several"
        ) from error
    if not alike:
        raise ConfigError(
            "machines run different numbers of processes; give torchrun the same --nproc-per-node on each"
        )
    return ranks


def _ended(ranks: Ranks, how: str) -> ProcessError:
    """The error for a process that ends early for the reason `how`."""
    return ProcessError(
        f"process {ranks.rank + 1} of {ranks.size} {how}; see the first failure that torchrun lists below, "
        "and continue with 'torchrun ... train.py ... --resume'"
    )

"""Processes that work on one thing together, one a GPU or a machine: `torchrun` starts them.

Every process, a rank, runs the same program on the same data. Where work can be divided each takes its share
of the scans, and sums over all ranks put the whole together: each rank then has the same numbers, to the bit,
and takes the same decisions. A program that was started alone is one rank of one.

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
"""So long the others wait for rank 0 to prepare scans; else as long as torch does by default, minutes."""


@dataclass(frozen=True)
class Ranks:
    """This process among those it works with.

    All ranks must call what waits for the others (all but `first` and `share`) in the same order.

    Attributes:
        rank: of this process, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the one that writes files."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """The sum over all ranks, elementwise; `value` itself where there is one."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def most(self, value: Tensor) -> Tensor:
        """The largest over all ranks, elementwise; NaN where one is NaN."""
        if self.size == 1:
            return value
        nan = self.total(value.isnan().to(value))
        return self._reduce(value, dist.ReduceOp.MAX).masked_fill(nan > 0, torch.nan)

    def same(self, value: Tensor) -> Tensor:
        """Rank 0's value."""
        if self.size == 1:
            return value
        value = value.contiguous().clone()
        dist.broadcast(value, src=0)
        return value

    def agree(self, module: torch.nn.Module) -> None:
        """Give `module` rank 0's numbers, in place: machines may round differently."""
        for value in module.state_dict().values():
            value.copy_(self.same(value))

    def share(self, sizes: Tensor) -> Tensor:
        """The bags of this rank: about as many slices on each.

        The longest bag goes first, each to the rank that has the fewest slices so far.

        Args:
            sizes: (B,) slices of each bag.

        Returns:
            (C,) int64, rising; every bag is in the share of one rank. With fewer bags than ranks some
            have none.
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
        """Rank 0 goes through this block before all others: what it makes they find made."""
        if self.size == 1:
            yield
            return
        # a new group waits for all in a way that hears of no end, this does: one may have failed by now
        self.total(torch.zeros(1))
        group = dist.new_group(backend="gloo", timeout=PATIENCE)
        assert isinstance(group, dist.ProcessGroup)  # every rank is in it
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
"""One process that does everything."""


def device() -> torch.device:
    """Where this process computes: the GPU it was given, where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def these_ranks() -> Ranks:
    """The ranks of the process group this process is in; `ALONE` where it is in none."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    return Ranks(dist.get_rank(), dist.get_world_size())


@contextmanager
def joined() -> Iterator[Ranks]:
    """Work together with the other processes that `torchrun` has started, within this block.

    In it, and after an error in it, SIGTERM ends this process with a message that says how to go on.

    Raises:
        ConfigError: more processes than GPUs on a machine that has some, or machines have different numbers
            of processes.
        ProcessError: another process cannot be reached, or has ended in the middle of the block.
    """
    if not dist.is_torchelastic_launched():
        yield ALONE
        return
    ranks = _meet()

    def told(*_: object) -> None:
        """An exception would be lost in a destructor."""
        os.write(2, f"error: {_ended(ranks, 'was told to end')}\n".encode())
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    # torchrun sends it to those that are left when one has failed, also while they tell of an error
    before = signal.signal(signal.SIGTERM, told)
    try:
        yield ranks
    except RuntimeError as error:
        # gloo has no error class of its own
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise _ended(ranks, "has lost another one") from error
    # not after an error: the others are in the middle of something, and `torchrun` ends them
    dist.destroy_process_group()
    signal.signal(signal.SIGTERM, before)


def _meet() -> Ranks:
    """Find the other processes that `torchrun` has started, and take a GPU, where there are any."""
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    backend = "gloo"
    if torch.cuda.is_available():
        cards = torch.cuda.device_count()
        if here > cards:
            raise ConfigError(
                f"torchrun has started {here} processes on a machine of {cards} GPU(s), each needs one; "
                f"give it --nproc-per-node {cards}"
            )
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend)
        ranks, count = these_ranks(), torch.tensor(float(here))
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
    """Why this process ends before its time."""
    return ProcessError(
        f"process {ranks.rank + 1} of {ranks.size} {how}; torchrun tells below what came first, and a "
        "process that failed says why itself; 'torchrun ... train.py ... --resume' goes on"
    )

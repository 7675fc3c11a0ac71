"""Runs a kernel of PTX on the CPU as a GPU would: many blocks of threads side by side, NumPy over threads.

Threads that are at one instruction go on together; where they part, those that are behind go first, so that
they meet again. What is asynchronous happens as late as it may: a copy, or a product of tensor cores, when it
is waited for. Not seen are races within a warp, whose threads need not go on together on a GPU, and races of
blocks in global memory.

Legend: `T` threads of all blocks.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from tests.emulated.arithmetic import TYPES, bits_of
from tests.emulated.instructions import Instructions, Later
from tests.emulated.memory import GlobalMemory, GpuError, SharedMemory
from tests.emulated.ptx import Kernel

SIDE_BY_SIDE = 96
"""Blocks: most of what an instruction costs is the call of NumPy, not the numbers."""


class Machine(Instructions):
    """Some blocks of a launch.

    Args:
        kernel: what all run.
        arguments: of the kernel: numbers and addresses.
        grid: blocks of the launch, in three directions.
        blocks: (B, 3) their places in it.
        memory: the global one.
        shared: bytes a block has.
    """

    def __init__(
        self,
        kernel: Kernel,
        arguments: Sequence[float],
        grid: Sequence[int],
        blocks: Sequence[Sequence[int]],
        memory: GlobalMemory,
        shared: int,
    ) -> None:
        self.kernel, self.memory = kernel, memory
        self.block = np.repeat(np.arange(len(blocks)), kernel.threads)
        thread = np.tile(np.arange(kernel.threads), len(blocks))
        self.shared = SharedMemory(shared, self.block, thread // 32)
        self.size = len(thread)
        given = zip(kernel.parameters.items(), arguments, strict=True)
        self.arguments = {name: bits_of(value, kind) for (name, kind), value in given}
        self.registers = {name: np.zeros(self.size, TYPES[kind]) for name, kind in kernel.registers.items()}
        self.fixed = {"global_smem": np.zeros(self.size, np.uint32), "%tid.x": thread.astype(np.uint32)}
        for axis, along, whole in zip("xyz", np.array(blocks, np.uint32).T, grid, strict=True):
            self.fixed[f"%ctaid.{axis}"] = along[self.block]
            self.fixed[f"%nctaid.{axis}"] = np.full(self.size, whole, np.uint32)
        self.later: dict[str, list[Later]] = {"cp": [], "wgmma": []}
        self.groups = {name: np.zeros(self.size, np.int64) for name in self.later}
        self.at = np.zeros(self.size, np.int64)
        self.waits, self.done = np.zeros((2, self.size), np.bool_)

    def run(self) -> None:
        """Until all threads are done."""
        with np.errstate(all="ignore"):
            while True:
                ready = ~self.done & ~self.waits
                if ready.any():
                    now = ready & (self.at == self.at[ready].min())
                    self._go_on(now, self.at[ready & ~now].min(initial=len(self.kernel.code)))
                elif self.waits.any():
                    self._barrier()
                else:
                    break
        if self.later["wgmma"]:
            raise GpuError("a product of tensor cores that nobody waits for")

    def _barrier(self) -> None:
        for block in np.unique(self.block):
            if len(np.unique(self.at[(self.block == block) & ~self.done])) > 1:
                raise GpuError("threads of a block wait at different barriers")
        self.shared.barrier(self.waits)
        self.waits[:] = False

    def _go_on(self, threads: np.ndarray, stop: int) -> None:
        """From where these threads are to a jump, a barrier, the end, or where others are."""
        place = int(self.at[threads][0])
        while place < stop:
            one = self.kernel.code[place]
            place += 1
            held = threads
            if one.guard:
                held = threads & (self.registers[one.guard] ^ one.unless)
            match one.name[0]:
                case "bra":
                    self.at[threads] = place
                    self.at[held] = self.kernel.labels[one.operands[0]]
                    return
                case "ret":
                    self.at[threads] = place
                    self.done |= held
                    return
                case "bar":
                    self.at[threads] = place
                    self.waits |= held
                    return
            try:
                self.execute(one, held)
            except (GpuError, LookupError, ValueError, TypeError) as error:
                raise GpuError(f"{one.text}: {error!r}") from error
        self.at[threads] = place


def launch(
    kernel: Kernel, arguments: Sequence[float], grid: Sequence[int], memory: GlobalMemory, shared: int
) -> None:
    """Run all blocks of a launch."""
    blocks = list(product(*map(range, grid)))
    for first in range(0, len(blocks), SIDE_BY_SIDE):
        Machine(kernel, arguments, grid, blocks[first : first + SIDE_BY_SIDE], memory, shared).run()

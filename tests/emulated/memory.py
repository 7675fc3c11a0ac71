"""The memories of a GPU: the global one, and what the threads of a block share.

What a GPU would do wrongly, and often in silence, raises: an access outside of all tensors, or not aligned,
and a race, which is two warps of a block at one word, one of them writing, without a barrier between.

Legend: `T` threads of all blocks, `B` blocks; addresses and masks are (T,).
"""

import ctypes
from collections.abc import Iterable

import numpy as np
from torch import Tensor

RAW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class GpuError(Exception):
    """What a kernel must not do, or what is not known here."""


class GlobalMemory:
    """That of the tensors a kernel was given, where they lie."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        memories = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
        self._parts = [
            (start, np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start)))
            for start, size in memories.items()
            if size
        ]

    def load(self, at, size, mask):
        value = np.zeros(len(at), RAW[size])
        for there, memory, place in self._found(at, size, mask):
            value[there] = memory[place]
        return value

    def store(self, at, value, size, mask):
        for there, memory, place in self._found(at, size, mask):
            memory[place] = value[there]

    def _found(self, at, size, mask):
        left = mask.copy()
        for start, memory in self._parts:
            there = left & (at >= start) & (at + size <= start + len(memory))
            if there.any():
                place = at[there] - start
                if (place % size).any():
                    raise GpuError(f"an address is no multiple of {size}")
                left &= ~there
                yield there, memory[: len(memory) // size * size].view(RAW[size]), place // size
        if left.any():
            raise GpuError(f"address {at[left][0]:#x} is in no tensor")


class SharedMemory:
    """That of each block; at first it holds NaN.

    Args:
        size: bytes a block has.
        block: (T,) of each thread.
        warp: (T,) of each thread, counted in its block.
    """

    def __init__(self, size: int, block, warp) -> None:
        self.size, self._block, self._warp = size, block, warp
        self._each = -(-size // 4)  # words of a block
        words = self._each * (int(block.max()) + 1)
        self._words = np.full(words, -1, np.int32).view(np.uint32)
        self._time = np.zeros(len(block), np.int64)  # barriers so far
        self._writer, self._written = np.full(words, -1), np.full(words, -1)
        self._readers, self._read = np.zeros(words, np.int64), np.full(words, -1)
        self._told = np.ones(words, np.bool_)  # to tensor cores, which read by a way of their own

    def barrier(self, threads) -> None:
        self._time[threads] += 1

    def fence(self, threads) -> None:
        """Tensor cores will see what the warps of these threads have written."""
        ours = np.zeros((int(self._block.max()) + 1, int(self._warp.max()) + 1), np.bool_)
        ours[self._block[threads], self._warp[threads]] = True
        self._told |= ours[np.arange(len(self._told)) // self._each, self._writer]

    def load(self, at, size, mask):
        words = self._places(at, size, mask)
        self._look(words, mask, writing=False)
        value = np.zeros(len(at), RAW[size])
        value[mask] = np.ascontiguousarray(self._words[words]).view(RAW[size])[:, 0]
        return value

    def store(self, at, value, size, mask):
        words = self._places(at, size, mask)
        self._look(words, mask, writing=True)
        self._words[words] = np.ascontiguousarray(value[mask]).view(np.uint32).reshape(words.shape)

    def claim(self, at, size, mask):
        """From now on something is written here, nobody knows when: until it is there, it holds NaN."""
        self.store(at, np.full((len(at), size // 4), -1, np.int32), size, mask)

    def for_tensor_cores(self, at, block, threads):
        """Values at `at` (n, k), bytes of one block, which all of its warps read."""
        words = at // 4 + block * self._each
        if at.max() + 4 > self.size:
            raise GpuError("beyond shared memory")
        now = self._time[threads].max()
        if not self._told[words].all():
            raise GpuError("tensor cores read what was written without a fence")
        if (self._written[words] == now).any():
            raise GpuError("tensor cores read what was written without a barrier")
        self._read[words], self._readers[words] = now, -1
        return self._words[words]

    def _places(self, at, size, mask):
        """Words (t, size / 4) of the threads in the mask."""
        if size < 4:
            raise GpuError(f"{size} bytes of shared memory")
        here = at[mask]
        if (here % size).any():
            raise GpuError(f"an address of shared memory is no multiple of {size}")
        if len(here) and here.max() + size > self.size:
            raise GpuError(f"{here.max() + size - self.size} bytes beyond shared memory")
        return (here // 4 + self._block[mask] * self._each)[:, None] + np.arange(size // 4)

    def _look(self, words, mask, *, writing):
        warp, now = self._warp[mask][:, None], self._time[mask][:, None]
        if ((self._written[words] == now) & (self._writer[words] != warp)).any():
            raise GpuError("a race: another warp has written here since the last barrier")
        reader = np.int64(1) << warp
        read_now = self._read[words] == now
        if writing:
            if (read_now & ((self._readers[words] & ~reader) != 0)).any():
                raise GpuError("a race: another warp has read here since the last barrier")
            self._writer[words], self._written[words], self._told[words] = warp, now, False
        else:
            self._readers[words[~read_now]] = 0
            self._read[words] = now
            np.bitwise_or.at(self._readers, words, np.broadcast_to(reader, words.shape))

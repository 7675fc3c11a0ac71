"""What is seen of races, and of what tensor cores read."""

import numpy as np
import pytest

from tests.emulated.memory import GpuError, SharedMemory

AT = np.tile(4 * np.arange(32), 2)
"""Both warps of a block at the same words."""
ALL = np.ones(64, np.bool_)
FIRST = np.arange(64) < 32
SECOND = ~FIRST
WORDS = 4 * np.arange(32).reshape(4, 8)


@pytest.fixture
def memory():
    return SharedMemory(128, np.zeros(64, np.int64), np.arange(64) // 32)


def write(memory, threads):
    memory.store(AT, np.arange(64, dtype=np.uint32), 4, threads)


def look(memory, threads):
    return memory.load(AT, 4, threads)[threads].tolist()


def by_tensor_cores(memory):
    return memory.for_tensor_cores(WORDS, 0, ALL).ravel().tolist()


def test_at_first_there_is_nan(memory):
    assert np.isnan(memory.load(AT, 4, ALL).view(np.float32)).all()


def test_what_is_seen_after_a_barrier(memory):
    write(memory, SECOND)
    assert look(memory, SECOND) == list(range(32, 64))
    memory.barrier(ALL)
    assert look(memory, ALL) == 2 * list(range(32, 64))


def test_readers_are_those_since_the_last_barrier(memory):
    look(memory, FIRST)
    memory.barrier(ALL)
    look(memory, SECOND)
    write(memory, SECOND)


@pytest.mark.parametrize("writer", [FIRST, SECOND])
def test_one_of_two_readers_writes(memory, writer):
    look(memory, ALL)
    with pytest.raises(GpuError, match="another warp has read"):
        write(memory, writer)


def test_tensor_cores_see_what_its_writers_have_fenced_before_a_barrier(memory):
    write(memory, FIRST)
    memory.fence(SECOND)
    memory.barrier(ALL)
    with pytest.raises(GpuError, match="without a fence"):
        by_tensor_cores(memory)
    memory.fence(FIRST)
    assert by_tensor_cores(memory) == list(range(32))
    memory.barrier(ALL)
    write(memory, FIRST)
    memory.fence(FIRST)
    with pytest.raises(GpuError, match="without a barrier"):
        by_tensor_cores(memory)


def test_what_tensor_cores_read_is_read_by_all_warps(memory):
    by_tensor_cores(memory)
    with pytest.raises(GpuError, match="another warp has read"):
        write(memory, FIRST)


def test_blocks_have_memories_of_their_own():
    memory = SharedMemory(128, np.arange(64) // 32, np.zeros(64, np.int64))
    write(memory, ALL)
    assert look(memory, ALL) == list(range(64))

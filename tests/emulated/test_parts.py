"""Shared memory: races and reads by tensor cores. Tensor cores: layout of elements, truncation."""

import numpy as np
import pytest

from tests.emulated import tensor_cores
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


LANE = np.arange(32)
MMA = "mma.sync.aligned.{}.row.col.{}"


def held(matrix, i):
    """Element i of each lane of a factor whose rows and sums are dealt among 8 and 4 lanes."""
    rows = matrix.shape[0] // 8
    return matrix[LANE // 4 + 8 * (i % rows), LANE % 4 + 4 * (i // rows)]


def dealt(matrix, i):
    """Element i of each lane of a result (m, 8): two neighbours of a row, then those of 8 rows below."""
    return matrix[LANE // 4 + 8 * (i // 2), LANE % 4 * 2 + i % 2]


def all_of(matrix, of, many):
    return np.stack([of(matrix, i) for i in range(many)], 1)


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        ((8, 4), "f64.f64.f64.f64"),
        ((16, 16), "f64.f64.f64.f64"),
        ((16, 4), "f32.tf32.tf32.f32"),
        ((16, 8), "f32.tf32.tf32.f32"),
    ],
)
def test_a_product_of_a_warp(shape, kinds):
    (m, k), rng = shape, np.random.default_rng(0)
    A, B, C = (rng.integers(-8, 9, size).astype(np.float64) for size in ((m, k), (k, 8), (m, 8)))
    left, right, total = all_of(A, held, m * k // 32), all_of(B.T, held, k // 4), all_of(C, dealt, m // 4)
    if "tf32" in kinds:
        left, right = (part.astype(np.float32).view(np.uint32) for part in (left, right))
    found = tensor_cores.of_warps(MMA.format(f"m{m}n8k{k}", kinds).split("."), left, right, total)
    np.testing.assert_array_equal(found, all_of(C + A @ B, dealt, m // 4))


def test_a_product_of_four_warps():
    rng = np.random.default_rng(0)
    A, B, C = (rng.integers(-8, 9, size).astype(np.float32) for size in ((64, 8), (16, 8), (64, 16)))
    parts = np.split(A, 4)
    left = np.concatenate([all_of(part, held, 4) for part in parts]).view(np.uint32)

    def result(matrix):
        halves = (np.hsplit(part, 2) for part in np.split(matrix, 4))
        return np.concatenate([np.hstack([all_of(half, dealt, 4) for half in part]) for part in halves])

    found = tensor_cores.of_four_warps(left, B.view(np.uint32), result(C))
    np.testing.assert_array_equal(found, result(C + A @ B.T))


def test_they_see_11_bits_and_cut_off():
    bits = np.array([1 + 2.0**-10, 1 + 2.0**-11, -1 - 2.0**-11], np.float32).view(np.uint32)
    assert tensor_cores.seen(bits).tolist() == [1 + 2.0**-10, 1.0, -1.0]
    value = np.array([1 + 1.9 * 2.0**-23, -1 - 1.9 * 2.0**-23, 1 - 2.0**-30, 0.0])
    assert tensor_cores.cut_off(value).tolist() == [1 + 2.0**-23, -1 - 2.0**-23, 1 - 2.0**-24, 0.0]
    # 1 + 8 · 2⁻¹³ · 1.75 · 2⁻¹³, of which float32 would make 1 + 2⁻²²
    small, less = (
        np.full(shape, v, np.float32).view(np.uint32)
        for shape, v in (((128, 4), 2.0**-13), ((8, 8), 1.75 * 2.0**-13))
    )
    assert np.unique(tensor_cores.of_four_warps(small, less, np.ones((128, 4), np.float32))) == 1 + 2.0**-23
    name = MMA.format("m16n8k8", "f32.tf32.tf32.f32").split(".")
    right = np.full((32, 2), 1.75 * 2.0**-13, np.float32).view(np.uint32)
    assert np.unique(tensor_cores.of_warps(name, small[:32], right, np.ones((32, 4)))) == 1 + 2.0**-23

"""The instructions of PTX that Triton writes for the kernels, each for all threads at once.

Legend: `T` threads of all blocks.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tests.emulated import tensor_cores
from tests.emulated.arithmetic import TYPES, compared, computed, constant, converted
from tests.emulated.memory import RAW, GlobalMemory, GpuError, SharedMemory
from tests.emulated.ptx import Instruction


class Later(NamedTuple):
    """What threads have asked for and is not there yet; `group` counts the groups they had closed before."""

    happens: Callable
    threads: np.ndarray
    group: np.ndarray


class Instructions:
    """Registers, memories and instructions of the threads of a `Machine`."""

    size: int
    memory: GlobalMemory
    shared: SharedMemory
    block: np.ndarray
    arguments: dict[str, int]
    registers: dict[str, np.ndarray]
    fixed: dict[str, np.ndarray]
    later: dict[str, list[Later]]
    groups: dict[str, np.ndarray]

    # ---- registers

    def get(self, operand: str, kind: str) -> np.ndarray:
        """(T,) of an operand: its lowest bits, in the type."""
        dtype = TYPES[kind]
        value = self.registers.get(operand, self.fixed.get(operand))
        if value is None:
            return np.full(self.size, constant(operand, dtype))
        if value.itemsize > dtype.itemsize:
            value = value.astype(RAW[dtype.itemsize])
        if value.itemsize < dtype.itemsize:
            raise GpuError(f"{operand} is narrower than {kind}")
        return value.view(dtype)

    def put(self, operand: str, value: np.ndarray, threads: np.ndarray) -> None:
        """Set a register of these threads; a number narrower than it keeps its value."""
        register = self.registers[operand]
        if value.itemsize < register.itemsize:
            value = value.astype(f"{value.dtype.kind}{register.itemsize}")
        np.copyto(register, value.view(register.dtype), where=threads)

    def address(self, operand: str, kind: str) -> np.ndarray:
        """(T,) of `[register + number]`."""
        register, _, number = operand[1:-1].partition("+")
        return self.get(register.strip(), kind).astype(np.int64) + int(number or 0)

    # ---- instructions

    def execute(self, one: Instruction, threads: np.ndarray) -> None:
        name, operands = one.name, one.operands
        if special := getattr(self, f"_{name[0]}", None):
            special(name, operands, threads)
            return
        kinds = [name[-1]] * 3
        if name[0] in ("shl", "shr"):
            kinds[1] = "u32"
        values = [self.get(operand, kind) for operand, kind in zip(operands[1:], kinds, strict=False)]
        self.put(operands[0], computed(name, values), threads)

    def _mul(self, name, operands, threads):
        """Or `mad`, which adds a third number."""
        kind = name[-1]
        a, b = (self.get(operand, kind) for operand in operands[1:3])
        if name[1] == "wide":
            kind = f"{kind[0]}{2 * int(kind[1:])}"
            a, b = a.astype(TYPES[kind]), b.astype(TYPES[kind])
        elif {*name[1:-1]} - {"lo", "rn"}:
            raise GpuError("unknown product")
        more = [self.get(operand, kind) for operand in operands[3:]]
        self.put(operands[0], sum(more, a * b), threads)

    _mad = _mul

    def _mov(self, name, operands, threads):
        """Or a register into its parts, or parts into one."""
        (to, of), kind = operands, name[-1]
        parts = _names(to if to[0] == "{" else of)
        bits = 8 * TYPES[kind].itemsize // len(parts)
        if to[0] == "{":
            for i, part in enumerate(parts):
                if part != "_":  # nobody wants it
                    value = self.get(of, kind) >> np.array(i * bits, TYPES[kind])
                    self.put(part, value.astype(TYPES[f"b{bits}"]), threads)
        elif of[0] == "{":
            values = [self.get(part, f"b{bits}").astype(np.uint64) for part in parts]
            whole = sum(value << np.uint64(i * bits) for i, value in enumerate(values))
            self.put(to, whole.astype(TYPES[kind]), threads)
        else:
            self.put(to, self.get(of, kind), threads)

    def _selp(self, name, operands, threads):
        a, b = (self.get(operand, name[-1]) for operand in operands[1:3])
        self.put(operands[0], np.where(self.get(operands[3], "pred"), a, b), threads)

    def _setp(self, name, operands, threads):
        a, b = (self.get(operand, name[-1]) for operand in operands[1:])
        self.put(operands[0], compared(name[1], a, b), threads)

    def _cvt(self, name, operands, threads):
        *modes, to, of = name[1:]
        self.put(operands[0], converted(self.get(operands[1], of), modes, TYPES[to]), threads)

    def _bfe(self, name, operands, threads):
        """Bits from a place on; of signed numbers the highest one is the sign."""
        value, place, many = self.get(operands[1], name[-1]), int(operands[2]), int(operands[3])
        above = value.dtype.type(8 * value.itemsize - many)
        self.put(operands[0], value << (above - value.dtype.type(place)) >> above, threads)

    def _prmt(self, name, operands, threads):
        """Four bytes, each one of the eight of two numbers."""
        both = np.stack([self.get(operand, "b32") for operand in operands[1:3]], 1).view(np.uint8)  # (T, 8)
        chosen = [int(digit, 16) for digit in reversed(f"{constant(operands[3], TYPES['b32']):04x}")]
        if max(chosen) > 7:
            raise GpuError("unknown permutation")
        self.put(operands[0], both[:, chosen].copy().view(np.uint32)[:, 0], threads)

    def _shfl(self, name, operands, threads):
        """What another thread of the warp has."""
        _whole(threads, 32)
        if operands[3:] != ["31", "-1"]:
            raise GpuError("not the whole warp")
        value, other = self.get(operands[1], "b32"), self.get(operands[2], "b32").astype(np.int64)
        lane = np.arange(self.size) % 32
        lane = {"bfly": lane ^ other, "idx": other}[name[2]]
        self.put(operands[0], value[np.arange(self.size) // 32 * 32 + lane], threads)

    # ---- memories

    def _ld(self, name, operands, threads):
        space, kind = name[1], name[-1]
        if space == "param":
            bits = np.full(self.size, self.arguments[operands[1][1:-1]], np.uint64)
            self.put(operands[0], bits.astype(RAW[TYPES[kind].itemsize]).view(TYPES[kind]), threads)
            return
        for register, at in self._parts(space, kind, operands[0], operands[1], threads):
            value = self._of(space).load(at, TYPES[kind].itemsize, threads)
            self.put(register, value.view(TYPES[kind]), threads)

    def _st(self, name, operands, threads):
        space, kind = name[1], name[-1]
        for register, at in self._parts(space, kind, operands[1], operands[0], threads):
            size = TYPES[kind].itemsize
            self._of(space).store(at, self.get(register, f"b{8 * size}"), size, threads)

    def _of(self, space):
        return {"global": self.memory, "shared": self.shared}[space]

    def _parts(self, space, kind, registers, address, threads):
        """Each register and its addresses."""
        names, size = _names(registers), TYPES[kind].itemsize
        at = self.address(address, "u64" if space == "global" else "u32")
        if (at[threads] % (size * len(names))).any():
            raise GpuError(f"an address is no multiple of {size * len(names)}")
        return [(name, at + i * size) for i, name in enumerate(names)]

    def _matrix(self, name, address, threads):
        """Addresses of what each thread holds of four 8 x 8 matrices, whose rows the threads tell."""
        _whole(threads, 32)
        if name[3:] != ["m8n8", "x4", "shared", "b16"]:
            raise GpuError("unknown matrices")
        rows = self.address(address, "u32")
        if (rows[threads] % 16).any():
            raise GpuError("a row of a matrix is not aligned")
        return list((rows.reshape(-1, 4, 8, 1) + np.arange(0, 16, 4)).transpose(1, 0, 2, 3).reshape(4, -1))

    def _ldmatrix(self, name, operands, threads):
        for register, at in zip(_names(operands[0]), self._matrix(name, operands[1], threads), strict=True):
            self.put(register, self.shared.load(at, 4, threads), threads)

    def _stmatrix(self, name, operands, threads):
        for register, at in zip(_names(operands[1]), self._matrix(name, operands[0], threads), strict=True):
            self.shared.store(at, self.get(register, "b32"), 4, threads)

    # ---- tensor cores, and what happens later

    def _mma(self, name, operands, threads):
        _whole(threads, 32)
        kinds = ["b32" if kind == "tf32" else kind for kind in (name[7], name[8], name[9])]
        values = [
            np.stack([self.get(one, kind) for one in _names(operand)], 1)
            for operand, kind in zip(operands[1:], kinds, strict=True)
        ]
        found = tensor_cores.of_warps(name, *values)
        for i, register in enumerate(_names(operands[0])):
            self.put(register, found[:, i].copy(), threads)

    def _cp(self, name, operands, threads):
        """From global to shared memory; what is asked for beyond the bytes given is 0."""
        if name[2] in ("commit_group", "wait_group"):
            self._grouped("cp", name[2], operands, threads)
            return
        to, of = self.address(operands[0], "u32"), self.address(operands[1], "u64")
        size = int(operands[2], 0)
        given = self.get(operands[3], "u32").copy() if operands[3:] else np.full(self.size, size)

        def copied(ready):
            for start in range(0, size, 4):
                value = self.memory.load(of + start, 4, ready & (given > start))
                self.shared.store(to + start, value, 4, ready)

        if (of[threads & (given > 0)] % size).any():
            raise GpuError(f"an address is no multiple of {size}")
        self.shared.claim(to, size, threads)
        self.later["cp"].append(Later(copied, threads.copy(), self.groups["cp"].copy()))

    def _fence(self, name, operands, threads):
        if name[1:] != ["proxy", "async", "shared::cta"]:
            raise GpuError("unknown fence")
        self.shared.fence(threads)

    def _wgmma(self, name, operands, threads):
        _whole(threads, 128)
        if name[1] in ("commit_group", "wait_group"):
            self._grouped("wgmma", name[1], operands, threads)
            return
        if name[1] == "fence":
            return
        to, of, where, scale, *signs = operands
        if name[5:] != ["f32", "tf32", "tf32"] or signs != ["1", "1"] or of[0] != "{":
            raise GpuError("unknown product")
        firsts = np.flatnonzero(threads.reshape(-1, 128).all(1)) * 128
        n = int(name[4].partition("n")[2].partition("k")[0])
        at = {i: tensor_cores.described(int(self.get(where, "u64")[i]), n) for i in firsts}
        more = self.get(scale, "pred").copy()

        def multiplied(ready):
            A = np.stack([self.get(one, "b32") for one in _names(of)], 1)
            C = np.stack([self.get(one, "f32") for one in _names(to)], 1)
            C[~more] = 0
            for i in at:
                if ready[i]:
                    warps = slice(i, i + 128)
                    B = self.shared.for_tensor_cores(at[i], self.block[i], warps)
                    C[warps] = tensor_cores.of_four_warps(A[warps], B, C[warps])
            for i, register in enumerate(_names(to)):
                self.put(register, C[:, i].copy(), ready)

        for i in at:
            self.shared.for_tensor_cores(at[i], self.block[i], slice(i, i + 128))
        self.later["wgmma"].append(Later(multiplied, threads.copy(), self.groups["wgmma"].copy()))

    def _grouped(self, what, how, operands, threads):
        """Close a group, or wait until no more than so many groups are open."""
        if how == "commit_group":
            self.groups[what][threads] += 1
            return
        for i, one in enumerate(self.later[what]):
            ready = threads & one.threads & (one.group < self.groups[what] - int(operands[0]))
            if ready.any():
                one.happens(ready)
                self.later[what][i] = one._replace(threads=one.threads & ~ready)
        self.later[what] = [one for one in self.later[what] if one.threads.any()]


def _names(operand: str) -> list[str]:
    """Registers of `{a, b}`, or of `a`."""
    return [one.strip() for one in operand.strip("{}").split(",")]


def _whole(threads: np.ndarray, many: int) -> None:
    """So many threads do it together, or none of them."""
    together = threads.reshape(-1, many)
    if (together.any(1) != together.all(1)).any():
        raise GpuError(f"only some of {many} threads")

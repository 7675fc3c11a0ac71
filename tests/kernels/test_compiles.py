"""The kernels compile for Hopper (sm_90) on a machine without a GPU too, as `ptxas` comes with Triton.

They use tensor cores, no atomics and no registers spilled in a loop, keep their float64 constants, and fit
into the shared memory of smaller GPUs.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILE = r"""
import ast
import re
import struct
import subprocess
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ich_mil.kernels.triton import bag_samples, counter, float64, leave_one_out, pictures
from ich_mil.kernels.triton.rbf_gram import _gram_tile
from ich_mil.kernels.triton.rbf_moments import SLICES, _spread_tile
from ich_mil.kernels.triton.rbf_tiles import BLOCK, DEPTH, NARROW, _kernel_tile

MEMORY = {86: 99 * 1024, 90: 227 * 1024}  # bytes of shared memory of a program; 86 has the least since Ampere
DOUBLE_MMA = r"mma[.]sync[.]aligned[.]m\d+n8k\d+[.]row[.]col[.]f64"


def compiled(kernel, types, constants, capability=90, divisible=(), **options):
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={name: "constexpr" if name in constants else types[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in divisible},
    )
    code = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert code.asm["cubin"]
    assert not re.search(r"\b(atom|red)[.]", code.asm["ptx"]), "an atomic"
    assert code.metadata.shared <= MEMORY[capability], (kernel.__name__, constants)
    return code.asm["ptx"], code.asm["cubin"]


NUMBERS = "log_not mu sigma pull a new out means squares logits mean_out variance_out"
NUMBERS = dict.fromkeys(NUMBERS.split(), "*fp64")
NUMBERS |= dict.fromkeys("starts sizes offsets keys".split(), "*i64")
IMAGES = dict.fromkeys("out windows weights noise".split(), "*fp32") | {"hu": "*i16", "first": "*i32"}
IMAGES |= dict.fromkeys("xx xy x1 yx yy y1 brighter deviation edge".split(), "fp32")
SIZES = {"LANES": 32, "BAGS": 64, "COUNTERS": 128, "PART": 128, "COLUMNS": 128, "PIXELS": pictures.PIXELS}
KERNELS = [
    (pictures._draw, {"C": 1, "CHANNELS": 1, "VARIED": False, "TAPS": 11}),
    (pictures._draw, {"C": 3, "CHANNELS": 4, "VARIED": True, "TAPS": 1}),
    (pictures._draw, {"C": 3, "CHANNELS": 4, "VARIED": True, "TAPS": 11}),
    (leave_one_out._sweep, {"NEWEST": True}),
    (leave_one_out._sweep, {"NEWEST": False}),
    (counter._fill, {}),
    (bag_samples._draw, {"MAX": True}),
    (bag_samples._draw, {"MAX": False}),
    (bag_samples._join_parts, {}),
]
nodes = ast.walk(ast.parse(Path(float64.__file__).read_text()))
missing = {abs(node.value) for node in nodes if isinstance(node, ast.Constant) and type(node.value) is float}
assert len(missing) > 30
for kernel, own in KERNELS:
    constants = {name: value for name, value in {**SIZES, **own}.items() if name in kernel.arg_names}
    pointers, warps = (IMAGES, 4) if kernel is pictures._draw else (NUMBERS, 1)
    for integer in ("i32", "i64"):
        types = {name: pointers.get(name, integer) for name in kernel.arg_names}
        text, _ = compiled(kernel, types, constants, enable_fp_fusion=False, num_warps=warps)
        there = [bytes.fromhex(digits) for digits in re.findall(r"\b0d(\w{16})\b", text)]
        missing -= {abs(struct.unpack(">d", one)[0]) for one in there}
# Triton might have rounded a constant to float32; these may be rounded, or be part of another instruction
assert missing <= {0.5, 1.0, 2.0, 708.0, 1e-30}, missing


def tile(kernel, phi, x="*fp32", capability=90, **constants):
    types = {name: "*fp64" if name in TILES else "i32" for name in kernel.arg_names}
    types |= {"x": x, "rows": "*i64", **dict.fromkeys(("phi", "theta", "root"), phi)}
    # in a launch Triton recognises multiples of 16 by itself
    divisible = [n for n in kernel.arg_names if types[n].startswith("*") or n in ("width", "span", "n")]
    return compiled(
        kernel, types, constants, capability, divisible, num_warps=4, enable_fp_fusion=kernel is _kernel_tile
    )


def spilled_in_loops(cubin):
    # loads and stores of local memory between the target of a jump back and the jump
    Path("k.cubin").write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    text = subprocess.run([tool, "-sass", "k.cubin"], capture_output=True, text=True, check=True).stdout
    steps = [(int(at, 16), what) for at, what in re.findall(r"/[*]([0-9a-f]{4,})[*]/ +(.*?);", text)]
    jumps = [(int(to, 16), at) for at, what in steps for to in re.findall(r"BRA.* 0x([0-9a-f]+)", what)]
    loops = [(to, at) for to, at in jumps if to < at]
    assert loops
    local = [at for at, what in steps if re.search(r"\b(LDL|STL)\b", what)]
    return [at for at in local if any(first <= at <= last for first, last in loops)]


TILES = {"shift", "scale", "z", "half_z", "out", "sums"}
for features in ("*fp64", "*fp32", "*fp16", "*bf16"):
    for ordered in (False, True):
        text, _ = tile(_kernel_tile, "", features, ORDERED=ordered, BLOCK=BLOCK, DEPTH=DEPTH // 2)
        assert re.search(DOUBLE_MMA, text)
blocks = [(two, columns) for two in (False, True) for columns in (BLOCK, NARROW)]
sums = [(_gram_tile, {"TWO": two, "COLUMNS": columns, "DEPTH": DEPTH}) for two, columns in blocks]
sums += [(_spread_tile, {"SLICES": SLICES, "FEW": few, "DEPTH": DEPTH // 2}) for few in (0, NARROW)]
for kernel, own in sums:
    text, _ = tile(kernel, "*fp64", SINGLE=False, BLOCK=BLOCK, **own)
    assert re.search(DOUBLE_MMA, text)
    text, cubin = tile(kernel, "*fp32", SINGLE=True, BLOCK=BLOCK, **own)
    assert "f32.tf32.tf32" in text
    assert not spilled_in_loops(cubin), kernel.__name__
    for phi in ("*fp64", "*fp32"):
        tile(kernel, phi, capability=86, SINGLE=phi == "*fp32", BLOCK=BLOCK, **own)
tile(_kernel_tile, "", "*fp64", capability=86, ORDERED=True, BLOCK=BLOCK, DEPTH=DEPTH // 2)
"""


@pytest.mark.slow
def test_kernels_compile(tmp_path):
    # another process, in which kernels are not interpreted
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    words = [sys.executable, "-c", COMPILE]
    run = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]

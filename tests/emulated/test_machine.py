"""The emulated GPU: hand values, what it must see, and kernels that something was taken from."""

import os
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.emulated import machine, ptx
from tests.emulated.arithmetic import compared, computed, converted
from tests.emulated.memory import GlobalMemory, GpuError

TEXT = """
.visible .entry k(
    .param .u64 .ptr .global .align 1 k_param_0,
    .param .u32 k_param_1
)
.reqntid 64
{{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    ld.param.b64 %rd0, [k_param_0];
    ld.param.b32 %r0, [k_param_1];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd1, %r1, 8;
    add.s64 %rd2, %rd0, %rd1;
    shl.b32 %r2, %r1, 2;
    xor.b32 %r3, %r2, 128; // the same place of the other warp
    {body}
    ret;
}}
"""


def ran(body, tensor, number=0, blocks=1):
    """What 64 threads make of a tensor, each of whose 8 bytes one of them finds at %rd2."""
    kernel = ptx.read(TEXT.format(body=body))
    machine.launch(kernel, [tensor.data_ptr(), number], (blocks, 1, 1), GlobalMemory([tensor]), 1024)
    return tensor


def test_threads_that_part_meet_again():
    body = """
    and.b32 %r4, %r1, 1;
    setp.eq.b32 %p0, %r4, 0;
    @%p0 bra $EVEN;
    mad.lo.s32 %r5, %r1, 100, %r0;
    {meet}
    bra.uni $BOTH;
    $EVEN:
    neg.s32 %r5, %r1;
    $BOTH:
    shfl.sync.bfly.b32 %r6, %r5, 1, 31, -1;
    cvt.s64.s32 %rd3, %r6;
    st.global.b64 [ %rd2 + 0 ], { %rd3 };
    """
    found = ran(body.replace("{meet}", ""), torch.zeros(64, dtype=torch.int64), number=7)
    n = torch.arange(64)
    assert torch.equal(found, torch.where(n % 2 == 0, 100 * (n + 1) + 7, 1 - n))
    with pytest.raises(GpuError, match="only some of 32"):
        ran(body.replace("{meet}", "shfl.sync.bfly.b32 %r6, %r5, 1, 31, -1;"), torch.zeros(64).long())


WRITE, BARRIER = "st.shared.b32 [%r2], %r1;", "bar.sync 0;"
LOOK = "ld.shared.b32 %r4, [%r3]; cvt.u64.u32 %rd3, %r4; st.global.b64 [%rd2], %rd3;"


def test_a_barrier_makes_what_is_written_seen():
    found = ran(WRITE + BARRIER + LOOK, torch.zeros(64).long(), blocks=3)
    assert torch.equal(found, torch.arange(64) ^ 32)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (WRITE + LOOK, "another warp has written"),
        (WRITE + "st.shared.b32 [%r3], %r1;", "another warp has written"),
        (WRITE + BARRIER + LOOK + WRITE, "another warp has read"),
        ("ld.shared.b32 %r4, [%r2+900];", "beyond shared memory"),
        ("ld.shared.b64 %rd3, [%r2];", "no multiple of 8"),
        ("ld.global.b64 %rd3, [%rd2+8];", "in no tensor"),
        ("ld.global.b64 %rd3, [%rd2+-4];", "in no tensor|no multiple"),
        ("ld.global.v2.b64 {%rd3, %rd4}, [%rd2];", "no multiple of 16"),
        ("setp.eq.b32 %p0, %r1, 40; @%p0 bra $A; bar.sync 0; $A: bar.sync 1;", "different barriers"),
        ("shl.b32 %r4, %r1, 4; cp.async.cg.shared.global [%r4], [%rd2], 0x10;", "no multiple of 16"),
        ("cp.async.ca.shared.global [%r2], [%rd2], 0x8;", "no multiple of 8"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r2];", "row of a matrix"),
        ("wgmma.fence.sync.aligned;", "into shape"),  # of 64 threads, not 128
        ("mul.hi.u32 %r4, %r1, %r1;", "unknown product"),
        ("popc.b32 %r4, %r1;", "popc"),
    ],
)
def test_what_a_gpu_would_not_forgive_or_not_tell(body, match):
    with pytest.raises(GpuError, match=match):
        ran(body, torch.zeros(64).long())


def test_a_copy_is_there_once_it_was_waited_for():
    asked = """
    add.s32 %r4, %r2, %r2;
    mov.b64 %rd3, 0;
    st.shared.b64 [%r4], %rd3;
    cp.async.ca.shared.global [ %r4 + 0 ], [ %rd2 + 0 ], 0x8, %r0;
    cp.async.commit_group;
    """
    look = "ld.shared.b64 %rd3, [%r4]; st.global.b64 [%rd2], %rd3;"
    start = torch.arange(64).double() + 0.5
    assert bool(ran(asked + look, start.clone(), number=8).isnan().all())
    waited = asked + "cp.async.wait_group {};" + look
    assert bool(ran(waited.format(1), start.clone(), number=8).isnan().all())
    assert torch.equal(ran(waited.format(0), start.clone(), number=8), start)
    assert not ran(waited.format(0), start.clone(), number=0).any()  # of no bytes: zeros


def test_a_fused_product_and_sum_is_rounded_once():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 500))
    c = -a * b * (1 + rng.choice([0.0, 1e-16, 1e-9, 1.0], 500))
    found = computed(["fma", "rn", "f64"], [a, b, c])
    right = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert found.tolist() == right
    assert np.mean(found != a * b + c) > 0.3
    big = np.array([1e308, np.inf, np.nan])
    with np.errstate(all="ignore"):  # as the machine does
        found = computed(["fma", "rn", "f64"], [big, np.array([10.0, 1, 1]), big])
    np.testing.assert_array_equal(found, [np.inf, np.inf, np.nan])


def test_integers_are_divided_towards_zero_and_shifted_out():
    a, b = np.array([-7, 7, -7, 7], np.int32), np.array([2, 2, -2, -2], np.int32)
    assert computed(["div", "s32"], [a, b]).tolist() == [-3, 3, 3, -3]
    assert computed(["rem", "s32"], [a, b]).tolist() == [-1, 1, -1, 1]
    assert computed(["shr", "s32"], [a, np.full(4, 40, np.uint32)]).tolist() == [-1, 0, -1, 0]
    assert computed(["shl", "b32"], [a.view(np.uint32), np.full(4, 32, np.uint32)]).tolist() == [0] * 4


def test_of_a_nan_nothing_is_true_or_everything():
    a, b = np.array([1.0, 2.0, np.nan]), np.array([1.0, 1.0, 1.0])
    assert compared("ge", a, b).tolist() == [True, True, False]
    assert compared("ne", a, b).tolist() == [False, True, False]
    assert compared("ltu", a, b).tolist() == [False, False, True]


def test_what_an_integer_has_no_room_for_is_its_end():
    value = np.array([-1.5, 2.5, 1e12, np.nan], np.float32)
    assert converted(value, ["rzi", "ftz"], np.dtype(np.int32)).tolist() == [-1, 2, 2**31 - 1, 0]
    assert converted(value, ["rmi"], np.dtype(np.float32))[:2].tolist() == [-2.0, 2.0]
    assert converted(np.array([-3], np.int16), ["rn"], np.dtype(np.float32)).tolist() == [-3.0]


def test_reciprocals_are_no_better_than_promised():
    for dtype, bits in ((np.float32, 21), (np.float64, 20)):
        third = computed(["rcp", "approx", "ftz", "f64"], [np.array([3.0], dtype)])[0]
        assert 0 < 1 - 3 * float(third) < 2.0**-bits


HOPPER = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1" or os.environ.get("EMULATED_CAPABILITY", "90") != "90",
    reason="test_runs runs it where kernels are compiled for sm_90",
)


@HOPPER
@pytest.mark.parametrize(
    ("gone", "match"),
    [
        (("fence", "proxy"), "without a fence"),
        (("bar",), "a race|without a barrier"),
        (("cp", "async", "wait_group"), None),
        (("wgmma", "wait_group"), "nobody waits for"),
    ],
)
def test_a_kernel_from_which_something_is_taken(gone, match, monkeypatch):
    from ich_mil.kernels.rbf_gram import RBF, rbf_gram

    launch, hold = machine.launch, ptx.Instruction("", False, None, ["mov", "b32"], ["%r1", "%r1"])

    def broken(kernel, *others):
        code = [hold if tuple(one.name[: len(gone)]) == gone else one for one in kernel.code]
        launch(kernel._replace(code=code), *others)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator)
    zero, one = torch.zeros(3).double(), torch.ones(3).double()
    rbf = RBF(zero, one, x[:70].double(), torch.tensor(1.0).double(), torch.eye(70).double())
    theta = torch.rand(2, 200, generator=generator).double()
    how = {"dtype": torch.float32, "impl": "triton"}
    expected, _ = rbf_gram(x, rbf, theta, theta, dtype=torch.float32, impl="torch")
    torch.testing.assert_close(rbf_gram(x, rbf, theta, theta, **how)[0], expected, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(machine, "launch", broken)
    if match:
        with pytest.raises(GpuError, match=match):
            rbf_gram(x, rbf, theta, theta, **how)
    else:
        assert bool(rbf_gram(x, rbf, theta, theta, **how)[0].isnan().any())

"""Fixtures of the tests of kernels."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch


@pytest.fixture
def nan_memory():
    """What `torch.empty` gives is filled with NaN."""
    torch.use_deterministic_algorithms(True)
    assert bool(torch.empty(3).isnan().all())
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _fences(monkeypatch):
    """Interpreted, a kernel reads and writes nowhere but in the memory of the tensors it was given."""
    if torch.cuda.is_available() or not find_spec("triton"):
        return
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    launch, fences = GridExecutor.__call__, []

    def fenced(executor, *args, **options):
        given = [one.untyped_storage() for one in (*args, *options.values()) if torch.is_tensor(one)]
        fences[:] = {(memory.data_ptr(), memory.data_ptr() + memory.nbytes()) for memory in given}
        return launch(executor, *args, **options)

    def watched(access, mask):
        def inside(builder, pointers, *others):
            at = pointers.data[others[mask].data]
            last = at + (pointers.get_element_ty().primitive_bitwidth - 1) // 8
            within = [(at >= start) & (last < end) for start, end in fences]
            assert np.all(np.any(within, axis=0)), "a kernel reaches beyond the memory it was given"
            return access(builder, pointers, *others)

        return inside

    monkeypatch.setattr(GridExecutor, "__call__", fenced)
    for name, mask in (("create_masked_load", 0), ("create_masked_store", 1)):
        monkeypatch.setattr(InterpreterBuilder, name, watched(getattr(InterpreterBuilder, name), mask))

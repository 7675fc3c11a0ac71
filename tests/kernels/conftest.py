"""Fixtures of the tests of kernels."""

import os
from importlib.util import find_spec

import numpy as np
import pytest
import torch


@pytest.fixture
def nan_memory(monkeypatch):
    """Fill uninitialised tensors with NaN, so that an element that is never written shows."""

    def filled(make):
        def full(*args, **options):
            new = make(*args, **options)
            return new.fill_(torch.nan) if new.is_floating_point() else new

        return full

    for place, name in ((torch.Tensor, "new_empty"), (torch, "empty"), (torch, "empty_like")):
        monkeypatch.setattr(place, name, filled(getattr(place, name)))


@pytest.fixture(scope="session")
def interpreted():
    """Whether Triton interprets the kernels, program by program; otherwise they are compiled."""
    return bool(find_spec("triton")) and os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(autouse=True)
def _language_replaced_once(interpreted, monkeypatch):
    """Patch Triton's language once per module and launch, not at every call of a `@triton.jit` function.

    The patches are most of the time of an interpreted kernel.
    """
    if not interpreted:
        return
    from triton.runtime import interpreter

    launch, replace, done = interpreter.GridExecutor.__call__, interpreter._patch_lang, set()

    def launched(executor, *args, **options):
        done.clear()
        launch(executor, *args, **options)

    def replaced(function):
        if function.__module__ in done:
            return None
        done.add(function.__module__)
        return replace(function)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched)
    monkeypatch.setattr(interpreter, "_patch_lang", replaced)


@pytest.fixture(autouse=True)
def _fences(interpreted, monkeypatch):
    """Fail if an interpreted kernel leaves the memory of its tensors, or two programs write to one place."""
    if not interpreted:
        return
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    launch, fences, written = GridExecutor.__call__, [], {}

    def fenced(executor, *args, **options):
        given = [one.untyped_storage() for one in (*args, *options.values()) if torch.is_tensor(one)]
        fences[:] = {(memory.data_ptr(), memory.data_ptr() + memory.nbytes()) for memory in given}
        written.clear()
        launch(executor, *args, **options)
        places = [np.unique(np.concatenate(parts)) for parts in written.values()]
        assert not places or np.unique(np.concatenate(places), return_counts=True)[1].max(initial=1) == 1

    def watched(access, mask):
        def inside(builder, pointers, *others):
            at = pointers.data[others[mask].data]
            last = at + (pointers.get_element_ty().primitive_bitwidth - 1) // 8
            within = [(at >= start) & (last < end) for start, end in fences]
            assert np.all(np.any(within, axis=0)), "a kernel reaches beyond the memory it was given"
            if access is store:
                written.setdefault(tuple(builder.grid_idx), []).append(at.ravel())
            return access(builder, pointers, *others)

        return inside

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    monkeypatch.setattr(GridExecutor, "__call__", fenced)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", watched(load, 0))
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", watched(store, 1))

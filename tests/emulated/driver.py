"""A GPU for Triton that is none: kernels are compiled for it, and run by `machine` where their tensors lie.

As a plugin of pytest it makes all kernels run so, those of the CPU's tensors too:

    python -m pytest -p tests.emulated.driver tests/kernels

`EMULATED_CAPABILITY` says which GPU it is: 80, 86 or 90 (the default).
"""

import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from tests.emulated import machine, ptx
from tests.emulated.memory import GlobalMemory

CAPABILITY = int(os.environ.get("EMULATED_CAPABILITY", "90"))
SHARED = {80: 163, 86: 99, 90: 227}[CAPABILITY] * 1024
"""Bytes a block may have."""

LAUNCHED: Counter[str] = Counter()
"""How often each kernel was."""


class _Loaded:
    """A kernel on the GPU."""

    name: str
    kernel: ptx.Kernel


def _read(module, loaded, name, files, digest):
    """Triton calls this once a kernel is loaded, with the files it was compiled to."""
    (text,) = (Path(path) for file, path in files.items() if file.endswith(".ptx"))
    loaded.name, loaded.kernel = name, ptx.read(text.read_text())


class _Launcher:
    def __init__(self, source, metadata):
        self.kinds = [source.signature[name] for name in source.fn.arg_names]
        self.shared = metadata.shared

    def __call__(self, x, y, z, stream, loaded, packed, about, enter, leave, *values):
        LAUNCHED[loaded.name] += 1
        given = [value for value, kind in zip(values, self.kinds, strict=True) if kind != "constexpr"]
        memory = GlobalMemory(value for value in given if torch.is_tensor(value))
        arguments = [value.data_ptr() if torch.is_tensor(value) else value for value in given]
        arguments += [0] * (len(loaded.kernel.parameters) - len(arguments))  # Triton's own, not used
        machine.launch(loaded.kernel, arguments, (x, y, z), memory, self.shared)


class _Utils:
    def load_binary(self, name, kernel, shared, device):
        return name, _Loaded(), 0, 0, 1024

    def unload_module(self, module):
        pass

    def get_device_properties(self, device):
        return {"max_shared_mem": SHARED}


class _Driver:
    utils = _Utils()
    launcher_cls = _Launcher

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", CAPABILITY, 32)


@pytest.hookimpl(trylast=True)
def pytest_configure():
    os.environ["TRITON_INTERPRET"] = "0"  # whatever the tests' own configuration has said
    knobs.runtime.kernel_load_end_hook.add(_read)
    driver.set_active(_Driver())


def pytest_terminal_summary(terminalreporter):
    launched = ", ".join(f"{name} {count}" for name, count in sorted(LAUNCHED.items()))
    terminalreporter.write_line(f"emulated sm_{CAPABILITY}: {launched or 'no kernel'}")

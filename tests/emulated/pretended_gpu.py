"""A pretended CUDA device, as a plugin of pytest: tests that need a GPU run on the CPU.

    python -m pytest -p tests.emulated.pretended_gpu -p tests.emulated.driver -m gpu --ignore tests/kernels

Its tensors are those of `elsewhere`, with the device "cuda". Sums, products and functions differ by an ulp
from those of the CPU, so that no test passes because both devices round alike. The kernels behind our ops are
emulated; kernels launched by a test itself (`tests/kernels`) are not. Streams have no effect, autocast casts
the input of convolutions and linear layers, and there is no `torch.compile`.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Self
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.emulated.elsewhere import AWAY, Away, Functions, Mode

CUDA = torch.device("cuda", 0)

aten = torch.ops.aten
_ROUNDED = {
    aten.addmm.default,
    aten.baddbmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.div.Tensor,
    aten.exp.default,
    aten.index_add.default,
    aten.linalg_cholesky_ex.default,
    aten.linalg_solve_triangular.default,
    aten._linalg_eigh.default,
    aten.log.default,
    aten.logsumexp.default,
    aten.mean.default,
    aten.mean.dim,
    aten.mm.default,
    aten.mv.default,
    aten.native_batch_norm.default,
    aten.rsqrt.default,
    aten.sigmoid.default,
    aten._softmax.default,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.tanh.default,
}
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


class _Cuda(Away):
    """A tensor that says it is on a GPU; to autograd it is on `AWAY`."""

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)

    def record_stream(self, stream: Any) -> None:
        pass

    def __format__(self, spec: str) -> str:
        return format(self.here, spec)

    def __reduce_ex__(self, protocol: int) -> Any:
        return self.here.detach().__reduce_ex__(protocol)  # a file says nothing of a device that is none

    @classmethod
    def computed(cls, func: Any, out: Tensor) -> Tensor:
        """An ulp up or down, as the value's own bits say: the same sum is always off by the same."""
        if func not in _ROUNDED or out.dtype not in _BITS:
            return out
        bits = out.view(_BITS[out.dtype])
        mixed = bits ^ (bits >> 7) ^ (bits >> 15)
        up = torch.where(mixed % 2 == 0, torch.inf, -torch.inf).to(out.dtype)
        exact = out == out.round()  # whole numbers are, on a GPU too
        return torch.where(exact, out, torch.nextafter(out, up))


def _there(device: Any) -> Any:
    """`AWAY` for a GPU: what C++ is told."""
    return AWAY if isinstance(device, torch.device) and device.type == "cuda" else device


class _Functions(Functions):
    """What Python calls, before C++ asks for a driver."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if generator := kwargs.get("generator"):
            filled = [value.device for value in args if isinstance(value, Tensor)]
            drawn = torch.device(kwargs.get("device") or (filled[0] if filled else "cpu"))
            if drawn.type != generator.device.type:
                raise RuntimeError(f"{func} on {drawn} by a generator of {generator.device}")
        if func in (torch.device, torch._C._nn._parse_to):  # only say where something is to go
            return func(*args, **kwargs)
        if func in (torch.conv2d, torch.nn.functional.linear) and _cast[-1]:
            args = [value.to(_cast[-1]) if isinstance(value, Tensor) else value for value in args]
        if func is Tensor.to:
            args = [torch.device(value) if isinstance(value, str) else value for value in args]
        args, kwargs = map(_there, args), {name: _there(value) for name, value in kwargs.items()}
        return super().__torch_function__(func, types, args, kwargs)


class _Generator(torch.Generator):
    """Of a GPU, where it is asked for."""

    def __new__(cls, device: torch.device | str = "cpu") -> Self:
        return super().__new__(cls)

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)

    def manual_seed(self, seed: int) -> Self:
        super().manual_seed(seed)
        return self

    device = property(lambda self: self._device)


_cast: list[torch.dtype | None] = [None]
"""What autocast computes products in, innermost last."""

_autocast_elsewhere = torch.autocast


@contextmanager
def _autocast(
    kind: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> Iterator[None]:
    if kind != "cuda":
        with _autocast_elsewhere(kind, dtype, enabled, cache_enabled):
            yield
        return
    _cast.append(dtype if enabled else None)
    try:
        yield
    finally:
        _cast.pop()


class _Stream:
    """Orders nothing: all is done when it is asked for."""

    def __init__(self, device: Any = None) -> None:
        pass

    def record_event(self) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass


_empty = torch.empty
_REPLACED = {
    "Generator": _Generator,
    "autocast": _autocast,
    "cuda.Stream": _Stream,
    "cuda._sleep": lambda cycles: None,
    "cuda.current_device": lambda: 0,
    "cuda.current_stream": _Stream,
    "cuda.device_count": lambda: 1,
    "cuda.empty_cache": lambda: None,
    "cuda.get_device_capability": lambda device=None: (9, 0),
    "cuda.get_device_name": lambda device=None: "a pretended GPU",
    "cuda.is_available": lambda: True,
    "cuda.set_device": lambda device: None,
    "cuda.stream": nullcontext,
    "empty": lambda *shape, pin_memory=False, **given: _empty(*shape, **given),  # in threads, too
    "optim.Optimizer._accelerator_graph_capture_health_check": lambda self: None,
}


@contextmanager
def pretended() -> Iterator[None]:
    """Within this block there is a GPU."""
    with ExitStack() as stack:
        for name, value in _REPLACED.items():
            stack.enter_context(mock.patch(f"torch.{name}", value))
        stack.enter_context(Mode(_Cuda, Counter()))
        stack.enter_context(_Functions())
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Tests ask for a GPU when they are collected, too."""
    torch.cuda.is_available = lambda: True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    with pretended():
        return (yield)

"""A device that is not the CPU, for machines without one: tensors that say they are elsewhere.

They compute on the CPU, so their values are right. Tensors of two devices in one call raise, as on a GPU, and
everything for which the host would wait for a GPU is counted. It is the device "meta": autograd works there.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

AWAY = torch.device("meta")

aten = torch.ops.aten
_INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
_WAITING = {  # the size of the result is in the data, or the result itself is for the host
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.repeat_interleave.Tensor,
}


class Away(torch.Tensor):
    """A tensor that says it is on `AWAY`; `here` holds its values."""

    here: Tensor
    waits: Counter[str]
    is_meta = False  # it has memory
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor, waits: Counter[str]) -> Self:
        away = torch.Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=AWAY,
        )
        away.here, away.waits = here, waits
        return away

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        away = next(part for part in tree_flatten((args, kwargs))[0] if isinstance(part, cls))
        return _run(func, args, kwargs or {}, cls, away.waits)

    @classmethod
    def computed(cls, func: Any, out: Tensor) -> Tensor:
        """What a device makes of a result of the CPU's."""
        return out

    def __getitem__(self, index: Any) -> Tensor:
        parts = index if isinstance(index, tuple) else (index,)
        return super().__getitem__(
            tuple(torch.tensor(part) if isinstance(part, list) else part for part in parts)
        )

    def tolist(self) -> Any:
        self.waits["tolist"] += 1
        return self.here.tolist()


class Mode(TorchDispatchMode):
    """Makes tensors of a kind where such are asked for."""

    def __init__(self, kind: type[Away], waits: Counter[str]) -> None:
        super().__init__()
        self.kind, self.waits = kind, waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, self.kind, self.waits)


class Functions(TorchFunctionMode):
    """What Python calls: the values of a new tensor are read before C++ is called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and (device := kwargs.pop("device", None)) is not None:
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


def _here(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.here if isinstance(value, Away) else value


def _run(func: Any, args: Any, kwargs: dict[str, Any], kind: type[Away], waits: Counter[str]) -> Any:
    """The function, on the CPU; tensors in and out are where they say they are."""
    parts = tree_flatten((args, kwargs))[0]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    away = any(isinstance(one, Away) for one in tensors)
    here = [one for one in tensors if not isinstance(one, Away) and one.ndim > 0]  # a number may be anywhere
    devices = [part for part in parts if isinstance(part, torch.device)]
    to_away = AWAY in devices if devices else away
    if func is aten.copy_.default:
        to_away = isinstance(args[0], Away)
    if func in (aten._to_copy.default, aten.copy_.default):
        source = args[1] if func is aten.copy_.default else args[0]
        blocking = not (kwargs.get("non_blocking") or (func is aten.copy_.default and args[2:] == (True,)))
        if isinstance(source, Away) != to_away and (blocking or not to_away):
            waits["copy to the device" if to_away else "copy to the host"] += 1
    elif away and here:
        if func not in _INDEXING or not isinstance(args[0], Away):  # an index may be on the CPU
            raise RuntimeError(f"{func} of tensors on two devices: {[tuple(one.shape) for one in tensors]}")
        waits["copy to the device"] += len(here)
    elif away and func in _WAITING:
        waits[str(func)] += 1
    out = func(*tree_map(_here, args), **tree_map(_here, kwargs))
    if func is aten.copy_.default:
        return args[0]
    if to_away:
        out = tree_map(
            lambda one: kind(kind.computed(func, one), waits) if isinstance(one, Tensor) else one, out
        )
    return return_and_correct_aliasing(func, args, kwargs, out) if away and to_away else out


@contextmanager
def elsewhere() -> Iterator[Counter[str]]:
    """Within this block `AWAY` is a device; yields how often the host waited for it, and for what."""
    waits: Counter[str] = Counter()
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter changes its class
    try:
        with Functions(), Mode(Away, waits):
            yield waits
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrite)

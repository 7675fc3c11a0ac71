"""Which of an op's two versions is run."""

from typing import Literal, get_args

import torch

Impl = Literal["auto", "torch", "triton"]
"""`torch` is the definition, `triton` the fused one, `auto` the fused one on a GPU."""


def by_triton(impl: Impl, device: torch.device) -> bool:
    """Whether the fused version is meant, for tensors on `device`. `ValueError` for another `impl`."""
    if impl not in get_args(Impl):
        raise ValueError(f"impl must be one of {', '.join(get_args(Impl))}, got {impl!r}")
    return impl == "triton" or (impl == "auto" and device.type == "cuda")

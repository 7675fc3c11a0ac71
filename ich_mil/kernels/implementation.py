"""Choice between the PyTorch and the Triton implementation of an operation."""

from typing import Literal, get_args

import torch

Impl = Literal["auto", "torch", "triton"]
"""`torch` is the reference implementation, `triton` the fused kernel, `auto` is `triton` on a CUDA device and
`torch` elsewhere."""


def by_triton(impl: Impl, device: torch.device) -> bool:
    """Whether to use Triton for tensors on `device`; `ValueError` for an unknown `impl`."""
    if impl not in get_args(Impl):
        raise ValueError(f"impl must be one of {', '.join(get_args(Impl))}, got {impl!r}")
    return impl == "triton" or (impl == "auto" and device.type == "cuda")

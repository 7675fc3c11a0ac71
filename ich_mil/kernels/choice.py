"""Which of an op's two versions is run."""

from typing import Literal

import torch

Impl = Literal["auto", "torch", "triton"]
"""`torch` is the definition, `triton` the fused one, `auto` the fused one on a GPU."""


def by_triton(impl: Impl, device: torch.device) -> bool:
    """Whether the fused version is meant, for tensors on `device`."""
    return impl == "triton" or (impl == "auto" and device.type == "cuda")

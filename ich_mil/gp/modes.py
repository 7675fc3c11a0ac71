"""Modes of torch that fits and predictions do without."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def usual_tensors() -> Iterator[None]:
    """Disable inference mode and autocast, and make the CPU the default device.

    Lightning validates in inference mode, whose tensors autograd never accepts, and in autocast, which
    computes float32 products in bfloat16.
    """
    on_cpu = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    whole = [torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda")]
    with torch.inference_mode(False), on_cpu, whole[0], whole[1]:
        yield

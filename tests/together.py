"""Fresh processes that start at once, and a process group of them, as `torchrun` would start it."""

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

IMPORTED = ["tests.together", "ich_mil.network.training.fit_cnn", "ich_mil.gp.fit_calibration"]
IMPORTED += ["ich_mil.study.pixels.read", "gdcm", "jpeg_ls"]


def forkserver() -> ForkServerContext:
    """Context whose processes are forked off one server per run, which has imported `IMPORTED`."""
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def _join(
    rank: int, function: Callable[..., Any], size: int, folder: Path, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {name: str(value) for name, value in places.items()} | {"TORCHELASTIC_RUN_ID": "test"}
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    try:
        torch.save(function(*arguments), folder / f"{rank}.pt")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def together(function: Callable[..., Any], *arguments: Any, folder: Path, size: int = 2) -> list[Any]:
    """What `function(*arguments)` returns in each of `size` processes, in the order of their ranks.

    Args:
        function: at the top level of a module.
        arguments: that can be pickled.
        folder: empty, for the meeting point and the results.
        size: how many.
    """
    server = forkserver().get_start_method()
    mp.start_processes(_join, (function, size, folder, arguments), nprocs=size, start_method=server)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]

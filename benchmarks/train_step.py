"""Seconds of a CNN training step on the CPU, with glibc's defaults and with `keep_freed_memory`.

    python -m benchmarks.train_step [--image-size 96] [--slices 148] [--steps 12] [--rounds 3]

The two settings run in turn, each round in a new process, because the allocator cannot be reset. Prints
median and range over all steps except the first two of each round.
"""

import argparse
import statistics
import subprocess
import sys
import time

import torch

from ich_mil.encoders.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.encoders.slice_encoders import EncoderSettings
from ich_mil.training.fit_cnn import keep_freed_memory

WARM_UP = 2


def measure(image_size: int, slices: int, steps: int, keep: bool) -> list[float]:
    """Seconds of each step of forward, backward and Adam on one packed batch of four scans."""
    if keep:
        keep_freed_memory()
    torch.manual_seed(0)
    model = AttentionCnn(EncoderSettings(size=image_size), CnnSettings())
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    pictures = torch.rand(slices, 3, image_size, image_size)
    offsets = torch.linspace(0, slices, 5).long()
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        loss = model(pictures, offsets).scan_logit.square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        seconds.append(time.perf_counter() - started)
    return seconds[WARM_UP:]


def main() -> None:
    """Run both settings in turn and print one line per setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--slices", type=int, default=148)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=("default", "keep"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(*measure(chosen.image_size, chosen.slices, chosen.steps, chosen.one == "keep"))
        return
    seconds: dict[str, list[float]] = {"default": [], "keep": []}
    for _ in range(chosen.rounds):
        for name, values in seconds.items():
            command = [sys.executable, "-m", "benchmarks.train_step", "--one", name]
            for option in ("image_size", "slices", "steps"):
                command += [f"--{option.replace('_', '-')}", str(getattr(chosen, option))]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            values.extend(float(word) for word in text.split())
    for name, values in seconds.items():
        print(
            f"{name:8s} median {statistics.median(values):.3f} s a step, "
            f"range {min(values):.3f} to {max(values):.3f}, n={len(values)}"
        )


if __name__ == "__main__":
    main()

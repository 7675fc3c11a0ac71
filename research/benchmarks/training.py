"""Time of a CNN training step: parts of the step, and overhead of the input pipeline.

    python -m research.benchmarks.training --prepared FOLDER [--encoder paper] [--image-size 512] [--bags 4]
                                  [--steps 12] [--workers 0] [--write]

FOLDER is a prepared set with labels (`ich-mil prepare`). The steps are those of `train.py`: read and pack HU,
copy to the device, window and augment there, then forward, backward, Adam; bfloat16 on a GPU. Measured:

* overhead of the input pipeline: two loops alternate over the same batches, the whole step, and the model's
  own step on images already in memory; the difference is the overhead;
* share of each part, by a third loop that synchronises after each part;
* extraction of features by the frozen CNN over the same scans.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from ich_mil.network.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.network.bags import Batch, Pictures, ScanDataset, StepSampler
from ich_mil.network.frozen import extract_features
from ich_mil.network.loader import loader
from ich_mil.network.settings import PAPER, EncoderSettings
from ich_mil.network.training.augment import VariedScans
from ich_mil.network.training.fit_cnn import keep_freed_memory
from ich_mil.network.training.module import MilModule, class_weights
from ich_mil.network.training.settings import TrainingSettings
from ich_mil.sets.store import PreparedSet, open_prepared
from ich_mil.study.window_presets import PRESETS
from research.benchmarks.record import command_line, record, table
from research.benchmarks.timing import DEVICE, machine_name, once, summary

WINDOWS = PRESETS["papers"]
ROUNDS = 9
PARTS = ("read", "move", "pictures", "forward", "backward", "Adam")


class Steps:
    """A CNN, its optimiser, and the batches of a number of steps."""

    def __init__(
        self, prepared: PreparedSet, encoder: EncoderSettings, bags: int, steps: int, workers: int
    ) -> None:
        torch.manual_seed(0)
        scans = ScanDataset(prepared, list(prepared.scans.index[prepared.scans.label >= 0]))
        self.scans = VariedScans(scans, seed=0, augmented=True)
        sampler = StepSampler(scans.sizes, bags=bags, seed=0)
        self.keys: list[list[tuple[int, int]]] = []
        while len(self.keys) < steps:
            self.keys += list(sampler)[: steps - len(self.keys)]
            sampler.set_epoch(sampler.epoch + 1)
        self.workers = workers
        # endless, so that a round does not start by waiting for its first step, as an epoch does
        batches = loader(self.scans, workers=workers, steps=cycle(self.keys), device=DEVICE)
        self.coming, self.ahead = iter(batches), workers * (batches.prefetch_factor or 0)
        model = AttentionCnn(encoder, CnnSettings()).to(DEVICE)
        slices = int(scans.sizes.sum()) if DEVICE.type == "cpu" else 0
        self.pictures = Pictures(WINDOWS, encoder.size, slices=slices)
        weights = class_weights([0, 1])
        settings = TrainingSettings(augment=True)
        module = MilModule(model, settings, weights, pictures=self.pictures, seed=0)
        self.module = module.to(DEVICE).train()
        self.optimiser = torch.optim.Adam(model.parameters(), 1e-4)
        self.seen: list[tuple[Tensor, Batch]] = []

    def batches(self) -> Iterator[Batch]:
        """Read the batches of all steps."""
        yield from islice(self.coming, len(self.keys))

    def settle(self) -> None:
        """Consume the batches read ahead by workers, in whole rounds, so that the next batch is the first."""
        for _ in range(-(-self.ahead // len(self.keys))):
            for _ in self.batches():
                pass

    def learn(self, pictures: Tensor, batch: Batch, done: Callable[[str], None] = lambda part: None) -> None:
        """Run the model's own step: forward, backward, Adam; `done` is called after each part."""
        with torch.autocast("cuda", torch.bfloat16) if DEVICE.type == "cuda" else nullcontext():
            loss = self.module.loss(self.module.model(pictures, batch.offsets), batch.labels)
        done("forward")
        self.optimiser.zero_grad()
        loss.backward()
        done("backward")
        self.optimiser.step()
        done("Adam")

    def whole(self) -> None:
        """Run all steps with their input pipeline."""
        for batch in self.batches():
            here = batch.to(DEVICE)
            self.learn(self.pictures(here), here)

    def alone(self) -> None:
        """Run all steps on images kept in memory."""
        if not self.seen:
            self.seen = [
                (self.pictures(here), here) for here in (batch.to(DEVICE) for batch in self.batches())
            ]
        for pictures, batch in self.seen:
            self.learn(pictures, batch)

    def parts(self) -> dict[str, float]:
        """Seconds of each part, summed over all steps, with synchronisation after each part."""
        taken = dict.fromkeys(PARTS, 0.0)
        last = perf_counter()

        def done(part: str) -> None:
            nonlocal last
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            now = perf_counter()
            taken[part] += now - last
            last = now

        for batch in self.batches():
            done("read")
            here = batch.to(DEVICE)
            done("move")
            pictures = self.pictures(here)
            done("pictures")
            self.learn(pictures, here, done)
        return taken


def step_report(steps: Steps) -> str:
    """Overhead of the input pipeline per step, and the share of each part."""
    count = len(steps.keys)
    slices = sum(int(steps.scans.scans.sizes[place]) for key in steps.keys for _, place in key)
    steps.alone()  # warm-up, which also keeps the images in memory
    steps.whole()
    values: dict[str, list[tuple[float, int | None]]] = {"whole": [], "alone": []}
    for _ in range(ROUNDS):
        steps.settle()
        values["whole"].append(once(steps.whole))
        values["alone"].append(once(steps.alone))
    found = {name: summary(one) for name, one in values.items()}
    whole = found["whole"].median / count
    ms = 1e3 / count
    rows = [
        [name, f"{one.median * ms:.0f} ms ({one.low * ms:.0f}-{one.high * ms:.0f})"]
        for name, one in found.items()
    ]
    taken = steps.parts()
    total = sum(taken.values())
    shares = [[part, f"{took * ms:.1f} ms", f"{took / total:.1%}"] for part, took in taken.items()]
    head = f"{count} steps of {slices / count:.0f} slices, {slices / (whole * count):.0f} slices/s."
    # paired: both loops of a pair ran in succession, under the same load of the machine
    added = [long[0] / short[0] - 1 for long, short in zip(values["whole"], values["alone"], strict=True)]
    verdict = (
        f"The input pipeline adds {median(added):+.1%} to the model's own step (bar on a GPU: 5 %): the "
        f"median of {ROUNDS} pairs, {min(added):+.1%} to {max(added):+.1%}."
    )
    return "\n\n".join(
        [head, table(["a step", "median (range)"], rows), verdict, table(["part", "a step", "share"], shares)]
    )


def extraction_report(prepared: PreparedSet, steps: Steps) -> str:
    """Time of the frozen CNN over all scans."""
    scans = list(prepared.scans.index)
    model = steps.module.model.eval()
    started = perf_counter()
    features = extract_features(model, prepared, scans, workers=steps.workers)
    taken = perf_counter() - started
    rate = len(features.x) / taken
    return f"Extraction: {len(features.x)} slices in {taken:.1f} s, {rate:.0f} slices/s, in float32."


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--encoder", default=PAPER)
    parser.add_argument("--image-size", type=int, default=512)
    parser.add_argument("--bags", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--workers", type=int, default=0)
    chosen = parser.parse_args()
    keep_freed_memory()
    prepared = open_prepared(chosen.prepared)
    encoder = EncoderSettings(name=chosen.encoder, size=chosen.image_size)
    steps = Steps(prepared, encoder, chosen.bags, chosen.steps, chosen.workers)
    text = [
        f"{machine_name()}, encoder {chosen.encoder}, {chosen.image_size} px, {chosen.bags} scans a step, "
        f"{chosen.workers} workers."
    ]
    for part in (partial(step_report, steps), partial(extraction_report, prepared, steps)):
        text.append(part())
        print(text[-1], file=sys.stderr, flush=True)  # intermediate results survive a later failure
    if DEVICE.type == "cpu":
        text.append("On a GPU: not measured.")
    record("A training step of the CNN", "\n\n".join(text))


if __name__ == "__main__":
    main()

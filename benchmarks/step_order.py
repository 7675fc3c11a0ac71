"""How scans are dealt to steps: as equal sums of slices or at random, four or two a step, and what it learns.

    make demo    # writes the scans
    python -m benchmarks.step_order [--seeds 0 1 2 ...] [--out FOLDER] [--write]

`StepSampler` deals scans to steps so that all have about equally many slices. It is compared with a plain
shuffle, and with fewer scans a step, on the demo's scans, in the demo's settings, for nine epochs without
early stop. All runs train on the same scans; the seed draws weights and order. Two runs at a time, a thread
each. Each course is kept in FOLDER/<order>-<bags>-<seed>.csv and not made again.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from scipy.stats import wilcoxon

from benchmarks.record import record, table
from ich_mil.config import RunConfig
from ich_mil.data.bags import StepSampler
from ich_mil.data.splits import draw_splits
from ich_mil.data.store import open_prepared
from ich_mil.files import whole_file
from ich_mil.settings import read_settings
from ich_mil.training import fit
from ich_mil.windows import parse_windows

CONFIG = "configs/demo.yaml"
SPLIT_SEED = 0
EPOCHS = 9
LEARNED = 0.9
"""Validation AUC from which a network is said to have learned."""


class ShuffledSteps(StepSampler):
    """Steps of an epoch as a plain shuffle deals them."""

    def plan(self) -> list[list[int]]:
        """The scans of each step of this epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.sizes), generator=generator)
        return [step.tolist() for step in order.split(-(-len(order) // self.steps))]


ORDERS: dict[str, type[StepSampler]] = {"balanced": StepSampler, "random": ShuffledSteps}
ROWS = (("balanced", 4), ("random", 4), ("balanced", 2))
"""Order, and scans a step."""


def course(config: RunConfig, order: str, bags: int, seed: int) -> pd.DataFrame:
    """What `log.csv` says of one run: columns epoch, train_loss, val_loss, val_auc."""
    torch.set_num_threads(1)
    prepared = open_prepared(config.prepared / "train")
    split = config.split
    splits = draw_splits(prepared.scans, validation=split.validation, test=split.test, seed=SPLIT_SEED)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(fit, "StepSampler", ORDERS[order]),
    ):
        fit.fit_cnn(
            prepared,
            splits,
            Path(folder),
            windows=parse_windows(config.windows),
            cnn=config.cnn,
            training=replace(config.training, bags=bags, max_epochs=EPOCHS, fixed_epochs=True),
            seed=seed,
        )
        return pd.read_csv(Path(folder) / "log.csv")


def kept(folder: Path, config: RunConfig, order: str, bags: int, seed: int) -> pd.DataFrame:
    """`course`, or what an earlier call has kept of it."""
    file = folder / f"{order}-{bags}-{seed}.csv"
    if not file.is_file():
        with whole_file(file) as temporary:
            course(config, order, bags, seed).to_csv(temporary, index=False)
    return pd.read_csv(file)


def summary(courses: dict[tuple[str, int], list[pd.DataFrame]]) -> str:
    """Quartiles of the AUC by epoch, when runs had learned, and each row less the first."""
    auc = {row: np.array([one.val_auc for one in runs]) for row, runs in courses.items()}
    quartiles, reached, less = [], [], []
    for (order, bags), values in auc.items():
        name = f"{order}, {bags} scans"
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
        each = zip(low, middle, high, strict=True)
        quartiles.append([name, *(f"{m:.2f} ({a:.2f}-{b:.2f})" for a, m, b in each)])
        reached.append([name, *((values >= LEARNED).cumsum(1) > 0).sum(0)])
        difference = (values - auc[ROWS[0]]).mean(1)
        if (order, bags) != ROWS[0]:
            range_of = f"{np.median(difference):+.3f} ({difference.min():+.3f} to {difference.max():+.3f})"
            less.append([name, range_of, f"{wilcoxon(difference).pvalue:.3f}"])
    epochs = range(EPOCHS)
    first = f"{ROWS[0][0]}, {ROWS[0][1]} scans"
    seeds = len(auc[ROWS[0]])
    return "\n\n".join(
        [
            f"Validation AUC by epoch, median (quartiles) over {seeds} seeds:",
            table(["steps", *map(str, epochs)], quartiles),
            f"Runs that had come to {LEARNED}:",
            table(["steps", *(f"by {epoch}" for epoch in epochs)], reached),
            f'Mean AUC over the epochs, less that of "{first}" with the same seed; signed-rank test:',
            table(["steps", "median (range)", "p"], less),
        ]
    )


def main() -> None:
    """Run all, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--out", type=Path, default=Path("checkpoints/step_order"))
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    config = read_settings(RunConfig, ["--config", CONFIG])
    runs = [(row, seed) for seed in chosen.seeds for row in ROWS]
    chosen.out.mkdir(parents=True, exist_ok=True)
    made = Parallel(n_jobs=2)(delayed(kept)(chosen.out, config, *row, seed) for row, seed in runs)
    courses: dict[tuple[str, int], list[pd.DataFrame]] = {row: [] for row in ROWS}
    for (row, _), one in zip(runs, made, strict=True):
        courses[row].append(one)
    record(
        "How scans are dealt to steps",
        f"python -m benchmarks.step_order --seeds {' '.join(map(str, chosen.seeds))}",
        summary(courses),
        write=chosen.write,
    )


if __name__ == "__main__":
    main()

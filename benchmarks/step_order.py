"""Does a network learn as well from steps of about equal length as from steps drawn at random?

    make demo    # writes the scans
    python -m benchmarks.step_order [--seeds 0 1 2 ...] [--out FOLDER] [--write]

`StepSampler` deals scans to steps so that all have about equally many slices. It is compared with a plain
shuffle on the demo's scans, in the demo's settings, for nine epochs without early stop. All runs train on the
same scans; the seed draws weights and order. Two runs at a time, a thread each. Each course is kept in
FOLDER/<order>-<seed>.csv and not made again.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from scipy.stats import wilcoxon

from benchmarks.record import command_line, record, table
from ich_mil.config import RunConfig
from ich_mil.data.bags import StepSampler
from ich_mil.data.splits import draw_splits
from ich_mil.data.store import open_prepared
from ich_mil.files import write_text
from ich_mil.settings import read_settings
from ich_mil.training import fit

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
        return [step.tolist() for step in order.tensor_split(self.steps)]


ORDERS: dict[str, type[StepSampler]] = {"balanced": StepSampler, "random": ShuffledSteps}


def course(config: RunConfig, order: str, seed: int) -> pd.DataFrame:
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
            encoder=config.encoder,
            cnn=config.cnn,
            training=replace(config.training, max_epochs=EPOCHS, fixed_epochs=True),
            seed=seed,
        )
        return pd.read_csv(Path(folder) / "log.csv")


def kept(folder: Path, config: RunConfig, order: str, seed: int) -> pd.DataFrame:
    """`course`, or what an earlier call has kept of it."""
    file = folder / f"{order}-{seed}.csv"
    if not file.is_file():
        write_text(file, course(config, order, seed).to_csv(index=False))
    return pd.read_csv(file)


def summary(courses: dict[str, list[pd.DataFrame]]) -> str:
    """Both orders: quartiles of the AUC by epoch, and when runs had learned."""
    auc = {order: np.array([one.val_auc for one in runs]) for order, runs in courses.items()}
    epochs = range(auc["balanced"].shape[1])
    rows = []
    for order, values in auc.items():
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
        rows.append(
            [order, *(f"{m:.2f} ({a:.2f}-{b:.2f})" for a, m, b in zip(low, middle, high, strict=True))]
        )
    by_epoch = table(["order", *map(str, epochs)], rows)
    reached = {order: (values >= LEARNED).cumsum(1) > 0 for order, values in auc.items()}
    by_seed = table(
        ["order", *(f"by {epoch}" for epoch in epochs)],
        [[order, *values.sum(0)] for order, values in reached.items()],
    )
    area = {order: values.mean(1) for order, values in auc.items()}
    difference = area["balanced"] - area["random"]
    test = wilcoxon(difference)
    return (
        f"Median (quartiles) over {len(difference)} seeds of the validation AUC, by epoch:\n\n{by_epoch}\n\n"
        f"Runs that have come to {LEARNED} by an epoch:\n\n{by_seed}\n\n"
        f"Mean AUC over the epochs, balanced less random, by seed: median {np.median(difference):+.3f}, "
        f"from {difference.min():+.3f} to {difference.max():+.3f}; signed-rank test p = {test.pvalue:.2f}."
    )


def main() -> None:
    """Run all, print the tables."""
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--out", type=Path, default=Path("checkpoints/step_order"))
    chosen = parser.parse_args()
    config = read_settings(RunConfig, ["--config", CONFIG])
    runs = [(order, seed) for seed in chosen.seeds for order in ORDERS]
    chosen.out.mkdir(parents=True, exist_ok=True)
    made = Parallel(n_jobs=2)(delayed(kept)(chosen.out, config, *run) for run in runs)
    courses: dict[str, list[pd.DataFrame]] = {order: [] for order in ORDERS}
    for (order, _), one in zip(runs, made, strict=True):
        courses[order].append(one)
    record(
        "Steps of equal length and steps at random",
        f"python -m benchmarks.step_order --seeds {' '.join(map(str, chosen.seeds))}",
        summary(courses),
        write=chosen.write,
    )


if __name__ == "__main__":
    main()

"""Compare training with steps of about equal numbers of slices and training with shuffled steps.

    make demo    # writes the scans
    python -m benchmarks.step_order [--seeds 0 1 2 ...] [--out FOLDER] [--write]

`StepSampler` balances the number of slices over the steps of an epoch. It is compared with a plain shuffle on
the scans and settings of the demo, for nine epochs without early stopping. All runs train on the same scans;
the seed determines weights and order. Two runs are trained in parallel, with one thread each. Learning curves
are stored in FOLDER/<order>-<seed>.csv and reused.
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
from ich_mil.training import fit_cnn as fit

CONFIG = "configs/demo.yaml"
SPLIT_SEED = 0
EPOCHS = 9
LEARNED = 0.9
"""Validation AUC at which a network counts as trained."""


class ShuffledSteps(StepSampler):
    """Sampler whose steps are a plain shuffle of the scans."""

    def plan(self) -> list[list[int]]:
        """The scans of each step of this epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.sizes), generator=generator)
        return [step.tolist() for step in order.tensor_split(self.steps)]


ORDERS: dict[str, type[StepSampler]] = {"balanced": StepSampler, "random": ShuffledSteps}


def course(config: RunConfig, order: str, seed: int) -> pd.DataFrame:
    """Train a run; its learning curve from `log.csv`: columns epoch, train_loss, val_loss, val_auc."""
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
    """Learning curve from `course`, stored in and read from `folder`."""
    file = folder / f"{order}-{seed}.csv"
    if not file.is_file():
        write_text(file, course(config, order, seed).to_csv(index=False))
    return pd.read_csv(file)


def summary(courses: dict[str, list[pd.DataFrame]]) -> str:
    """Tables for both orders: quartiles of the AUC per epoch, and number of runs above `LEARNED`."""
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
    """Run all trainings and print the tables."""
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

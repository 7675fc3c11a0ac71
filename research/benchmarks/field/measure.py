"""Scores of the methods on a problem, their metrics, intervals and differences to our default head.

In: a problem and a method. Out: probabilities of the test bags (S, B) and scores of their instances (S, N),
for S seeds, and processor seconds; kept in a file, so that a run can be resumed. A metric is averaged over
seeds within each bootstrap resample of the patients; differences are paired. Instance scores of each fold are
replaced by their ranks in it, because attention has no common scale over models.

Shapes: S seeds, B test bags, N test instances, R resamples.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from ich_mil.evaluate.bootstrap import Interval, patient_bootstrap, proportion_interval
from ich_mil.evaluate.metrics import INSIDE, SCAN, SLICE, Metric, auc_inside, metrics_of, resampled
from ich_mil.files import whole_file
from ich_mil.sets.features import FeatureSet
from research.benchmarks.field.problems import Problem, rows_of
from research.benchmarks.field.tuning import Method

RESAMPLES = 1000
"""Number of bootstrap resamples."""


class Scores(NamedTuple):
    """Probabilities of bags (S, B), ranks of instances (S, N), and processor seconds of one tuned fit."""

    bags: np.ndarray
    instances: np.ndarray
    seconds: float


def scores_of(problem: Problem, method: Method, seeds: int) -> Scores:
    """Run a method on all parts of a problem; with several networks, each has one seed, its number."""
    several = len(problem.parts) > 1
    n = len(problem.parts) if several else seeds
    bags, instances = np.empty((n, problem.test.n_scans)), np.empty((n, len(problem.test.x)))
    started, fits = process_time(), 0
    for network, parts in enumerate(problem.parts):
        rows = [network] if several else list(range(seeds))
        for learn, out in parts:
            numbers, slices = rows_of(problem.test, out)
            found = method(learn, out, rows)
            fits += len({id(one) for one in found})
            for row, one in zip(rows, found, strict=True):
                bags[row, numbers] = one.bags
                instances[row, slices] = rankdata(one.instances) / len(slices)
    return Scores(bags, instances, (process_time() - started) / fits)


def kept_scores(path: Path, problem: Problem, method: Method, seeds: int) -> Scores:
    """`scores_of`, or those of the file `path` of an earlier run."""
    if not path.is_file():
        found = scores_of(problem, method, seeds)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **found._asdict())
    with np.load(path) as file:
        return Scores(file["bags"], file["instances"], float(file["seconds"]))


Estimate = tuple[float, Interval]


def averaged(
    metrics: Sequence[Metric], labels: np.ndarray, scores: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """Metrics (R,) of labels (n,) and scores (S, n), averaged over seeds, for counts (n, R)."""
    values = [resampled(metrics, labels, row, counts) for row in scores]
    return {name: np.mean([value[name] for value in values], axis=0) for name in values[0]}


def compared(
    labels: np.ndarray, scores: np.ndarray, base: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """Metrics (R,) of probabilities (S, B), and their AUC and log-loss less those of `base` (S, B)."""
    metrics = metrics_of(SCAN, "auc", "log_loss", "calibration_slope")
    own = averaged(metrics, labels, scores, counts)
    ours = averaged(metrics[:2], labels, base, counts)
    return own | {"gain": own["auc"] - ours["auc"], "difference": own["log_loss"] - ours["log_loss"]}


def estimates(
    test: FeatureSet, scores: Mapping[str, Scores], default: str, scans: list[str]
) -> dict[str, dict[str, Estimate]]:
    """Metrics of each method on some scans of `test`, by name.

    They are `auc`, `log_loss`, `calibration_slope`; `gain` and `difference`, AUC and log-loss less those of
    `default`; with labels of instances `slices`, AUC of all, and `inside`, mean AUC inside positive bags.
    """
    bags, rows = rows_of(test, test.select(scans))
    own = test.select(scans)
    labels, truth = own.labels.numpy(), own.slice_labels.numpy()
    owner = np.repeat(np.arange(own.n_scans), own.offsets.diff().numpy())
    patients, base = np.asarray(own.patients), scores[default].bags[:, bags]
    found: dict[str, dict[str, Estimate]] = {}
    for name, one in scores.items():
        found[name] = _estimated(partial(compared, labels, one.bags[:, bags], base), patients)
        if (truth < 0).any():
            continue
        ranks = one.instances[:, rows.numpy()]
        each = [auc_inside(truth, row, owner) for row in ranks]
        positive, inside = each[0][0], np.stack([value for _, value in each])
        of_all = partial(averaged, metrics_of(SLICE, "auc"), truth, ranks)
        of_inside = partial(averaged, metrics_of(INSIDE, "auc"), np.ones(len(positive), np.int64), inside)
        found[name]["slices"] = _estimated(of_all, patients[owner])["auc"]
        found[name]["inside"] = _estimated(of_inside, patients[positive])["auc"]
    return found


def _estimated(
    statistic: Callable[[np.ndarray], Mapping[str, np.ndarray]], patients: np.ndarray
) -> dict[str, Estimate]:
    """Value and interval of each number of a statistic of counts (n, R)."""
    values = statistic(np.ones((len(patients), 1)))
    ends = patient_bootstrap(statistic, patients, resamples=RESAMPLES, seed=0)
    n = len(np.unique(patients))
    return {
        name: (
            float(values[name][0]),
            proportion_interval(end, float(values[name][0]), n) if name == "auc" else end,
        )
        for name, end in ends.items()
    }

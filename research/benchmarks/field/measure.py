"""Scores of the methods on a problem, their metrics, intervals and differences to our default head.

In: a problem and a method. Out: probabilities of the test bags (S, B) and scores of their instances (S, N),
for S seeds, and processor seconds; kept in a file, so that a run can be resumed. A metric is averaged over
seeds within each bootstrap resample of the patients; differences are paired. Instance scores of each fold are
replaced by their ranks in it, because attention has no common scale over models; those without label are NaN.

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
from ich_mil.sets.labels import UNKNOWN
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
    bags = np.empty((n, problem.test.n_scans))
    instances = np.full((n, len(problem.test.x)), np.nan)
    started, fits = process_time(), 0
    for network, parts in enumerate(problem.parts):
        rows = [network] if several else list(range(seeds))
        for learn, out in parts:
            numbers, slices = rows_of(problem.test, out)
            slices = slices[problem.test.slice_labels[slices] != UNKNOWN]
            found = method(learn, out, rows)
            fits += len({id(one) for one in found})
            for row, one in zip(rows, found, strict=True):
                bags[row, numbers] = one.bags
                ranks = rankdata(one.instances[out.slice_labels != UNKNOWN])
                instances[row, slices] = ranks / len(ranks)
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


def beside(
    metrics: Sequence[Metric], labels: np.ndarray, scores: np.ndarray, base: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """Metrics (R,) of labels (n,) and scores (S, n), averaged over seeds, for counts (n, R).

    `<metric>_less` is the metric less that of the scores `base` (S, n).
    """

    def mean(rows: np.ndarray) -> dict[str, np.ndarray]:
        values = [resampled(metrics, labels, row, counts) for row in rows]
        return {name: np.mean([value[name] for value in values], axis=0) for name in values[0]}

    own, other = mean(scores), mean(base)
    return own | {f"{name}_less": own[name] - other[name] for name in own}


def estimates(
    test: FeatureSet, scores: Mapping[str, Scores], base: str, scans: list[str]
) -> dict[str, dict[str, Estimate]]:
    """Metrics of each method on some scans of `test`, by level and name, such as "scan auc".

    With labels of instances also "slice auc" of all, and "inside auc", the mean AUC inside positive bags.
    `<metric>_less` is the difference to the method `base`.
    """
    bags, rows = rows_of(test, test.select(scans))
    own = test.select(scans)
    labels, truth, patients = own.labels.numpy(), own.slice_labels.numpy(), np.asarray(own.patients)
    owner = np.repeat(np.arange(own.n_scans), own.offsets.diff().numpy())
    of_scans = metrics_of(SCAN, "auc", "log_loss", "calibration_slope")
    found: dict[str, dict[str, Estimate]] = {}
    for name, one in scores.items():
        pair = [values.bags[:, bags] for values in (one, scores[base])]
        found[name] = _estimated("scan", partial(beside, of_scans, labels, *pair), patients)
        if (truth == UNKNOWN).any():
            continue
        pair = [values.instances[:, rows.numpy()] for values in (one, scores[base])]
        of_slices = partial(beside, metrics_of(SLICE, "auc"), truth, *pair)
        found[name] |= _estimated("slice", of_slices, patients[owner])
        positive = auc_inside(truth, pair[0][0], owner)[0]
        pair = [np.stack([auc_inside(truth, row, owner)[1] for row in values]) for values in pair]
        inside = partial(beside, metrics_of(INSIDE, "auc"), np.ones(len(positive), np.int64), *pair)
        found[name] |= _estimated("inside", inside, patients[positive])
    return found


def _estimated(
    level: str, statistic: Callable[[np.ndarray], Mapping[str, np.ndarray]], patients: np.ndarray
) -> dict[str, Estimate]:
    """Value and interval of each number of a statistic of counts (n, R)."""
    values = statistic(np.ones((len(patients), 1)))
    n, found = len(np.unique(patients)), {}
    for name, ends in patient_bootstrap(statistic, patients, resamples=RESAMPLES, seed=0).items():
        value = float(values[name][0])
        found[f"{level} {name}"] = value, proportion_interval(ends, value, n) if name == "auc" else ends
    return found

"""Held-out evaluation of the bundled model on whole scans of real heads, one table for each source.

    python -m research.benchmarks.headct --networks checkpoints/headct_base --config configs/headct_base.yaml

In: a finished ensemble whose members left out a fold of the patients each (`split.folds`), and its
configuration. Each scan of several slices is scored by the network of the member that left it out; the
mixture of all members, which is bundled, has seen it. The head of a member is fitted to this fold, so here it
is fitted again to the fold without a fifth of its patients, for each fifth. Out: a table for each source,
with intervals by patient, and baselines.
"""

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ich_mil.config import RunConfig, read_config
from ich_mil.evaluate.baselines import position_score, slice_prevalence
from ich_mil.evaluate.result_table import evaluate, format_table
from ich_mil.evaluate.scores import Scores
from ich_mil.gp.fit_calibration import FOLDS
from ich_mil.gp.inference.folds import folds_of
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.model.model import TrainedModel
from ich_mil.model.storage import load_model
from ich_mil.model.training.training_sets import (
    in_slices,
    prepare_training,
    set_names,
    training_views,
)
from ich_mil.sets.features import FeatureSet, join_features
from ich_mil.sets.splits import load_splits
from ich_mil.sets.store import PreparedSet
from ich_mil.sets.views import Views
from research.benchmarks.timing import machine_name

HIGHEST = 3
"""Number of slices behind the scan probability of the regression, as in the rule `top_3`."""
Array = NDArray[np.float64]


class Scored:
    """Probabilities of scans and of their slices by each method, collected scan by scan."""

    def __init__(self) -> None:
        self.scans: dict[str, dict[str, float]] = defaultdict(dict)
        self.slices: dict[str, dict[str, Array]] = defaultdict(dict)

    def add(self, method: str, features: FeatureSet, scans: Array, slices: Array) -> None:
        """Add the probabilities (B,) and (N,) of the scans `features`."""
        self.scans[method].update(zip(features.scans, scans.tolist(), strict=True))
        parts = np.split(slices, features.offsets[1:-1].tolist())
        self.slices[method].update(zip(features.scans, parts, strict=True))

    def scores(self, features: FeatureSet) -> list[Scores]:
        """Scores of the scans `features` by each method."""
        found = []
        for method, of_scan in self.scans.items():
            scans = np.array([of_scan[scan] for scan in features.scans])
            slices = np.concatenate([self.slices[method][scan] for scan in features.scans])
            found.append(Scores(method, scans, slices, slice_is_probability=True))
        return found


def left_out(model: TrainedModel, config: RunConfig, prepared: PreparedSet) -> tuple[Scored, FeatureSet]:
    """Scores of each scan of several slices by the member that left it out, and features of all of them."""
    scored, every = Scored(), []
    for number, member in enumerate(model.members):
        run = config.member(number)
        splits = load_splits(member.folder / "splits.csv").set_index("scan").split
        several = prepared.scans.slices[splits.index] > 1
        held = splits.index[(splits == "validation") & several].tolist()
        features = training_views([run], held).features
        every.append(features)
        fold = training_views([run], splits.index[splits == "validation"].tolist()).features
        for _, outside in folds_of(features.labels, features.patients, folds=FOLDS, seed=0):
            kept = {*(features.scans[b] for b in outside)}
            learn = fold.select([scan for scan in fold.scans if scan not in kept])
            head = GaussianProcessHead.fit(learn, run.head, mixed=True)
            own = features.select([features.scans[b] for b in outside])
            alone = replace(member, head=head, own=None)
            said = replace(model, members=(alone,), calibration=head.calibration).predict(Views.of([own]))
            scored.add("head", own, said.scan_mean.numpy(), said.slice_mean.numpy())
        learned = training_views([run], splits.index[splits == "train"].tolist()).features
        scored.add("logistic regression", features, *regressed(learned.as_slices(in_slices(run)), features))
        scored.add("CNN alone", features, features.cnn_scan.numpy(), features.cnn_slice.numpy())
    return scored, join_features(every)


def regressed(learned: FeatureSet, held: FeatureSet) -> tuple[Array, Array]:
    """Scan and slice probabilities (B,), (N,) of `held` by a regression on the features of single slices."""
    regression = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    regression.fit(learned.x.numpy(), learned.labels.numpy())
    slices: Array = regression.predict_proba(held.x.numpy())[:, 1]
    parts = np.split(slices, held.offsets[1:-1].tolist())
    return np.array([np.sort(part)[-HIGHEST:].mean() for part in parts]), slices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path("configs/headct_base.yaml"))
    chosen, rest = parser.parse_known_args()
    config = replace(read_config(["--config", str(chosen.config), *rest]), out=chosen.networks)
    prepared = prepare_training(config, jobs=config.workers)
    scored, every = left_out(load_model(chosen.networks), config, prepared)
    names = np.array(set_names(every.scans, config))
    for name, one in config.training_sets.items():
        if not (names == name).any():
            continue
        features = every.select([every.scans[b] for b in np.flatnonzero(names == name)])
        scores = scored.scores(features)
        prevalence = np.full(features.n_scans, features.labels.double().mean().item())
        scores.append(Scores("position only", prevalence, position_score(features.positions.numpy())))
        share = slice_prevalence(features.slice_labels.numpy())
        scores.append(Scores("slice prevalence", None, share, slice_is_probability=True))
        print(
            f"\n{one.name}: {features.n_scans} scans, {len(features.x)} slices, each left out by its member"
        )
        print(format_table(evaluate(scores, features, seed=0, resamples=config.bootstrap)), flush=True)
    print(machine_name())


if __name__ == "__main__":
    main()

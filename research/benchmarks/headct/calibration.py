"""Calibration at a new source: held-out folds by patient against folds by source, nested.

    python -m research.benchmarks.headct.calibration --networks checkpoints/headct_base [--write]

In: a finished ensemble with its stored features, as for `python -m research.benchmarks.headct`. For each
source, heads are fitted to the other sources. Their calibration is fitted to held-out logits, by heads
without the patients of a fold, or by heads without the source of the scan. Out: both calibrations measured on
the source left out, with intervals by patient, and the paired difference of the log-loss.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ich_mil.config import RunConfig, read_config
from ich_mil.evaluate.bootstrap import patient_bootstrap
from ich_mil.evaluate.metrics import SCAN, metrics_of, resampled
from ich_mil.evaluate.model_metrics import measure
from ich_mil.evaluate.scores import Scores
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit_calibration import FOLDS, calibrating, fit_with_folds
from ich_mil.gp.inference.folds import Fold, folds_of
from ich_mil.gp.inference.inducing import place_points
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.gaussian_process import GaussianProcessHead, bags_of
from ich_mil.model.model import Member, TrainedModel
from ich_mil.model.storage import load_model
from ich_mil.model.training.training_sets import open_training, training_views
from ich_mil.progress import say
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.store import open_prepared
from ich_mil.sets.views import Views
from research.benchmarks.record import command_line, record, table, with_interval

SHOWN = ("auc", "log_loss", "ece", "calibration_intercept", "calibration_slope")


def calibrated(
    model: TrainedModel, learn: Views, settings: HeadSettings, divisions: dict[str, Sequence[Fold]]
) -> dict[str, TrainedModel]:
    """Models with heads fitted to `learn`, calibrated singly and jointly on the folds of each division."""
    features = learn.features
    used = calibrating(features.offsets, features.labels)
    labels, rule = features.labels[used], settings.variant.rule
    members: dict[str, list[Member]] = {name: [] for name in divisions}
    logits: dict[str, list[torch.Tensor]] = {name: [] for name in divisions}
    for number, (member, own) in enumerate(zip(model.members, learn.members, strict=True)):
        seeded = replace(settings, calibration="none", random_state=settings.random_state + number)
        head, bags = GaussianProcessHead.fit(own, seeded, mixed=True), bags_of(own)
        for name, folds in divisions.items():
            fitted = fit_with_folds(bags, head.settings, place_points(bags, head.settings), folds)
            both = fitted.values(head.settings, model.samples)[:, :, used]
            calibration = Calibration.fit(both[0], both[1], labels, rule=rule)
            assert calibration is not None  # both labels are there
            members[name].append(replace(member, head=head, own=calibration, likeness=None))
            logits[name].append(calibration.logits(both))
    models = {}
    for name, parts in logits.items():
        of_scan, of_slices = torch.cat(parts, 1)
        joint = Calibration.fit(of_scan, of_slices, labels, rule=rule)
        if len(parts) == 1:  # calibrated once
            joint, members[name] = members[name][0].own, [replace(members[name][0], own=None)]
        models[name] = replace(model, members=tuple(members[name]), calibration=joint)
    return models


def learned_by_heads(config: RunConfig) -> dict[str, list[str]]:
    """Scans, or single slices, of each training set that the heads learn, by the name of the set."""
    sets = {name: one for name, one in config.training_sets.items() if one.learn != "boxes"}
    return {one.name: [*open_prepared(config.prepared / name).scans.index] for name, one in sets.items()}


def difference(features: FeatureSet, first: np.ndarray, second: np.ndarray, resamples: int) -> str:
    """Log-loss of `second` less that of `first`, with its interval by patient."""
    labels = features.labels.numpy()

    def between(counts: np.ndarray) -> dict[str, np.ndarray]:
        a, b = (resampled(metrics_of(SCAN, "log_loss"), labels, p, counts) for p in (first, second))
        return {"log_loss": b["log_loss"] - a["log_loss"]}

    value = float(between(np.ones((len(labels), 1)))["log_loss"][0])
    interval = patient_bootstrap(between, features.patients, resamples=resamples, seed=0)["log_loss"]
    return with_interval(value, (interval.low, interval.high))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path("configs/headct_base.yaml"))
    chosen, rest = parser.parse_known_args()
    config = replace(read_config(["--config", str(chosen.config), *rest]), out=chosen.networks)
    model, runs = load_model(chosen.networks), [config.member(k) for k in range(config.members)]
    views = training_views(runs, list(open_training(config).scans.index))
    sources = learned_by_heads(config)
    source_of = {scan: name for name, scans in sources.items() for scan in scans}
    rows = []
    for source, held in sources.items():
        learn = views.select([scan for scan in views.features.scans if source_of[scan] != source])
        known, new = learn.features, views.select(held)
        others = [source_of[scan] for scan in known.scans]
        divisions: dict[str, Sequence[Fold]] = {
            "folds by patient": folds_of(known.labels, known.patients, folds=FOLDS, seed=0),
            "folds by source": folds_of(known.labels, others, folds=len({*others}), seed=0),
        }
        models = calibrated(model, learn, config.head, divisions)
        labels = new.features.labels.double().numpy()
        share = float(labels.mean())
        found = {name: one.predict(new).scan_mean.double().numpy() for name, one in models.items()}
        scores = found | {"prevalence": np.full(len(labels), share)}
        for name, one in models.items():
            scores[f"{name}, prevalence known"] = one.at_prevalence(share).predict(new).scan_mean.numpy()
        by_patient, by_source = found.values()
        change = difference(new.features, by_patient, by_source, config.bootstrap)
        say(f"{source}: log-loss of folds by source less that by patient {change}")
        for name, probability in scores.items():
            one_model = [Scores(name, probability, None)]
            measured = measure(one_model, new.features, seed=0, resamples=config.bootstrap)
            by_name = {row["metric"]: row for row in measured if row["level"] == SCAN}
            values = [(by_name[one]["values"][0], by_name[one]["low"], by_name[one]["high"]) for one in SHOWN]
            cells = [with_interval(value, ends) for value, *ends in values]
            rows.append([f"{source}: {len(labels)}, {labels.sum():.0f} positive", name, *cells])
    head = ["left out", "calibration", "AUC", "log-loss", "ECE", "intercept", "slope"]
    record("Calibration at a new source", table(head, rows))


if __name__ == "__main__":
    main()

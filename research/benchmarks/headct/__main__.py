"""Held-out evaluation of the bundled model on whole scans of real heads, one table for each source.

    python -m research.benchmarks.headct --networks checkpoints/headct_base --config configs/headct_base.yaml

In: a finished ensemble, and its configuration. The features of its sets of whole scans (CT-ICH, RSNA studies)
are of networks that learned single slices, or these and the other set. Heads are fitted again: for each of 5
folds by patient over all sources, to the slices (bags of one) and to the scans of the other folds; and for
each source, to the slices and to the scans of the other sources. Out: a table for each source, with intervals
by patient, and baselines on the same features.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ich_mil.config import RunConfig, read_config
from ich_mil.evaluate.baselines import position_score, slice_prevalence
from ich_mil.evaluate.result_table import evaluate, format_table
from ich_mil.evaluate.scores import Scores
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit_calibration import calibrating
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.model.model import Member, TrainedModel
from ich_mil.model.storage import load_model
from ich_mil.model.training.training_sets import prepare_training, training_views
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.store import open_prepared
from ich_mil.sets.views import Views

FOLDS = 5
Array = NDArray[np.float64]


def with_heads(model: TrainedModel, learn: Views, settings: HeadSettings) -> TrainedModel:
    """The model with new heads, fitted to `learn`, and calibrated singly and jointly on held-out folds."""
    members, logits = [], []
    for number, (member, own) in enumerate(zip(model.members, learn.members, strict=True)):
        seeded = replace(settings, random_state=settings.random_state + number)
        head = GaussianProcessHead.fit(own, seeded, mixed=True)
        members.append(Member(member.folder, member.cnn, head, head.calibration, member.seed, None))
        both = head.held_out_logits(own, model.samples)
        logits.append(both if head.calibration is None else head.calibration.logits(both))
    features = learn.features
    used = calibrating(features.offsets, features.labels)
    of_scan, of_slices = torch.cat(logits, 1)[:, :, used]
    rule = members[0].head.settings.variant.rule
    joint = Calibration.fit(of_scan, of_slices, features.labels[used], rule=rule)
    if len(members) == 1:  # calibrated once
        first = members[0]
        return replace(model, members=(replace(first, calibration=None),), calibration=first.calibration)
    return replace(model, members=tuple(members), calibration=joint)


def regressed(learn: FeatureSet, held: FeatureSet, pool: str) -> tuple[np.ndarray, np.ndarray]:
    """Scan and slice probabilities by logistic regression on mean- or max-pooled features."""

    def pooled(one: FeatureSet) -> np.ndarray:
        parts = np.split(one.x.numpy(), one.offsets[1:-1].tolist())
        return np.stack([part.mean(0) if pool == "mean" else part.max(0) for part in parts])

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    model.fit(pooled(learn), learn.labels.numpy())
    return model.predict_proba(pooled(held))[:, 1], model.predict_proba(held.x.numpy())[:, 1]


def folds(views: Views, scans: Sequence[str], seed: int) -> Iterator[tuple[list[str], list[str]]]:
    """Training scans (single slices and the other folds) and held-out scans of each fold."""
    own = views.features.select(list(scans))
    slices = [scan for scan in views.features.scans if scan not in {*scans}]
    for inside, outside in folds_of(own.labels, own.patients, folds=FOLDS, seed=seed):
        yield slices + [own.scans[b] for b in inside], [own.scans[b] for b in outside]


def outputs(
    model: TrainedModel, views: Views, settings: HeadSettings, learn: list[str], out: list[str]
) -> dict[str, tuple[Array, Array]]:
    """Scan and slice probabilities of the scans `out` by each method fitted to the scans `learn`."""
    known, new = views.select(learn), views.select(out)
    fitted = with_heads(model, known, settings)
    found = {"head": predicted(fitted, new)}
    for k, member in enumerate(fitted.members):
        single = replace(member, calibration=None)
        alone = replace(fitted, members=(single,), calibration=member.head.calibration)
        found[f"member {k} alone"] = predicted(alone, Views.of([new.members[k]]))
        for pool in ("mean", "max"):
            name = f"logistic regression, {pool}, member {k}"
            found[name] = regressed(known.members[k], new.members[k], pool)
    return found


def by_source(config: RunConfig) -> dict[str, list[str]]:
    """Scans of each training set of whole scans, by the name of the set."""
    sets = {name: one for name, one in config.training_sets.items() if one.layout != "slices"}
    return {one.name: list(open_prepared(config.prepared / name).scans.index) for name, one in sets.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path("configs/headct_base.yaml"))
    parser.add_argument("--seed", type=int, default=0, help="of the folds")
    chosen, rest = parser.parse_known_args()
    config = read_config(["--config", str(chosen.config), *rest])
    config = replace(config, out=chosen.networks)
    model = load_model(chosen.networks)
    prepared = prepare_training(config, jobs=config.workers)
    runs = [config.member(k) for k in range(config.members)]
    views = training_views(runs, list(prepared.scans.index))
    sources = by_source(config)
    whole = [scan for own in sources.values() for scan in own]
    held: dict[str, tuple[dict[str, float], dict[str, Array]]] = {}
    for learn, out in folds(views, whole, chosen.seed):
        for name, (scan, slices) in outputs(model, views, config.head, learn, out).items():
            of_scans, of_slices = held.setdefault(name, ({}, {}))
            parts = np.split(slices, views.features.select(out).offsets[1:-1].tolist())
            of_scans.update(zip(out, scan.tolist(), strict=True))
            of_slices.update(zip(out, parts, strict=True))
    for source, own in sources.items():
        features = views.features.select(own)
        found = {}
        for name, (of_scans, of_slices) in held.items():
            slices = np.concatenate([of_slices[scan] for scan in own])
            found[name] = np.array([of_scans[scan] for scan in own]), slices
        learn = [scan for scan in views.features.scans if scan not in {*own}]
        others = outputs(model, views, config.head, learn, own)
        found |= {f"{name}, other sources": pair for name, pair in others.items() if "logistic" not in name}
        scores = [Scores(name, *pair, slice_is_probability=True) for name, pair in found.items()]
        cnn = features.cnn_slice.numpy(), features.cnn_scan.numpy()
        scores.append(Scores("CNN alone", cnn[1], cnn[0], slice_is_probability=True))
        prevalence = np.full(features.n_scans, features.labels.double().mean().item())
        scores.append(Scores("position only", prevalence, position_score(features.positions.numpy())))
        share = slice_prevalence(features.slice_labels.numpy())
        scores.append(Scores("slice prevalence", None, share, slice_is_probability=True))
        frame = evaluate(scores, features, seed=0, resamples=config.bootstrap)
        print(f"\n{source}: {features.n_scans} scans, {len(features.x)} slices; folds of seed {chosen.seed}")
        print(format_table(frame), flush=True)


def predicted(model: TrainedModel, views: Views) -> tuple[np.ndarray, np.ndarray]:
    """Mean probability of scans and slices."""
    said = model.predict(views)
    return said.scan_mean.numpy(), said.slice_mean.numpy()


if __name__ == "__main__":
    main()

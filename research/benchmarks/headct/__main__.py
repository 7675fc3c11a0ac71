"""Cross-validation of the bundled model on CT-ICH scans, 5 folds by patient, with baselines.

    python -m research.benchmarks.headct --networks checkpoints/headct_rsna --config configs/headct_base.yaml

In: a finished run or ensemble whose networks were trained on labelled RSNA slices, and the configuration of
the bundled model. Its first set holds the CT-ICH scans, its second the RSNA slices. For each fold, a head is
fitted to the slices (bags of one) and to the scans of the other folds, and evaluated on the scans of the
fold. Out: a table over all scans, with intervals by patient, and baselines on the same features and folds.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ich_mil.config import read_config
from ich_mil.evaluate.baselines import position_score, slice_prevalence
from ich_mil.evaluate.result_table import evaluate, format_table
from ich_mil.evaluate.scores import Scores
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit_calibration import calibrating
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.kernels.segments import take_bags
from ich_mil.model.model import Member, TrainedModel
from ich_mil.model.storage import load_model
from ich_mil.model.training.training_sets import prepare_training
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.views import Views
from research.benchmarks.timing import machine_name

FOLDS = 5


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
    return replace(model, members=tuple(members), calibration=joint if len(members) > 1 else members[0].own)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path("configs/headct_base.yaml"))
    parser.add_argument("--seed", type=int, default=0, help="of the folds")
    chosen, rest = parser.parse_known_args()
    config = read_config(["--config", str(chosen.config), *rest])
    model = load_model(chosen.networks)
    prepared = prepare_training(config, jobs=config.workers)
    views = model.features(prepared, chosen.networks / "headct" / "features.safetensors")
    sizes = views.features.offsets.diff().tolist()
    scans = [scan for scan, size in zip(views.features.scans, sizes, strict=True) if size > 1]
    held = views.features.select(scans)
    said: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    place = {scan: b for b, scan in enumerate(held.scans)}
    for learn, out in folds(views, scans, chosen.seed):
        known, new = views.select(learn), views.select(out)
        fitted = with_heads(model, known, config.head)
        found = {"head": predicted(fitted, new)}
        for k, member in enumerate(fitted.members):
            alone = replace(fitted, members=(replace(member, own=None),), calibration=member.own)
            found[f"member {k} alone"] = predicted(alone, Views.of([new.members[k]]))
            for pool in ("mean", "max"):
                name = f"logistic regression, {pool}, member {k}"
                found[name] = regressed(known.members[k], new.members[k], pool)
        rows = [place[scan] for scan in out]
        at = take_bags(held.offsets, torch.tensor(rows))[0].numpy()
        for name, (scan, slices) in found.items():
            of_scans, of_slices = said.setdefault(name, (np.zeros(held.n_scans), np.zeros(len(held.x))))
            of_scans[rows], of_slices[at] = scan, slices
    scores = [Scores(name, *pair, slice_is_probability=True) for name, pair in said.items()]
    cnn = held.cnn_slice.numpy(), held.cnn_scan.numpy()
    scores.append(Scores("CNN alone", cnn[1], cnn[0], slice_is_probability=True))
    prevalence = np.full(held.n_scans, held.labels.double().mean().item())
    scores.append(Scores("position only", prevalence, position_score(held.positions.numpy())))
    share = slice_prevalence(held.slice_labels.numpy())
    scores.append(Scores("slice prevalence", None, share, slice_is_probability=True))
    frame = evaluate(scores, held, seed=0, resamples=config.bootstrap)
    print(f"{machine_name()}; {held.n_scans} scans, {len(held.x)} slices, folds of seed {chosen.seed}")
    print(format_table(frame))


def predicted(model: TrainedModel, views: Views) -> tuple[np.ndarray, np.ndarray]:
    """Mean probability of scans and slices."""
    said = model.predict(views)
    return said.scan_mean.numpy(), said.slice_mean.numpy()


if __name__ == "__main__":
    main()

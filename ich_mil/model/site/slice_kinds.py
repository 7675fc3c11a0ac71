"""Kinds of bleed of slices: the six targets of RSNA 2019, each by a logistic regression on slice features.

In: features of predicted scans, or of the held-out scans of a run, and `stage_2_train.csv`. Out: a folder
with one model per target and `slice_kinds.json`; with it `ich-mil predict --kinds` writes `submission.csv`.
Features are those of the frozen networks. A target too rare to fit is predicted by its share in training.

Shapes: N slices.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold

from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.evaluate.bootstrap import Interval
from ich_mil.evaluate.weighted_log_loss import image_losses, mean_loss
from ich_mil.files import alone, write_json
from ich_mil.ledger import NOTICE
from ich_mil.model.folder import PREDICTIONS, run_config
from ich_mil.model.model import TrainedModel
from ich_mil.model.site.logistic_kind import LogisticKind
from ich_mil.model.storage import load_model
from ich_mil.model.training.training_sets import training_views
from ich_mil.model_files import read_json
from ich_mil.progress import say
from ich_mil.sets.labels import name_some
from ich_mil.sets.layouts.collection import every_file
from ich_mil.sets.layouts.rsna_labels import KINDS, RsnaLabels, read_rsna_labels, write_submission
from ich_mil.sets.preparation.record import need_record
from ich_mil.sets.splits import load_splits
from ich_mil.sets.store import PreparedSet
from ich_mil.sets.views import Views

FORMAT = "ich_mil.slice_kinds.1"
DESCRIPTION = "slice_kinds.json"
FEWEST = 5
"""Minimum of slices with a target, and without it, to fit its model."""
FOLDS = 5
Sources = Mapping[str, np.ndarray]


def train_slice_kinds(folder: Path, *, kinds: Path, model: Path, out: Path) -> None:
    """Fit a model for each target, measure all on held-out folds by patient, and write them to `out`.

    Args:
        folder: folder of `predict` or `validate`, or the run `model` itself: its held-out scans.
        kinds: label table of RSNA 2019.
        model: the model of the predictions.
        out: folder to write.
    """
    labels, trained = read_rsna_labels(kinds), load_model(model)
    sources, images, owner = _labelled_slices(_held_features(trained, folder), labels)
    y, weights = labels.matrix(images), trained.provenance.weights
    with alone(out, doing="writing"):
        if (out / DESCRIPTION).exists():
            raise ConfigError(f"{out}: holds kinds already; choose another --out")
        p, base = held_out(sources, y, owner)
        losses, base_losses = image_losses(y, p), image_losses(y, base)
        measured = {
            "weighted_log_loss": mean_loss(losses, owner),
            "of_the_shares_in_training": mean_loss(base_losses, owner),
            "difference": mean_loss(losses - base_losses, owner),
        }
        fitted = SliceKinds.fit(sources, y)
        fitted.save(out, {"weights": weights, "slices": len(y), "patients": len(set(owner))}, measured)
    for column, kind in enumerate(KINDS):
        rare = "" if fitted.models[column] else ", too rare for a model: its share is predicted"
        say(f"{kind}: {y[:, column].sum()} of {len(y)} slices{rare}")
    of = {name: f"{value:.4f} [{ends.low:.4f}, {ends.high:.4f}]" for name, (value, ends) in measured.items()}
    say(
        f"weighted log-loss of {len(set(owner))} patients in held-out folds: {of['weighted_log_loss']}, of "
        f"the shares in training {of['of_the_shares_in_training']}, difference {of['difference']}",
        f"{out}: use it as --kinds",
    )


def _held_features(model: TrainedModel, folder: Path) -> Views:
    """Features of the scans predicted into `folder`, or of the held-out scans of the run `folder`."""
    if (folder / PREDICTIONS).is_file():
        return model.predicted_features(folder)
    if folder.resolve() != model.folder.resolve():
        raise ConfigError(f"{folder}: holds no {PREDICTIONS}, and is not the run {model.folder}; name either")
    config, splits = run_config(folder), load_splits(folder / "splits.csv")
    if held := splits.scan[splits.split != "train"].tolist():
        return training_views([config.member(k) for k in range(config.members)], held)
    raise DataError(f"{folder}: holds no scans out; predict labelled scans and name their folder")


def _labelled_slices(views: Views, labels: RsnaLabels) -> tuple[Sources, list[str], np.ndarray]:
    """Features of the labelled slices by network, their images and their patients (N,)."""
    names = views.features.slice_names
    rows = [row for row, name in enumerate(names) if name in labels.rows]
    if not rows:
        raise DataError(
            f"{labels.path}: has no image of the predictions, such as {names[0]}; name their table of labels"
        )
    if left := [name for name in names if name not in labels.rows]:
        say(f"{labels.path}: {len(left)} slices have no row and are left out: {name_some(left)}")
    owner = np.repeat(views.features.patients, views.features.offsets.diff().numpy())
    sources = {name: x[rows] for name, x in _slice_features(views).items()}
    return sources, [names[row] for row in rows], owner[rows]


def _slice_features(views: Views) -> dict[str, np.ndarray]:
    """Features of all slices by network: name -> (N, D)."""
    return {f"network {k}": view.x.double().numpy() for k, view in enumerate(views.shared)}


def held_out(sources: Sources, y: np.ndarray, patients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (N, 6) by models of the other folds, and shares in these folds."""
    if len(set(patients)) < FOLDS:
        raise DataError(f"{len(set(patients))} patients are too few for {FOLDS} folds; predict more scans")
    p, base = np.empty(y.shape), np.empty(y.shape)
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0)
    for inside, outside in folds.split(y, y[:, KINDS.index("any")], groups=patients):
        fitted = SliceKinds.fit({name: x[inside] for name, x in sources.items()}, y[inside])
        p[outside] = fitted.predict({name: x[outside] for name, x in sources.items()})
        base[outside] = fitted.shares
    return p, base


@dataclass(frozen=True)
class SliceKinds:
    """Models of the six targets.

    Attributes:
        models: model of each target in the order of `KINDS`; None for one that is too rare.
        shares: share (6,) of each target in training, by the rule of succession.
    """

    models: tuple[LogisticKind | None, ...]
    shares: np.ndarray

    @classmethod
    def fit(cls, sources: Sources, y: np.ndarray) -> Self:
        """Fit to features (N, D_h) by network and labels (N, 6)."""
        models = tuple(
            LogisticKind.fit(sources, labels, None) if FEWEST <= labels.sum() <= len(y) - FEWEST else None
            for labels in y.T
        )
        return cls(models, (y.sum(0) + 1) / (len(y) + 2))

    def predict(self, sources: Sources) -> np.ndarray:
        """Probabilities (N, 6)."""
        n = len(next(iter(sources.values())))
        columns = [
            np.full(n, share) if model is None else np.asarray(model.predict_proba(sources))[:, 1]
            for model, share in zip(self.models, self.shares, strict=True)
        ]
        return np.stack(columns, 1)

    def save(
        self, out: Path, metadata: Mapping[str, Any], measured: Mapping[str, tuple[float, Interval]]
    ) -> None:
        """Write the models, then `slice_kinds.json` with their held-out measures."""
        files = []
        for kind, model in zip(KINDS, self.models, strict=True):
            files.append("" if model is None else f"{kind}.safetensors")
            if model is not None:
                model.save(out / files[-1])
        numbers = {name: [value, ends.low, ends.high] for name, (value, ends) in measured.items()}
        kinds = {"kinds": list(KINDS), "files": files, "shares": self.shares.tolist()}
        write_json(out / DESCRIPTION, {"format": FORMAT, "notice": NOTICE, **metadata, **kinds, **numbers})

    @classmethod
    def load(cls, folder: Path, *, weights: str) -> Self:
        """Read what `train_slice_kinds` wrote. `ModelError`: damaged, or of a model of other weights."""
        path = folder / DESCRIPTION
        metadata = read_json(path, FORMAT)
        try:
            stored_weights, files = metadata["weights"], [str(name) for name in metadata["files"]]
            shares = np.array(metadata["shares"], np.float64)
            if len(files) != len(KINDS) or shares.shape != (len(KINDS),):
                raise ValueError(f"it has not {len(KINDS)} targets")
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(f"{path}: cannot be read ({error}); run 'ich-mil subtype' again") from error
        if stored_weights != weights:
            raise ModelError(f"{folder}: belongs to another model; run 'ich-mil subtype' with this one")
        models = tuple(LogisticKind.load(folder / name) if name else None for name in files)
        return cls(models, shares)

    def submit(self, views: Sequence[Views], prepared: PreparedSet, root: Path, path: Path) -> None:
        """Write `submission.csv` with six rows for each DICOM file below `root`.

        A slice that averages several images stands for each of them. An image without a prediction, as a
        refused file or a repeated slice, has the shares in training.
        """
        known = {image: p for scan_views in views for image, p in self._images(scan_views, prepared)}
        files = {Path(name).stem: None for name in every_file(root, root) if name.lower().endswith(".dcm")}
        images = [*known, *(name for name in files if name not in known)]
        write_submission(path, images, np.stack([known.get(image, self.shares) for image in images]))
        rest = len(images) - len(known)
        say(f"{path}: {len(images)} images; without a prediction, with the shares in training: {rest}")

    def _images(self, views: Views, prepared: PreparedSet) -> Iterator[tuple[str, np.ndarray]]:
        """Probabilities (6,) of the images of a scan."""
        (scan,) = views.features.scans
        rows = need_record(prepared.part_of(scan).folder, scan).slices
        for row, p in zip(rows, self.predict(_slice_features(views)), strict=True):
            yield from ((image, p) for image in row["sops"])


def has_slice_kinds(folder: Path) -> bool:
    """Whether the folder holds kinds of slices."""
    return os.path.lexists(folder / DESCRIPTION)

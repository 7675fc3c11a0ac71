"""Trained model: frozen CNN, Gaussian-process head, calibration and provenance of a run or an ensemble.

In: the folder of a run, or of an ensemble of runs. Out: `TrainedModel`, which computes predictions from
prepared scans or features. An ensemble is the mixture of its members. Their posterior samples are pooled, so
that the uncertainty includes the spread between networks:

    E p = mean of the members' means        Var p = mean of their variances + variance of their means

Each sample passes through the Platt scaling of its member, then through that of the mixture, which is stored
in `ensemble.json`. The second step is needed because averages of calibrated probabilities are
under-confident. On held-out scans of the RSNA features of three CNN runs the log-loss is 0.230 without it and
0.221 with it (15 divisions into five folds, better in each).

Shapes: B scans, L samples.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ich_mil.data.features import FeatureSet, read_features
from ich_mil.data.store import PreparedSet
from ich_mil.data.views import Views
from ich_mil.encoders.attention_cnn import AttentionCnn
from ich_mil.encoders.frozen import stored_features
from ich_mil.errors import DataError, ModelError
from ich_mil.evaluate.deployment.out_of_distribution import Likeness
from ich_mil.evaluate.threshold import THRESHOLD
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.counterfactual import Counterfactuals, counterfactuals, mean_counterfactuals
from ich_mil.gp.predict import Predictions, pool, sample_probabilities, scan_samples, summarise
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.ranks import device
from ich_mil.runs.predictions import DIGITS, Provenance, read_results


@dataclass(frozen=True)
class Member:
    """A network with its head.

    Attributes:
        folder: folder of its run.
        cnn: frozen CNN; None for a run on public features.
        head: Gaussian process with its calibration.
        own: for a member of an ensemble, the head's calibration, applied before that of the ensemble; None
            for a single run, or where the head is not calibrated.
        seed: seed of the samples.
        likeness: check of the likeness to the training scans; None where the run has none.
    """

    folder: Path
    cnn: AttentionCnn | None
    head: SparseGP
    own: Calibration | None
    seed: int
    likeness: Likeness | None

    def calibration(self, joint: Calibration | None) -> Calibration | None:
        """Calibration of the head's logits: `own`, followed by the `joint` calibration of the model."""
        return self.own.then(joint) if self.own and joint else self.own or joint

    def sampled(self, features: FeatureSet, samples: int) -> dict[str, Any]:
        """Keyword arguments of the sampling functions of `ich_mil.gp`."""
        return {
            "x": features.x.double(),
            "offsets": features.offsets,
            "scans": features.scans,
            "positions": features.positions_mm,
            "samples": samples,
            "seed": self.seed,
        }

    def logits(self, features: FeatureSet, samples: int) -> Tensor:
        """Sampled logits (2, L, B) of `scan_samples`, by scan rule and by slice rule, after `own` if any."""
        both = torch.stack(scan_samples(self.head, **self.sampled(features, samples)))
        return both if self.own is None else self.own.logits(both)


@dataclass(frozen=True)
class TrainedModel:
    """A finished run, or an ensemble of runs whose posterior samples are pooled.

    Attributes:
        folder: folder of the run or ensemble.
        members: networks with their heads; a single run has one.
        calibration: calibration of the head of a single run, or joint calibration of the pooled samples of an
            ensemble; None where there is none.
        provenance: identity of the model, stored with its results.
        thickness_mm: target thickness in mm of averaged thin slices; 0: no averaging.
        samples: posterior samples per prediction, of each member.
        bootstrap: bootstrap resamples per interval.
        seed: seed of resamples and heatmaps.
    """

    folder: Path
    members: tuple[Member, ...]
    calibration: Calibration | None
    provenance: Provenance
    thickness_mm: float
    samples: int
    bootstrap: int
    seed: int

    def check_input(self, *, pictures: bool) -> None:
        """Raise `ModelError` unless the model reads this kind of input: pictures, or else features."""
        cnn = self.members[0].cnn
        if pictures and cnn is None:
            raise ModelError(
                f"{self.folder}: was trained on feature files and has no CNN; it cannot read pictures"
            )
        if not pictures and cnn is not None:
            raise ModelError(f"{self.folder}: has a CNN of its own; it cannot read the features of another")

    def feature_files(self, first: Path) -> list[Path]:
        """Feature file of each member: `first`, then `first` with `_1`, `_2`, ... added to its stem."""
        return [first.with_stem(f"{first.stem}_{k}") if k else first for k in range(len(self.members))]

    def features(self, prepared: PreparedSet, first: Path) -> Views:
        """Features of all scans of a prepared set by the CNN of each member, stored in `feature_files`."""
        scans, members = list(prepared.scans.index), []
        for member, path in zip(self.members, self.feature_files(first), strict=True):
            assert member.cnn is not None  # the caller has called check_input
            members.append(stored_features(path, member.cnn.to(device()), prepared, scans))
        return Views.of(members)

    def predicted_features(self, folder: Path) -> Views:
        """Features of the scans that the model has predicted into `folder`.

        Raises:
            DataError: predictions of another model, or predictions or features that cannot be read.
        """
        if read_results(folder).model.weights != self.provenance.weights:
            raise DataError(f"{folder}: was predicted by another model than {self.folder}; predict again")
        paths = self.feature_files(folder / "features.safetensors")
        return Views.of([read_features(path) for path in paths], paths)

    def predict(self, views: Views) -> Predictions:
        """Calibrated probabilities, with sampled uncertainty, of the scans and slices of `views.features`."""
        drawn = [
            sample_probabilities(
                member.head,
                **member.sampled(view, self.samples),
                calibration=member.calibration(self.calibration),
            )
            for member, view in zip(self.members, views.members, strict=True)
        ]
        return summarise(pool(drawn, views.places))

    def logits(self, views: Views) -> Tensor:
        """Pooled logits (2, L, B) before `calibration`, by scan rule and by slice rule."""
        pairs = zip(self.members, views.members, strict=True)
        return torch.cat([member.logits(view, self.samples) for member, view in pairs], 1)

    def unlikeness(self, views: Views) -> np.ndarray:
        """Unlikeness of scans to the training scans, (B,); above 1 a scan is unlike them.

        Mean over members of the ratio of score to threshold. Members without a likeness check are left out;
        NaN if no member has a check.
        """
        pairs = zip(self.members, views.members, strict=True)
        known = [one.likeness.scores(view) / one.likeness.threshold for one, view in pairs if one.likeness]
        return np.mean(known, axis=0) if known else np.full(views.features.n_scans, np.nan)

    def explain(self, views: Views, predictions: Predictions) -> Counterfactuals:
        """Calibrated scan probability without each slice, and without each run of positive slices."""
        return mean_counterfactuals(
            [
                counterfactuals(
                    member.head,
                    **member.sampled(view, self.samples),
                    slice_mean=predictions.slice_mean.round(decimals=DIGITS),  # as written to the files
                    places=places,
                    threshold=THRESHOLD,
                    calibration=member.calibration(self.calibration),
                )
                for member, view, places in zip(self.members, views.members, views.places, strict=True)
            ]
        )

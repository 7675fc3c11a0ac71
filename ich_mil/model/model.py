"""Trained model: frozen CNN, Gaussian-process head, calibration and provenance of a run or an ensemble.

In: the folder of a run, or of an ensemble of runs. Out: `TrainedModel`, which computes predictions from
prepared scans or features. An ensemble is the mixture of its members. Their posterior samples are pooled, so
that the uncertainty includes the spread between networks:

    E p = mean of the members' means        Var p = mean of their variances + variance of their means

Each sample passes through the Platt scaling of its member, then through that of the mixture, which is stored
in `ensemble.json`. The second step is needed because averages of calibrated probabilities are
under-confident. On held-out scans of the RSNA features of three CNN runs the log-loss is 0.230 without it and
0.221 with it (15 divisions into five folds, better in each).

Slice probabilities are filtered along z (`filtered`). On held-out CT-ICH scans and on phantoms the filter
raises the slice AUC and leaves the log-loss or lowers it (research/RESULTS.md, "Smoothing along z").

Shapes: B scans, n slices of a scan, L samples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.evaluate.deployment.out_of_distribution import Likeness
from ich_mil.files import digest
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.predict import Predictions, Sampled, pool, summarise
from ich_mil.heads.counterfactual import (
    Counterfactuals,
    ScanSamples,
    counterfactuals,
    mean_counterfactuals,
    scan_logits,
)
from ich_mil.heads.extras import ExtraSources
from ich_mil.heads.scan_head import ScanHead
from ich_mil.ledger import THRESHOLD
from ich_mil.model.predictions import DIGITS, Provenance, read_results
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.frozen import stored_features
from ich_mil.network.location import Location
from ich_mil.progress import say_once
from ich_mil.ranks import device
from ich_mil.sets.extras import Extras
from ich_mil.sets.features import FeatureSet, read_features
from ich_mil.sets.store import PreparedSet
from ich_mil.sets.views import Views

FILTER_MM = 5.0
"""Standard deviation in mm of the filter of slice probabilities along z."""


def filtered(slices: Tensor, positions: Tensor) -> Tensor:
    """Slice probabilities averaged along z, with weights exp(-d² / (2 · `FILTER_MM`²)) at distance d.

    Args:
        slices: (L, n) sampled probabilities of the slices of one scan.
        positions: (n,) mm along the scan, NaN where unknown; then the probabilities are returned as they are.
    """
    if bool(positions.isnan().any()):
        return slices
    away = (positions[:, None] - positions) / FILTER_MM
    return slices @ torch.softmax(-away.square() / 2, dim=1).to(slices).mT


@dataclass(frozen=True)
class Member:
    """A network with its head.

    Attributes:
        folder: folder of its run.
        cnn: frozen CNN; None for a run on public features.
        head: head with its calibration.
        calibration: for a member of an ensemble, that of the head, applied before that of the ensemble; None
            for a single run, or where the head is not calibrated.
        seed: seed of the samples.
        likeness: check of the likeness to the training scans; None where the run has none.
        location: location of bleeds within slices; None for a run without boxes.
    """

    folder: Path
    cnn: AttentionCnn | None
    head: ScanHead
    calibration: Calibration | None
    seed: int
    likeness: Likeness | None
    location: Location | None = None

    def calibration_then(self, joint: Calibration | None) -> Calibration | None:
        """Calibration of the head's logits: that of the member, followed by the `joint` one."""
        return self.calibration.then(joint) if self.calibration and joint else self.calibration or joint

    def logits(self, features: FeatureSet, samples: int) -> Tensor:
        """Sampled logits (2, L, B) of `scan_logits`, by scan rule and by slice rule, after `calibration`."""
        both = scan_logits(self.head.draw(features, samples, seed=self.seed)).cpu()
        return both if self.calibration is None else self.calibration.logits(both)


@dataclass(frozen=True)
class TrainedModel:
    """A finished run, or an ensemble of runs whose posterior samples are pooled.

    Attributes:
        folder: folder of the run or ensemble.
        members: networks with their heads; a single run has one.
        calibration: calibration of the head of a single run, or joint calibration of the pooled samples of an
            ensemble; None where there is none.
        provenance: identity of the model, stored with its results.
        samples: posterior samples per prediction, of each member.
        bootstrap: bootstrap resamples per interval.
        seed: seed of resamples and heatmaps.
    """

    folder: Path
    members: tuple[Member, ...]
    calibration: Calibration | None
    provenance: Provenance
    samples: int
    bootstrap: int
    seed: int

    def at_prevalence(self, share: float) -> Self:
        """The model with probabilities for scans of which a share, in (0, 1), is positive.

        Raises:
            ConfigError: a share that is no number between 0 and 1.
            ModelError: a model without a calibration of known prevalence.
        """
        if not (isinstance(share, Real) and 0 < share < 1):
            raise ConfigError(f"prevalence: must be a number between 0 and 1, got {share!r}")
        joint, members = self.calibration, self.members
        calibrations = [member.calibration for member in members] if joint is None else [joint]
        moved = [c.at_prevalence(share) for c in calibrations if c and c.prevalence is not None]
        if len(moved) < len(calibrations):
            raise ModelError(
                f"{self.folder}: the share of positive scans behind its calibration is unknown; train or "
                "recalibrate it with this version, or predict without a prevalence"
            )
        if joint is not None:
            (joint,) = moved
        else:
            members = tuple(replace(member, calibration=c) for member, c in zip(members, moved, strict=True))
        provenance = self.provenance
        method = f"{provenance.calibration}; moved to a share of {share:.3g} positive scans"
        weights = digest(provenance.weights.encode(), repr(share).encode())
        shares = [c.prevalence for c in calibrations if c and c.prevalence is not None]
        cut, new, old = (p / (1 - p) for p in (provenance.cut, share, sum(shares) / len(shares)))
        odds = cut * new / old
        return replace(
            self,
            members=members,
            calibration=joint,
            provenance=replace(
                provenance, weights=weights, calibration=method, prevalence=share, cut=odds / (1 + odds)
            ),
        )

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

    def _scans(
        self, views: Views
    ) -> Iterator[tuple[tuple[ScanSamples, ...], list[list[int] | None], Sampled]]:
        """Each scan: samples of each member, indices of the common slices, and pooled probabilities."""
        z, sizes = views.features.positions_mm, views.features.offsets.diff().tolist()
        positions = [None] * len(sizes) if z is None else z.split(sizes)
        pairs = zip(self.members, views.members, strict=True)
        drawn = [member.head.draw(view, self.samples, seed=member.seed) for member, view in pairs]
        calibrations = [member.calibration_then(self.calibration) for member in self.members]
        for b, draws in enumerate(zip(*drawn, strict=True)):
            indices = [None if common is None else common[b] for common in views.common]
            each = [draw.probabilities(c) for draw, c in zip(draws, calibrations, strict=True)]
            sampled = pool(each, indices)
            if (scan_z := positions[b]) is not None:
                sampled = sampled._replace(slices=filtered(sampled.slices, scan_z))
            yield draws, indices, sampled

    def predict(self, views: Views) -> Predictions:
        """Calibrated probabilities, with sampled uncertainty, of the scans and slices of `views.features`."""
        return summarise(sampled for *_, sampled in self._scans(views))

    def explain(self, views: Views) -> tuple[Predictions, Counterfactuals]:
        """As `predict`, and scan probabilities without each slice, run of positive slices, or other input."""
        calibrations = [member.calibration_then(self.calibration) for member in self.members]
        predictions, without = [], []
        for draws, indices, sampled in self._scans(views):
            predictions.append(summarise([sampled]))
            mean = predictions[-1].slice_mean.round(decimals=DIGITS)  # as written to the files
            members = [
                counterfactuals(draw, mean, threshold=THRESHOLD, indices=common, calibration=c)
                for draw, common, c in zip(draws, indices, calibrations, strict=True)
            ]
            without.append(mean_counterfactuals(members))
        return Predictions.join(predictions), Counterfactuals.join(without)

    def logits(self, views: Views) -> Tensor:
        """Pooled logits (2, L, B) before `calibration`, by scan rule and by slice rule."""
        pairs = zip(self.members, views.members, strict=True)
        return torch.cat([member.logits(view, self.samples) for member, view in pairs], 1)

    def unlikeness(self, views: Views) -> np.ndarray:
        """Unlikeness of scans to the training scans, (B,); above 1 a scan is unlike them.

        Mean over members of the ratio of score to threshold. Members without a likeness check are left out;
        NaN if no member has a check.
        """
        checks = zip((member.likeness for member in self.members), views.members, strict=True)
        known = [check.scores(view) / check.threshold for check, view in checks if check]
        return np.mean(known, axis=0) if known else np.full(views.features.n_scans, np.nan)


def read_extras(
    model: TrainedModel, sources: ExtraSources, scans: Sequence[str], prepared: PreparedSet | None = None
) -> Extras:
    """Read the inputs beside the slices that the user names; empty if there are none.

    Raises:
        ConfigError: inputs for a model of slices alone.
        DataError: inputs that cannot be used.
    """
    kinds = sorted({kind for member in model.members for kind in member.head.extras})
    if sources and not kinds:
        raise ConfigError(f"{model.folder}: predicts from slices alone; leave out requests and covariates")
    if not sources:
        if kinds:
            say_once(f"predicted from slices alone, though the model also takes: {', '.join(kinds)}")
        return Extras()
    return sources.read(scans, prepared)

"""Multimodal head of a run: `MultimodalMIL` on slices, sentences and covariates, with its calibration.

In: a `FeatureSet` with its `Extras`. Out: sampled probabilities of scans and slices, and scan probabilities
without single slices, sentences or covariates, in the form of the Gaussian-process heads (`ich_mil.gp`).

Shapes: L draws, B scans, N slices of all, n slices of one scan, D features.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from torch.special import ndtr

from ich_mil.data.features import FeatureSet
from ich_mil.errors import ModelError
from ich_mil.gp.aggregation import latent_logit, sampled_scan_logit
from ich_mil.gp.calibration import SLICE_RULE, Calibration
from ich_mil.gp.counterfactual import Counterfactuals
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.predict import Sampled
from ich_mil.gp.settings import HeadSettings
from ich_mil.multimodal.counterfactual import counterfactuals, probability
from ich_mil.multimodal.embedding import SentenceEmbedding
from ich_mil.multimodal.estimator import MultimodalMIL
from ich_mil.multimodal.modalities import Embed, Modalities
from ich_mil.multimodal.scan_draws import ScanDraws, scan_draws
from ich_mil.multimodal.settings import MultimodalReport, MultimodalSettings
from ich_mil.multimodal.storage import Stored, read_pair, write_pair

NAME, FORMAT = "head", "ich_mil.multimodal_head.1"
KEPT_SETTINGS = ("calibration", "calibration_folds", "seed")
"""Settings of `head` that apply to this family."""


class MultimodalHead:
    """Fitted model, embedding of sentences, and calibration.

    Attributes:
        model: the fitted model.
        modalities: its modalities.
        settings: method and folds of the calibration, and the seed.
        own: settings of the model.
        calibration: calibration of scans and slices; None: not calibrated. Its `rule` has no meaning here.
        report_: history of the fit; None after `load`.
    """

    report_: MultimodalReport | None = None

    def __init__(
        self,
        model: MultimodalMIL,
        modalities: Modalities,
        settings: HeadSettings,
        own: MultimodalSettings,
        calibration: Calibration | None = None,
    ) -> None:
        self.model, self.modalities = model, modalities
        self.settings, self.own, self.calibration = settings, own, calibration

    @property
    def x_mean(self) -> Tensor:
        """(D,) mean of the training slices."""
        return self.model.scalings_[0].mean

    @property
    def name(self) -> str:
        """Kind and size of the model, such as 'vMMIC (laplace), 8 slice features'."""
        sizes = [len(one.mean) for one in self.model.scalings_[1:]]
        parts = [f"{len(self.x_mean)} slice features"]
        for kind, size in zip(self.modalities.kinds[1:], sizes, strict=True):
            parts.append(f"{size} {kind}{' features' if kind == 'sentence' else ''}")
        return f"vMMIC ({self.own.method}), {', '.join(parts)}"

    @classmethod
    def fit(
        cls,
        learn: FeatureSet,
        settings: HeadSettings,
        own: MultimodalSettings,
        *,
        watch: FeatureSet | None = None,
        places: Tensor | None = None,
        embed: Embed | None = None,
        device: torch.device | str | None = None,
        samples: int = 1000,
    ) -> Self:
        """Fit and calibrate.

        Args:
            learn: training scans with their extras.
            settings: method and folds of the calibration, and the seed.
            own: settings of the model.
            watch: scans to calibrate on; None: held-out folds of `learn`, by patient.
            places: indices of the scans of `learn` to calibrate on, without `watch`; None: all.
            embed: features of sentences; None: a `SentenceEmbedding` of the training sentences.
            device: where to fit.
            samples: draws behind the calibration.

        Raises:
            DataError: input that cannot be used.
        """
        head = cls._fitted(learn, settings, own, embed, device)
        if settings.calibration == "none":
            return head
        if watch is not None:
            logits, labels = head.logits(watch, samples, seed=0), watch.labels
        else:
            logits, labels = head.held_out_logits(learn, samples, device=device), learn.labels
            if places is not None:
                logits, labels = logits[:, :, places], labels[places]
        head.calibration = Calibration.fit(
            logits[0], logits[1], labels, rule=Calibration.rule, method=settings.calibration
        )
        return head

    @classmethod
    def _fitted(
        cls,
        learn: FeatureSet,
        settings: HeadSettings,
        own: MultimodalSettings,
        embed: Embed | None,
        device: torch.device | str | None,
    ) -> Self:
        """Without calibration."""
        modalities = Modalities.fit(learn, text_features=own.text_features, seed=settings.seed, embed=embed)
        parameters = asdict(own)
        del parameters["text_features"]
        model = MultimodalMIL(**parameters, random_state=settings.seed, device=device)
        model.fit(*modalities.bags(learn), learn.labels)
        head = cls(model, modalities, settings, own)
        head.report_ = MultimodalReport.of(model, modalities.kinds)
        return head

    def held_out_logits(
        self, learn: FeatureSet, samples: int, *, device: torch.device | str | None = None
    ) -> Tensor:
        """`logits` (2, L, B) of the training scans, each by a head fitted to the other folds."""
        folds = folds_of(
            learn.labels, learn.patients, folds=self.settings.calibration_folds, seed=self.settings.seed
        )
        embed = self.modalities.embed
        given = None if isinstance(embed, SentenceEmbedding) else embed
        found = torch.empty(2, samples, learn.n_scans, dtype=torch.float64)
        for seen, held in folds:
            parts = [learn.select([learn.scans[b] for b in chosen]) for chosen in (seen, held)]
            head = self._fitted(parts[0], self.settings, self.own, given, device)
            found[:, :, list(held)] = head.logits(parts[1], samples, seed=0).cpu()
        return found

    def logits(self, features: FeatureSet, samples: int, *, seed: int) -> Tensor:
        """Sampled scan logits (2, L, B) before the calibration: of the model, and of the slices alone.

        The second row is by `SLICE_RULE`, for the calibration of slices.
        """
        both = [
            torch.cat([latent_logit(one.score, "probit"), sampled_scan_logit(one.slices, SLICE_RULE)], 1)
            for one in self._scans(features, samples, seed)
        ]
        return torch.stack(both, 2).permute(1, 0, 2).cpu()

    @torch.no_grad()
    def sample_probabilities(
        self, features: FeatureSet, samples: int, *, seed: int, calibration: Calibration | None
    ) -> Iterator[Sampled]:
        """Sampled probabilities of slices (L, n) and scan (L, 1), scan by scan."""
        for one in self._scans(features, samples, seed):
            scan = probability(one.score, calibration)
            if calibration is None:
                yield torch.sigmoid(one.slices), scan
            else:
                yield calibration.slices(one.slices, scan), scan

    @torch.no_grad()
    def counterfactuals(
        self,
        features: FeatureSet,
        slice_mean: Tensor,
        samples: int,
        *,
        seed: int,
        threshold: float,
        calibration: Calibration | None,
        places: Sequence[Sequence[int]] | None = None,
    ) -> Counterfactuals:
        """Scan probabilities without each slice, run, sentence, and without the covariates.

        Args:
            features: the scans.
            slice_mean: (N,) slice probabilities; only of the slices in `places`, if given.
            samples: as given to `sample_probabilities`, like seed and calibration.
            seed: see `samples`.
            threshold: smallest probability of a slice in a run.
            calibration: see `samples`.
            places: for each scan, indices of the slices to remove in turn; None: all slices.
        """
        asked = [range(size) for size in features.offsets.diff().tolist()] if places is None else places
        scans = self._scans(features, samples, seed)
        return counterfactuals(scans, slice_mean, asked, threshold, calibration)

    def coefficient_draws(self, samples: int) -> Tensor:
        """Draws (L, 1 + 2 D') of the coefficients of slices: a, b and β."""
        thin = self.model.posterior_.thinned(samples)
        return torch.cat([thin.inner[0], thin.outer[:, thin.columns.places[0]]], 1)

    @property
    def coefficient_mean(self) -> Tensor:
        """(1 + 2 D',) posterior mean of `coefficient_draws`."""
        inner, outer = self.model.posterior_.means
        return torch.cat([inner[0], outer[self.model.posterior_.columns.places[0]]])

    def evidence(self, x: Tensor, w: Tensor) -> Tensor:
        """Expected addition of slices to the score, Φ(a + x b) x β (L, n). Differentiable in x.

        Args:
            x: (n, D) raw features.
            w: (L, 1 + 2 D') from `coefficient_draws`.
        """
        z = self.model.scalings_[0].apply(x)
        a, b, beta = w.split([1, z.shape[1], z.shape[1]], dim=1)
        return ndtr(a + b @ z.mT) * (beta @ z.mT)

    def save(self, folder: Path) -> None:
        """Write the head to `folder`; a function of sentences other than the default is not stored."""
        embed = self.modalities.embed
        tensors, about = self.model.stored()
        about = about | {
            "covariates": list(self.modalities.covariates),
            "sentences": embed is not None,
            "words": list(embed.words) if isinstance(embed, SentenceEmbedding) else None,
            "head": {name: getattr(self.settings, name) for name in KEPT_SETTINGS},
            "own": asdict(self.own),
            "calibration": self.calibration and asdict(self.calibration),
        }
        tensors = tensors | {"fill": torch.tensor(self.modalities.fill)}
        if isinstance(embed, SentenceEmbedding):
            tensors |= {"idf": torch.tensor(embed.idf), "axes": torch.tensor(embed.axes)}
        write_pair(folder, NAME, Stored(tensors, about), FORMAT)

    @classmethod
    def load(cls, folder: Path, *, n_features: int | None = None, embed: Embed | None = None) -> Self:
        """Read what `save` wrote; it predicts the same to the bit.

        Args:
            folder: of the two files.
            n_features: expected number of slice features D; None: not checked.
            embed: the function of sentences, for a head that was fitted with one.

        Raises:
            ModelError: a file is missing, damaged or of another format; another number of features; the head
                was fitted with a function of sentences that is not given.
        """
        stored = read_pair(folder, NAME, FORMAT)
        path, (tensors, about) = folder / f"{NAME}.json", stored
        try:
            if about["words"] is not None:
                axes, idf = tensors["axes"].numpy(), tensors["idf"].numpy()
                embed = SentenceEmbedding(tuple(about["words"]), idf, axes)
            if about["sentences"] and embed is None:
                raise ModelError(f"{path}: was fitted with a function of sentences; load it with embed=")
            head = cls(
                MultimodalMIL.of_stored(stored, path),
                Modalities(
                    embed if about["sentences"] else None,
                    tuple(about["covariates"]),
                    tensors["fill"].numpy(),
                ),
                HeadSettings(family="multimodal", **about["head"]),
                MultimodalSettings(**about["own"]),
                about["calibration"] and Calibration(**about["calibration"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{path}: is not the description of a head ({error}); train it again") from error
        if n_features not in (None, len(head.x_mean)):
            raise ModelError(
                f"{path}: the head was trained on {len(head.x_mean)} features a slice, these have "
                f"{n_features}; use the features of the network it was trained with"
            )
        return head

    def _scans(self, features: FeatureSet, samples: int, seed: int) -> Iterator[ScanDraws]:
        return scan_draws(self.model, self.modalities, features, samples=samples, seed=seed)

"""Multimodal head of a run: `MultimodalMIL` on slices, sentences and covariates, with its calibration.

In: a `FeatureSet` with its `Extras`. Out: draws of each scan, as by Gaussian-process heads (`ich_mil.gp`).

Shapes: L draws, B scans, N slices of all, n slices of one scan, D features.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from ich_mil.errors import ModelError
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit_calibration import FOLDS, calibrating
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.counterfactual import scan_logits
from ich_mil.model_files import record
from ich_mil.multimodal.embedding import SentenceEmbedding
from ich_mil.multimodal.modalities import Embed, Modalities
from ich_mil.multimodal.scan_draws import ScanDraws, scan_draws
from ich_mil.multimodal.settings import MultimodalSettings
from ich_mil.multimodal.storage import Stored, read_pair, write_pair
from ich_mil.ranks import device
from ich_mil.sets.features import FeatureSet

if TYPE_CHECKING:
    from ich_mil.multimodal.estimator import MultimodalMIL

NAME, FORMAT = "head", "ich_mil.multimodal_head.2"
SAMPLES = 1000
"""Draws behind the calibration."""
KEPT_SETTINGS = ("calibration", "random_state")
"""Settings of `head` that apply to this family."""


@dataclass(frozen=True)
class MultimodalReport:
    """History of a fit.

    Attributes:
        acceptance: mean probability of acceptance of the chains; None where none ran.
        message: the fit in one sentence.
    """

    acceptance: float | None
    message: str

    @classmethod
    def of(cls, model: "MultimodalMIL", kinds: Sequence[str]) -> Self:
        """Report of a fitted model."""
        used = f"vMMIC with {', '.join(kinds)}"
        if model.acceptance_ is None:
            return cls(None, f"{used}: draws of the normal approximation, too few gradients for chains")
        return cls(model.acceptance_, f"{used}: {model.acceptance_:.0%} of the trajectories accepted")


class MultimodalHead:
    """Fitted model, embedding of sentences, and calibration: a `ScanHead` (`ich_mil.heads.scan_head`).

    Attributes:
        model: the fitted model.
        modalities: its modalities.
        settings: calibration and random_state.
        own: settings of the model.
        calibration: calibration of scans and slices; None: not calibrated. Its `rule` has no meaning here.
    """

    title = "multimodal head"
    report_: MultimodalReport

    def __init__(
        self,
        model: "MultimodalMIL",
        modalities: Modalities,
        settings: HeadSettings,
        own: MultimodalSettings,
        calibration: Calibration | None = None,
    ) -> None:
        self.model, self.modalities = model, modalities
        self.settings, self.own, self.calibration = settings, own, calibration
        self.extras, self.x_mean = modalities.kinds[1:], model.scalings_[0].mean

    @property
    def name(self) -> str:
        """Method and sizes, such as 'vMMIC, 8 slice features'."""
        sizes = [len(scaling.mean) for scaling in self.model.scalings_[1:]]
        contents = [f"{len(self.x_mean)} slice features"]
        for kind, size in zip(self.extras, sizes, strict=True):
            contents.append(f"{size} {kind}{' features' if kind == 'sentence' else ''}")
        return f"vMMIC, {', '.join(contents)}"

    @classmethod
    def fit(
        cls,
        learn: FeatureSet,
        settings: HeadSettings,
        own: MultimodalSettings,
        *,
        watch: FeatureSet | None = None,
        mixed: bool = False,
        embed: Embed | None = None,
    ) -> Self:
        """As `ScanHead.fit`; `embed` gives features of sentences in place of a `SentenceEmbedding`."""
        head = cls._fitted(learn, settings, own, embed)
        if settings.calibration == "none":
            return head
        if watch is not None:
            logits, labels = scan_logits(head.draw(watch, SAMPLES, seed=0)), watch.labels
        else:
            used = calibrating(learn.offsets, learn.labels) if mixed else slice(None)
            logits, labels = head.held_out_logits(learn, SAMPLES)[:, :, used], learn.labels[used]
        head.calibration = Calibration.fit(logits[0], logits[1], labels, rule=Calibration.rule)
        return head

    @classmethod
    def _fitted(
        cls, learn: FeatureSet, settings: HeadSettings, own: MultimodalSettings, embed: Embed | None
    ) -> Self:
        """Without calibration."""
        modalities = Modalities.fit(learn, seed=settings.random_state, embed=embed)
        from ich_mil.multimodal.estimator import MultimodalMIL  # imports scikit-learn

        model = MultimodalMIL(**asdict(own), random_state=settings.random_state, device=device())
        model.fit(*modalities.bags(learn), learn.labels)
        head = cls(model, modalities, settings, own)
        head.report_ = MultimodalReport.of(model, modalities.kinds)
        return head

    def held_out_logits(self, learn: FeatureSet, samples: int) -> Tensor:
        """`scan_logits` (2, L, B) of the training scans, each by a head fitted to the other folds."""
        folds = folds_of(learn.labels, learn.patients, folds=FOLDS, seed=self.settings.random_state)
        embed = self.modalities.embed
        given = None if isinstance(embed, SentenceEmbedding) else embed
        logits = torch.empty(2, samples, learn.n_scans, dtype=torch.float64)
        for seen, held in folds:
            training, test = (learn.select([learn.scans[b] for b in fold]) for fold in (seen, held))
            head = self._fitted(training, self.settings, self.own, given)
            logits[:, :, list(held)] = scan_logits(head.draw(test, samples, seed=0)).cpu()
        return logits

    def draw(self, features: FeatureSet, samples: int, *, seed: int) -> Iterator[ScanDraws]:
        """Draws of the posterior, scan by scan."""
        return scan_draws(self.model, self.modalities, features, samples=samples, seed=seed)

    def save(self, folder: Path) -> None:
        """Write the head to `folder`; a function of sentences other than the default is not stored."""
        embed = self.modalities.embed
        tensors, metadata = self.model.stored()
        metadata = metadata | {
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
        write_pair(folder, NAME, Stored(tensors, metadata), FORMAT)

    @classmethod
    def load(cls, folder: Path, *, n_features: int | None = None, embed: Embed | None = None) -> Self:
        """As `ScanHead.load`; `embed` is the function of sentences of a head that was fitted with one."""
        from ich_mil.multimodal.estimator import MultimodalMIL

        stored = read_pair(folder, NAME, FORMAT)
        path, (tensors, metadata) = folder / f"{NAME}.json", stored
        try:
            if metadata["words"] is not None:
                axes, idf = tensors["axes"].numpy(), tensors["idf"].numpy()
                embed = SentenceEmbedding(tuple(metadata["words"]), idf, axes)
            if metadata["sentences"] and embed is None:
                raise ModelError(f"{path}: was fitted with a function of sentences; load it with embed=")
            calibration, covariates = metadata["calibration"], tuple(metadata["covariates"])
            head = cls(
                MultimodalMIL.of_stored(stored, path),
                Modalities(embed if metadata["sentences"] else None, covariates, tensors["fill"].numpy()),
                record(HeadSettings, metadata["head"], path),
                record(MultimodalSettings, metadata["own"], path),
                None if calibration is None else record(Calibration, calibration, path),
            )
            filled = [len(scaling.mean) for scaling in head.model.scalings_[1:]][-1:] if covariates else [0]
            if len(head.model.scalings_) != len(head.modalities.kinds) or [len(tensors["fill"])] != filled:
                raise ValueError("its modalities and tensors do not belong together")
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read as a head ({error}); train it again") from error
        if n_features not in (None, len(head.x_mean)):
            raise ModelError(
                f"{path}: the head was trained on {len(head.x_mean)} features a slice, these have "
                f"{n_features}; use the features of the network it was trained with"
            )
        return head

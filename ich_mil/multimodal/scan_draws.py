"""Draws of the posterior by scan: logits of slices, score of the scan, and the addition of each instance.

The score of a slice is the probability of a scan that consists of this slice alone; for one draw of the
coefficients, with p = P(primary) and effect c = x β,

    (1 - p) Φ(α) + p Φ(α + c)

Shapes: L draws, n slices of one scan.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.special import log_ndtr, ndtr

from ich_mil.errors import DataError
from ich_mil.gp.aggregation import latent_logit
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.predict import FURTHEST, Sampled
from ich_mil.kernels.rbf_gram import measurable
from ich_mil.multimodal.inputs import Scaling, rows_of
from ich_mil.multimodal.layout import Rows, chunks_of
from ich_mil.multimodal.modalities import Modalities
from ich_mil.multimodal.predict import draw
from ich_mil.sets.extras import ExtraInstance
from ich_mil.sets.features import FeatureSet

if TYPE_CHECKING:
    from ich_mil.multimodal.estimator import MultimodalMIL


class Extra(NamedTuple):
    """A sentence, or the covariates, of one scan.

    Attributes:
        kind: `sentence` or `covariates`.
        text: the sentence, or the values.
        primary: (L,) P(primary).
        part: (L,) its addition δ x β to the score.
    """

    kind: str
    text: str
    primary: Tensor
    part: Tensor


@dataclass(frozen=True)
class ScanDraws:
    """Draws of one scan: `ich_mil.heads.counterfactual.ScanSamples`.

    What is removed is taken from the score of the scan in each draw.

    Attributes:
        logits: (L, n) logits of the slices.
        score: (L, 1) score of the scan, whose probability is Φ(score).
        terms: (L, n) term δ x β of each slice in the score.
        extras: sentences in their order, then covariates.
    """

    logits: Tensor
    score: Tensor
    terms: Tensor
    extras: list[Extra]

    @property
    def scan_logit(self) -> Tensor:
        """Scan logit (L, 1)."""
        return latent_logit(self.score, "probit")

    def probabilities(self, calibration: Calibration | None) -> Sampled:
        """Calibrated samples of the probabilities; uncalibrated with None."""
        if calibration is None:
            return Sampled(torch.sigmoid(self.logits), ndtr(self.score))
        scan = calibration.scan(self.scan_logit)
        return Sampled(calibration.slices(self.logits, scan), scan)

    def without(self, first: int, last: int) -> Tensor:
        """Scan logit (L, 1) without the slices `first` to `last`."""
        return latent_logit(self.score - self.terms[:, first : last + 1].sum(1, keepdim=True), "probit")

    def without_extras(self, probability: Callable[[Tensor], float], /) -> list[ExtraInstance]:
        """Each sentence in turn, and the covariates."""
        return [
            ExtraInstance(
                extra.kind,
                extra.text,
                float(extra.primary.mean()),
                probability(latent_logit(self.score - extra.part[:, None], "probit")),
            )
            for extra in self.extras
        ]


@torch.no_grad()
def scan_draws(
    model: "MultimodalMIL", modalities: Modalities, features: FeatureSet, *, samples: int, seed: int
) -> Iterator[ScanDraws]:
    """L = `samples` draws of each scan; `seed` is that of δ.

    Raises:
        DataError: features that cannot be used, with the id of the scan.
    """
    _check_slices(features, model.scalings_[0])
    posterior = model.posterior_.thinned(samples)
    alpha = posterior.outer[:, :1]  # (L, 1)
    rows, _, _ = rows_of(*modalities.bags(features), model.scalings_)
    rows = [Rows(*(tensor.to(alpha.device) for tensor in modality)) for modality in rows]
    chunks = chunks_of(rows, features.n_scans, rows=1)  # a scan each
    for scan, drawn in zip(features.scans, draw(posterior, chunks, seed=seed), strict=True):
        ordered = []  # of each modality: P(primary), δ and x β, in the order of the rows
        for block, *several in zip(
            drawn.chunk.blocks, drawn.primary, drawn.delta, drawn.effects, strict=True
        ):
            order = None if block is None else block.rows.argsort()
            ordered.append([tensor[:, order] for tensor in several if tensor is not None])
        p, delta, effect = ordered[0]  # (L, n)
        yes, no = (
            torch.logaddexp(
                torch.log1p(-p) + log_ndtr(sign * alpha), p.log() + log_ndtr(sign * (alpha + effect))
            )
            for sign in (1, -1)
        )
        extras = [
            Extra(kind, text, several[0][:, k], several[1][:, k] * several[2][:, k])
            for kind, several in zip(modalities.kinds[1:], ordered[1:], strict=True)
            if several
            for k, text in enumerate(modalities.texts(kind, features, scan))
        ]
        yield ScanDraws(yes - no, drawn.score, delta * effect, extras)


def _check_slices(features: FeatureSet, scaling: Scaling) -> None:
    """Raise `DataError` for slices of another width, or far beyond the training slices."""
    if features.x.shape[1] != len(scaling.mean):
        raise DataError(f"the head takes {len(scaling.mean)} features a slice, got {features.x.shape[1]}")
    x, scaling = features.x.double(), Scaling(scaling.mean.cpu(), scaling.deviation.cpu(), scaling.names)
    bad = (~(measurable(x) & (scaling.apply(x).abs() <= FURTHEST).all(1))).nonzero()
    if len(bad):
        n = int(bad[0])
        b = int(torch.searchsorted(features.offsets, n, right=True)) - 1
        raise DataError(
            f"scan {features.scans[b]!r}: a feature of slice {n - int(features.offsets[b])} is not finite, "
            f"or lies beyond {FURTHEST:.0e} training deviations; correct it, or leave the slice out"
        )

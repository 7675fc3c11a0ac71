"""Modalities of the scans of a run: slices, then sentences and covariates if the training scans have them.

In: a `FeatureSet` with its `Extras`. Out: features and scan index of the rows of each modality, as
`MultimodalMIL` takes them. A covariate that is unknown takes the mean of the training scans; a scan of which
all are unknown lacks the modality.

Shapes: B scans, N_m rows and D_m features of modality m, K covariates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.multimodal.embedding import SentenceEmbedding
from ich_mil.sets.features import FeatureSet

Embed = Callable[[Sequence[str]], np.ndarray]
"""Features (N, D) of sentences."""


@dataclass(frozen=True)
class Modalities:
    """Modalities of a head.

    Attributes:
        embed: features of sentences; None: no sentences.
        covariates: names of the covariates; empty: none.
        fill: (K,) means of the covariates in the training scans.
    """

    embed: Embed | None
    covariates: tuple[str, ...]
    fill: np.ndarray

    @classmethod
    def fit(cls, learn: FeatureSet, *, seed: int, embed: Embed | None = None) -> Self:
        """Modalities of the training scans; without `embed`, a `SentenceEmbedding` of their sentences."""
        sentences = [sentence for scan in learn.scans for sentence in learn.extras.sentences.get(scan, ())]
        if sentences and embed is None:
            embed = SentenceEmbedding.fit(sentences, seed=seed)
        table = _table(learn)
        known = table.columns[table.notna().any()]
        fill = table[known].mean().to_numpy(np.float64)
        return cls(embed if sentences else None, tuple(map(str, known)), fill)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each modality."""
        sentences, covariates = self.embed is not None, bool(self.covariates)
        return ("slice", *["sentence"] * sentences, *["covariates"] * covariates)

    def bags(self, features: FeatureSet) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Features (N_m, D_m) and scan index (N_m,) of the rows of each modality.

        Raises:
            DataError: a table without one of the covariates of the fit.
        """
        index = np.arange(features.n_scans)
        X = [features.x.double().numpy()]
        bags = [np.repeat(index, features.offsets.diff().numpy())]
        if self.embed is not None:
            by_scan = [features.extras.sentences.get(scan, ()) for scan in features.scans]
            X.append(np.asarray(self.embed([text for texts in by_scan for text in texts]), np.float64))
            bags.append(np.repeat(index, list(map(len, by_scan))))
        if self.covariates:
            table = _table(features)
            if len(table.columns) and (missing := [name for name in self.covariates if name not in table]):
                raise DataError(
                    f"the table of covariates lacks {', '.join(missing)}, which the head was trained with; "
                    "add the column, with empty fields where it is not known"
                )
            values = table.reindex(columns=list(self.covariates)).to_numpy(np.float64)
            known = ~np.isnan(values).all(1)
            X.append(np.where(np.isnan(values), self.fill, values)[known])
            bags.append(index[known])
        return X, bags

    def texts(self, kind: str, features: FeatureSet, scan: str) -> Sequence[str]:
        """Description of each instance of a scan."""
        if kind == "sentence":
            return features.extras.sentences[scan]
        values = features.extras.covariates[scan]
        known = [name for name in self.covariates if not np.isnan(values[name])]
        return [", ".join(f"{name} {values[name]:g}" for name in known)]


def _table(features: FeatureSet) -> pd.DataFrame:
    """Covariates of the scans, in their order; NaN where unknown."""
    known = features.extras.covariates
    return pd.DataFrame([dict(known.get(scan, {})) for scan in features.scans], index=features.scans)

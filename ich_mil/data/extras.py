"""Inputs of scans beside their slices: sentences about the scan, and covariates such as age.

`ich_mil.multimodal.extras` reads them; a `FeatureSet` carries them to the head.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import pandas as pd

from ich_mil.files import digest


@dataclass(frozen=True)
class Extras:
    """Sentences and covariates by scan id. A scan may lack either.

    Attributes:
        sentences: sentences of the request or report of each scan.
        covariates: index scan id, a column of numbers for each covariate; NaN where unknown.
    """

    sentences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    covariates: pd.DataFrame = field(default_factory=pd.DataFrame)

    def __or__(self, other: "Extras") -> Self:
        """The extras of two sets of scans together."""
        tables = [one for one in (self.covariates, other.covariates) if len(one)]
        return type(self)(
            {**self.sentences, **other.sentences}, pd.concat(tables) if tables else self.covariates
        )

    def __bool__(self) -> bool:
        """Whether any scan has extras."""
        return bool(self.sentences) or len(self.covariates) > 0

    @property
    def digest(self) -> str:
        """Digest of all values; '' without any."""
        if not self:
            return ""
        return digest(repr(sorted(self.sentences.items())).encode(), self.covariates.to_csv().encode())

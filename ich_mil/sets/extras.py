"""Inputs of scans beside their slices: sentences about the scan, and covariates such as age.

`ich_mil.heads.extras` reads them; a `FeatureSet` carries them to the head.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from ich_mil.files import digest


@dataclass(frozen=True)
class Extras:
    """Sentences and covariates by scan id. A scan may lack either.

    Attributes:
        sentences: sentences of the request or report of each scan.
        covariates: numbers of each scan by name; NaN where unknown.
    """

    sentences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    covariates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __or__(self, other: "Extras") -> Self:
        """The extras of two sets of scans together."""
        return type(self)({**self.sentences, **other.sentences}, {**self.covariates, **other.covariates})

    def __bool__(self) -> bool:
        """Whether any scan has extras."""
        return bool(self.sentences or self.covariates)

    @property
    def digest(self) -> str:
        """Digest of all values; '' without any."""
        values = [sorted(self.sentences.items()), sorted((s, {**v}) for s, v in self.covariates.items())]
        return digest(repr(values).encode()) if self else ""


@dataclass(frozen=True)
class ExtraInstance:
    """A sentence, or the covariates, of a predicted scan (`ich_mil.multimodal`).

    Attributes:
        kind: `sentence` or `covariates`.
        text: the sentence, or the values.
        primary: probability that it counts.
        scan_without: scan probability without it.
    """

    kind: str
    text: str
    primary: float
    scan_without: float

"""Input of the detailed analyses: one scored set of a protocol with the scores of every model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.evaluate.scores import Scores
from ich_mil.files import write_bytes, write_csv
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.labels import name_some
from ich_mil.sets.layouts.cq500 import read_cq500_findings
from research.reproduce.file_names import file_stem
from research.reproduce.protocol import ProtocolConfig


@dataclass(frozen=True)
class ScoredSet:
    """One scored set, its scores with the first seed, and the output folder.

    Attributes:
        name: name of the scored set.
        main: title of the main head.
        scores: scores of each model by title; scans in the order of `bags`.
        bags: the scans.
        home: scans of the training site with scores of the main head, from a fit that has not seen them; None
            if the scored set is that site.
        findings: path of `reads.csv` of CQ500, or None.
        ledger: ledger of the scans, if they were read from DICOM files.
        folder: folder for CSVs and figures.
        config: the protocol.
    """

    name: str
    main: str
    scores: Mapping[str, Scores]
    bags: FeatureSet
    home: tuple[FeatureSet, Scores] | None
    findings: Path | None
    ledger: pd.DataFrame | None
    folder: Path
    config: ProtocolConfig

    @property
    def labels(self) -> np.ndarray:
        """(B,) labels."""
        return self.bags.labels.numpy()

    @property
    def probability(self) -> np.ndarray:
        """(B,) scan probability of the main head."""
        return known(self.scores[self.main].scan)

    @property
    def std(self) -> np.ndarray:
        """(B,) standard deviation of the scan probability of the main head."""
        return known(self.scores[self.main].scan_std)

    @property
    def seed(self) -> int:
        """Seed of resamples and draws."""
        return self.config.seeds[0]

    @property
    def resampling(self) -> dict[str, int]:
        """Seed and number of resamples, as keyword arguments for the functions of `ich_mil.evaluate`."""
        return {"seed": self.seed, "resamples": self.config.resamples}

    def table(self, frame: pd.DataFrame, name: str) -> pd.DataFrame:
        """Write a table as CSV and return it."""
        write_csv(self.folder / f"{file_stem(self.name)}_{name}.csv", frame)
        return frame

    def figure(self, png: bytes, name: str) -> str:
        """Write a figure and return its path relative to the report."""
        path = self.folder / f"{file_stem(self.name)}_{name}.png"
        write_bytes(path, png)
        return f"{self.folder.name}/{path.name}"

    @property
    def of_readers(self) -> pd.DataFrame | None:
        """Findings of the CQ500 readers, in the order of the scans. `DataError` if a scan has no row."""
        if self.findings is None:
            return None
        table = read_cq500_findings(self.findings)
        missing = sorted(set(self.bags.scans) - set(table.index))
        if missing:
            raise DataError(
                f"{self.findings}: no row for {len(missing)} scans: {name_some(missing)}; add a row for each"
            )
        return table.loc[self.bags.scans]


def known(scores: np.ndarray | None) -> np.ndarray:
    """Scores of a head, which gives all of them."""
    assert scores is not None
    return scores

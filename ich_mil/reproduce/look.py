"""One scored set of a protocol and what every model said of it: what the analyses look at.

In: scores of the first seed. Out: a `Look`, which also knows where tables and figures go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ich_mil.data.cq500_reads import read_cq500_findings
from ich_mil.data.features import FeatureSet
from ich_mil.data.labels import name_some
from ich_mil.errors import DataError
from ich_mil.files import file_stem, write_bytes, write_text
from ich_mil.reproduce.protocol import ProtocolConfig
from ich_mil.reproduce.scoring import Scored


@dataclass(frozen=True)
class Look:
    """What is looked at.

    Attributes:
        name: of the scored set.
        main: title of the main head.
        scored: what each model said with the first seed, by title, scans in the order of `bags`.
        bags: the scans.
        home: scans of the training site and what the main head said of each, by a fit that has not seen it;
            None where this is that site.
        findings: CQ500's `reads.csv`, or None.
        ledger: of the scans, where they were read from DICOM files.
        folder: where CSVs and figures go.
        config: the protocol.
    """

    name: str
    main: str
    scored: Mapping[str, Scored]
    bags: FeatureSet
    home: tuple[FeatureSet, Scored] | None
    findings: Path | None
    ledger: pd.DataFrame | None
    folder: Path
    config: ProtocolConfig

    @property
    def labels(self) -> np.ndarray:
        """(B,)."""
        return self.bags.labels.numpy()

    @property
    def probability(self) -> np.ndarray:
        """(B,) of the main head."""
        return self.scored[self.main].scan

    @property
    def seed(self) -> int:
        """Of resamples and draws."""
        return self.config.seeds[0]

    @property
    def resampling(self) -> dict[str, int]:
        """Seed and number of resamples, as the functions of `ich_mil.evaluate` take them."""
        return {"seed": self.seed, "resamples": self.config.resamples}

    def table(self, frame: pd.DataFrame, name: str) -> pd.DataFrame:
        """Write a table, and give it back."""
        write_text(self.folder / f"{file_stem(self.name)}_{name}.csv", frame.to_csv(index=False))
        return frame

    def figure(self, png: bytes, name: str) -> str:
        """Write a picture; its path from the report."""
        path = self.folder / f"{file_stem(self.name)}_{name}.png"
        write_bytes(path, png)
        return f"{self.folder.name}/{path.name}"

    @property
    def of_readers(self) -> pd.DataFrame | None:
        """What CQ500's readers said, in the order of the scans. `DataError` for a scan without a row."""
        if self.findings is None:
            return None
        table = read_cq500_findings(self.findings)
        missing = sorted(set(self.bags.scans) - set(table.index))
        if missing:
            raise DataError(
                f"{self.findings}: no row for {len(missing)} scans: {name_some(missing)}; add a row for each"
            )
        return table.loc[self.bags.scans]

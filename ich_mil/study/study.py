"""One study in memory: the head CT series that was chosen, as Hounsfield units, with its geometry and ledger.

Made from DICOM files by `ich_mil.sets.preparation.read.read_study`, or from a prepared set by
`ich_mil.sets.preparation.record.prepared_study`.

Shapes: n slices of H x W pixels.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.ledger import LedgerEntry
from ich_mil.study.files.archive import unpacked
from ich_mil.study.files.header import slice_file
from ich_mil.study.geometry.planes import Edges, edges_of


@dataclass(frozen=True)
class Study:
    """Slices of one study, lowest first.

    Attributes:
        id: StudyInstanceUID, or the scan id of a data set.
        patient: pseudonymous patient key; the id where the files have no PatientID.
        hu: (n, H, W) int16 Hounsfield units.
        rows: for each slice, `sources` (paths below `root`, with frames), `sops` (SOP instance UIDs of the
            sources), `sop` and `orientation` of the middle source, `position_mm`, `corrections` (ledger
            codes), `content` (a digest of the pixels).
        pixel_mm: spacing of rows and of columns, mm; 0 where unknown.
        ledger: refusals, corrections and choices of its files. It says whether the study is whole; a copy
            with other pixels or fewer slices has the ledger of the files still.
        root: folder of the DICOM files, or a ZIP file with them (`on_disk`).
        folder: folder below `root` that holds files of this study alone; '' where there is none.
    """

    id: str
    patient: str
    hu: np.ndarray
    rows: Sequence[dict[str, Any]]
    pixel_mm: tuple[float, float]
    ledger: tuple[LedgerEntry, ...]
    root: Path
    folder: str = ""

    def __post_init__(self) -> None:
        """Raise `DataError` unless `hu` is (n, H, W) int16, n the number of `rows`; make it contiguous."""
        if self.hu.ndim != 3 or self.hu.dtype != np.int16 or len(self.hu) != len(self.rows):
            raise DataError(
                f"hu must be (n, H, W) int16 Hounsfield units for {len(self.rows)} rows, got {self.hu.dtype} "
                f"of shape {self.hu.shape}; round other numbers, and keep one row for each slice"
            )
        object.__setattr__(self, "hu", np.ascontiguousarray(self.hu))

    def __repr__(self) -> str:
        return (
            f"Study(id={self.id!r}, folder={self.folder!r}, hu {self.hu.shape} {self.hu.dtype}, "
            f"pixel_mm={self.pixel_mm}, {len(self.ledger)} ledger entries)"
        )

    @property
    def slices(self) -> pd.DataFrame:
        """One row per slice: sop, position_mm, position (0 lowest, 1 highest), corrections, content."""
        table = pd.DataFrame(
            [{name: row[name] for name in ("sop", "position_mm", "content")} for row in self.rows]
        )
        low, span = table.position_mm.iloc[0], float(np.ptp(table.position_mm))
        table["position"] = (table.position_mm - low) / span if span else 0.5
        table["corrections"] = ["|".join(row["corrections"]) for row in self.rows]
        return table.round({"position_mm": 3, "position": 5})

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Median distance of slices, spacing of rows and of columns, mm; 0 where unknown."""
        steps = np.diff([row["position_mm"] for row in self.rows])
        return (float(median(steps)) if len(steps) else 0.0, *self.pixel_mm)

    @property
    def edges(self) -> list[Edges | None]:
        """Sides of the patient at the edges of each slice; None where the orientation is unknown."""
        return [edges_of(row["orientation"]) for row in self.rows]

    @property
    def files(self) -> list[Path]:
        """DICOM files, lowest slice first; a multi-frame file is listed once."""
        names = (name for row in self.rows for name in row["sources"])
        return list(dict.fromkeys(slice_file(self.root, name)[0] for name in names))

    @contextmanager
    def on_disk(self) -> Iterator[Self]:
        """The study with its `files` below a folder: those in a ZIP are unpacked while the block runs.

        Raises:
            DataError: the ZIP cannot be unpacked any more.
        """
        names = {path.relative_to(self.root).as_posix() for path in self.files}
        with unpacked(self.root, names) as root:
            yield replace(self, root=root)

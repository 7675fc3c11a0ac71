"""Labels of RSNA 2019: `stage_2_train.csv`, six rows an image, and `submission.csv` of the same form.

In: a table with columns `ID,Label`, where ID is `<image>_<kind>`. Out: for each image the rows that the table
has and their labels, as bits of two numbers. The table has 4,516,842 rows, so it is read row by row: memory
grows with the 752,803 images.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ich_mil.errors import DataError
from ich_mil.files import CsvRows, whole_file
from ich_mil.sets.labels import name_some, table_rows

ANY = "any"
KINDS = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural", ANY)
"""Targets of the challenge, in the order of its files."""
COLUMNS = ("ID", "Label")
_BIT = {kind: 1 << index for index, kind in enumerate(KINDS)}
_ALL = (1 << len(KINDS)) - 1


@dataclass(frozen=True)
class RsnaLabels:
    """Labels by image.

    Attributes:
        path: the table.
        rows: for each image a number whose low six bits are its labels, by `KINDS`; the next six mark
            the kinds that have a row.
        repeats: how often an image is listed, if more than once.
    """

    path: Path
    rows: dict[str, int]
    repeats: dict[str, int]

    def label(self, image: str, kind: str) -> int | None:
        """Label 0 or 1 of a kind; None without its row."""
        row = self.rows.get(image, 0)
        return int(row & _BIT[kind] > 0) if (row >> len(KINDS)) & _BIT[kind] else None

    def positive(self, image: str) -> list[str]:
        """Kinds with label 1."""
        return [kind for kind in KINDS if self.rows[image] & _BIT[kind]]

    def without(self, kind: str) -> Iterator[str]:
        """Images that lack the row of a kind."""
        return (image for image, row in self.rows.items() if not (row >> len(KINDS)) & _BIT[kind])

    def matrix(self, images: Iterable[str]) -> np.ndarray:
        """Labels (n, 6) of images, in the order of `KINDS`. `DataError`: an image lacks the row of a kind."""
        rows = np.array([self.rows[image] for image in images], dtype=np.int64)
        if (rows >> len(KINDS) != _ALL).any():
            for kind in KINDS:
                if lacking := list(self.without(kind)):
                    raise DataError(
                        f"{self.path}: {len(lacking)} images lack the row {kind!r}: {name_some(lacking)}; "
                        f"an image has six rows: {', '.join(KINDS)}"
                    )
        return (rows[:, None] >> np.arange(len(KINDS))) & 1


def is_rsna_table(path: Path) -> bool:
    """Whether the header of a text file is that of RSNA 2019."""
    with path.open("rb") as file:
        header = file.readline(200).decode("utf-8-sig", "replace")
    return [name.strip().casefold() for name in header.split(",")] == [name.casefold() for name in COLUMNS]


def read_rsna_labels(path: Path) -> RsnaLabels:
    """Read the table.

    Raises:
        DataError: no table of this form, or an image with two labels of a kind.
    """
    rows: dict[str, int] = {}
    repeats: dict[str, int] = {}
    clash: dict[str, None] = {}  # a set in order
    for line, (name, label) in table_rows(path, COLUMNS):
        image, _, kind = name.rpartition("_")
        if not image or kind not in _BIT:
            raise DataError(
                f"{path}: line {line}: ID must be ID_<image>_<kind>, got {name!r}; kinds: {', '.join(KINDS)}"
            )
        if label not in ("0", "1"):
            raise DataError(f"{path}: line {line}: Label must be 0 or 1, got {label!r}")
        old, bit = rows.get(image, 0), _BIT[kind]
        known = bit << len(KINDS)
        if old & known:
            if (old & bit > 0) != (label == "1"):
                clash[image] = None
            if kind == ANY:
                repeats[image] = repeats.get(image, 1) + 1
        else:
            rows[image] = old | known | (bit if label == "1" else 0)
    if clash:
        named = name_some(list(clash))
        raise DataError(f"{path}: images labelled both 0 and 1: {named}; keep one row of each kind")
    return RsnaLabels(path, rows, repeats)


def write_submission(path: Path, images: Iterable[str], probability: np.ndarray) -> None:
    """Write probabilities (n, 6) of images as `submission.csv` of the challenge: ID,Label."""
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = CsvRows(file, COLUMNS)
        for image, values in zip(images, probability.tolist(), strict=True):
            for kind, p in zip(KINDS, values, strict=True):
                table.write((f"{image}_{kind}", f"{p:.6f}"))

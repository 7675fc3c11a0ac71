"""Boxes around bleeds in single slices: `boxes.csv` beside the labels of a set of layout `slices`.

Columns `slice,x,y,width,height`: centre and size as fractions of the picture (YOLO), one row per box; further
columns, such as the kind of bleed, are ignored. A slice with a row counts as completely boxed.

Legend: `b` boxes of a slice, `H, W` pixels.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from ich_mil.errors import DataError
from ich_mil.sets.labels import read_label_csv

BOXES = "boxes.csv"
PLACE = ("x", "y", "width", "height")

Boxes = Mapping[str, np.ndarray]
"""Boxes (b, 4) of each slice that has any: left, top, right, bottom as fractions of the picture."""


def read_boxes(root: Path) -> Boxes:
    """Boxes of the slices below `root`; empty where there is no `boxes.csv`.

    Raises:
        DataError: a column is missing, or a value is no fraction.
    """
    path = root / BOXES
    if not path.is_file():
        return {}
    table = read_label_csv(path, ["slice", *PLACE])
    values = table[list(PLACE)].apply(pd.to_numeric, errors="coerce")
    if (wrong := ~((values >= 0) & (values <= 1)).all(axis=1)).any():
        line = table.index[wrong][0]
        raise DataError(
            f"{path}: line {line + 2}: {', '.join(PLACE)} must be fractions of the picture, 0 to 1"
        )
    centre, half = values[["x", "y"]].to_numpy(), values[["width", "height"]].to_numpy() / 2
    edges = np.hstack([centre - half, centre + half])
    return {str(name): edges[rows] for name, rows in table.groupby("slice").indices.items()}

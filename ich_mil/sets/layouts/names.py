"""Names of the layouts of data sets."""

from typing import Literal

SiteLayout = Literal["rsna", "cq500", "folder", "features"]
"""Labelled sets that a model is validated on; `features`: a feature file."""
Layout = Literal["rsna", "cq500", "folder", "slices", "unlabelled"]
"""Folders to prepare. `folder` and `slices` need a table of labels, `unlabelled` is for predictions."""
SetLayout = Literal["rsna", "cq500", "folder", "slices", "features"]
"""Sets that a run is trained or evaluated on."""

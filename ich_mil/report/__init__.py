"""What people read: offline pages of a study, a cohort and a run, a benchmark's report, DICOM results."""

import os
import sys
from contextlib import suppress


def _import_matplotlib() -> None:
    """Import matplotlib whatever MPLBACKEND says: the backend of a notebook may be unknown here.

    Figures have a canvas of their own (`ich_mil.report.canvas`); the backend is for the caller's.
    """
    if "matplotlib" in sys.modules:
        return
    backend = os.environ.pop("MPLBACKEND", "")
    try:
        import matplotlib
    finally:
        if backend:
            os.environ["MPLBACKEND"] = backend
    with suppress(ValueError):
        if backend:
            matplotlib.rcParams["backend"] = backend


_import_matplotlib()

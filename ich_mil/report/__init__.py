"""Reports: offline HTML pages of a study, a cohort and a run, and DICOM results."""

import os
import sys
from contextlib import suppress


def _import_matplotlib() -> None:
    """Import matplotlib without MPLBACKEND, which may name a notebook backend that is not installed here.

    Figures of this package use their own canvas (`ich_mil.report.canvas`). The caller's backend is kept.
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

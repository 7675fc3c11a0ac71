"""Fresh processes that start at once: forked off a server that has imported what they use, and no more.

The server is one for the whole run, and what it imports is set before it starts: hence one list for all.
"""

from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

IMPORTED = ["tests.together", "tests.dicom.watch", "ich_mil.training.fit_cnn", "ich_mil.gp.fit_calibration"]
IMPORTED += ["ich_mil.dicom.pixels.read", "gdcm", "jpeg_ls"]


def forkserver() -> ForkServerContext:
    """Where to start such processes."""
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context

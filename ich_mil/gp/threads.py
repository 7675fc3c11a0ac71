"""Number of threads of torch in the estimators.

Threads of OpenMP share each product out and wait for each other at its end. Small products gain nothing, and
beside other busy processes the waiting takes most of the processor time (docs/install.md, "Threads").
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

MANY = 50_000
"""Number of rows from which products are large enough to be shared out."""


@contextmanager
def few_threads(rows: int) -> Iterator[None]:
    """Let torch use one thread for fewer than `MANY` rows; products then round alike on all machines."""
    threads = torch.get_num_threads()
    if rows < MANY:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

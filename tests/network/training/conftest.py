"""Prepared scans of the training tests: made once, so no test may change them."""

import pytest

from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.splits import draw_splits
from tests import phantoms


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """Twelve prepared phantom studies."""
    folder = tmp_path_factory.mktemp("training")
    return prepare("rsna", phantoms.rsna(folder / "set", studies=12), folder / "prepared", jobs=1)


@pytest.fixture(scope="session")
def splits(prepared):
    return draw_splits(prepared.scans, validation=0.3, test=0.0, seed=0)

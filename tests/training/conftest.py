"""Prepared scans of the training tests: made once, so no test may change them."""

import pytest

from ich_mil.data.preparation.prepare import prepare
from tests import phantoms


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """Twelve prepared phantom studies."""
    folder = tmp_path_factory.mktemp("training")
    return prepare("rsna", phantoms.rsna(folder / "set", studies=12), folder / "prepared", jobs=1)

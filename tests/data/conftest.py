"""A few prepared scans, for tests of what reads them."""

import pytest

from ich_mil.data.bags import ScanDataset
from ich_mil.data.prepare import prepare
from tests import phantoms


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    return prepare("rsna", phantoms.rsna(folder / "set", studies=4), folder / "prepared", jobs=1)


@pytest.fixture(scope="module")
def dataset(prepared):
    return ScanDataset(prepared, list(prepared.scans.index))

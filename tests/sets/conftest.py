"""A few studies in two layouts, and prepared scans of them: made once, so no test may change them."""

import pytest

from ich_mil.network.bags import ScanDataset
from ich_mil.sets.preparation.prepare import prepare
from tests import phantoms


@pytest.fixture(scope="session")
def rsna_root(tmp_path_factory):
    return phantoms.rsna(tmp_path_factory.mktemp("rsna") / "set", studies=4)


@pytest.fixture(scope="session")
def cq500_root(tmp_path_factory):
    return phantoms.cq500(tmp_path_factory.mktemp("cq500") / "set", studies=5)


@pytest.fixture(scope="session")
def prepared(rsna_root, tmp_path_factory):
    return prepare("rsna", rsna_root, tmp_path_factory.mktemp("prepared"), jobs=1)


@pytest.fixture(scope="session")
def dataset(prepared):
    return ScanDataset(prepared, list(prepared.scans.index))

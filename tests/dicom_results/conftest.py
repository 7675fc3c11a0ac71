"""Studies whose results several tests look at; each is written once."""

from pathlib import Path

import pytest

from tests import phantoms
from tests.dicom_results.made import Made, few_slices, one_file, write


@pytest.fixture(scope="session")
def rsna(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """As RSNA 2019: `ID_...` UIDs, nine attributes missing."""
    folder = tmp_path_factory.mktemp("rsna")
    return write(few_slices(folder), folder)


@pytest.fixture(scope="session")
def cq500(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """As CQ500: valid UIDs, patient, thickness, frame of reference."""
    folder = tmp_path_factory.mktemp("cq500")
    return write(phantoms.cq500(folder / "all", studies=1), folder)


@pytest.fixture(scope="session")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Slices averaged from two."""
    folder = tmp_path_factory.mktemp("averaged")
    return write(few_slices(folder, n=8), folder, thickness_mm=12.0)


@pytest.fixture(scope="session")
def multi_frame(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """All slices in one file, from above."""
    folder = tmp_path_factory.mktemp("frames")
    return write(one_file(few_slices(folder), folder / "one"), folder)


@pytest.fixture(scope="session")
def every(rsna: Made, cq500: Made, averaged: Made, multi_frame: Made) -> dict[str, Made]:
    """All of them by name."""
    return {"rsna": rsna, "cq500": cq500, "averaged": averaged, "multi_frame": multi_frame}


@pytest.fixture(params=["rsna", "cq500", "averaged", "multi_frame"])
def made(request: pytest.FixtureRequest, every: dict[str, Made]) -> Made:
    """Each of them."""
    return every[request.param]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder."""
    return tmp_path

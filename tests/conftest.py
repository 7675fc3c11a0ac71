"""Fixtures that every test may use."""

import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.version import Version

from ich_mil.gp.head import Head  # before any test file imports gpytorch, whose warning `ich_mil.gp` silences
from ich_mil.sets.features import FeatureSet, read_feature_table
from tests.runs_for_tests import tiny_run

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
OLD_NUMPY = Version(version("numpy")) < Version("2.4")


def pytest_configure(config: pytest.Config) -> None:
    """Name the folder of real data; hide the GPU and interpret kernels in any run but `pytest -m gpu`."""
    os.environ.setdefault("ICH_MIL_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a script's background job: `make test &`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before any test file defines a kernel


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real data, `ICH_MIL_DATA`; skip where it is absent."""
    folder = Path(os.environ["ICH_MIL_DATA"])
    if not folder.is_dir():
        pytest.skip(f"real data is not at {folder}")
    return folder


@pytest.fixture(scope="session")
def rsna_features(shared_data: Path) -> FeatureSet:
    """The paper's features of 150 RSNA scans."""
    return read_feature_table(shared_data / "features" / "rsna150_d8_run2.csv")


@pytest.fixture(scope="session")
def cq500_features(shared_data: Path) -> FeatureSet:
    """The same network's features of 490 CQ500 scans."""
    return read_feature_table(shared_data / "features" / "cq500_d8_run2.csv")


@pytest.fixture(scope="session")
def gamma_on_cq500(rsna_features: FeatureSet, cq500_features: FeatureSet) -> tuple[np.ndarray, np.ndarray]:
    """Probability and deviation (490,) of the CQ500 scans, by a head fitted to the RSNA scans."""
    train, test = rsna_features, cq500_features
    head = Head(density="gamma").fit(train.x, train.offsets, train.labels, groups=train.patients)
    p, std = head.predict_bag_proba(test.x, test.offsets, return_std=True)
    return p, std


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one trained run on pictures (`tests.runs_for_tests.tiny_run`); tests that change it copy it."""
    with warnings.catch_warnings():
        # a head fitted to a handful of tiny scans may rank its validation scans no better than chance
        warnings.filterwarnings("ignore", message="probabilities are")
        return tiny_run(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the temporary files of killed processes, torchrun, dask and the browser in a folder of this run.

    Pytest deletes those of all but the last three runs.
    """
    folder = str(tmp_path_factory.mktemp("left"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """One thread: small matrices gain nothing from a second one."""
    torch.set_num_threads(1)


@pytest.fixture(params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, and the GPU where there is one."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device(request.param)


@pytest.fixture(params=["cpu", CUDA])
def kernel_device(request: pytest.FixtureRequest) -> torch.device:
    """Device of Triton kernels: the GPU, or the CPU, where they are interpreted."""
    if (request.param == "cuda") != torch.cuda.is_available():
        pytest.skip("no CUDA device" if request.param == "cuda" else "the same kernels are tested compiled")
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted and Version(version("triton")) < Version("3.7") and not OLD_NUMPY:
        pytest.skip("Triton before 3.7 cannot interpret loops with this NumPy: install 'numpy<2.4'")
    return torch.device(request.param)


_ran_on_gpu: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the GPU tests that were executed."""
    if report.when == "call" and "gpu" in report.keywords and not report.skipped:
        _ran_on_gpu.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail `pytest -m gpu` if all GPU tests were skipped."""
    if session.config.option.markexpr == "gpu" and not _ran_on_gpu:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print("\nno GPU test was executed", end="")

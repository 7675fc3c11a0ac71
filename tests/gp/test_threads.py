"""Number of threads of the estimators."""

import pytest
import torch

from ich_mil.gp.head import Head
from ich_mil.gp.threads import MANY, few_threads
from tests.gp.synthetic import scans


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("rows", "threads"), [(10, 1), (MANY - 1, 1), (MANY, 3)])
def test_small_data_use_one_thread(rows, threads, three_threads):
    with few_threads(rows):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 3


def test_head_fits_and_predicts_on_one_thread(monkeypatch, three_threads):
    seen = []

    def seeing(name):
        work = getattr(__import__("ich_mil.gp.head", fromlist=[name]), name)

        def watched(*args, **others):
            seen.append((name, torch.get_num_threads()))
            return work(*args, **others)

        monkeypatch.setattr(f"ich_mil.gp.head.{name}", watched)

    for name in ("fit_calibrated", "predict"):
        seeing(name)
    x, offsets, labels = scans()
    given = {"n_inducing": 8, "sweeps": 3, "variance": 0.5, "bias": 0.0, "lengthscale_squared": 8.0}
    Head(**given, calibration="none").fit(x, offsets, labels).predict(x, offsets)
    assert seen == [("fit_calibrated", 1), ("predict", 1)]
    assert torch.get_num_threads() == 3

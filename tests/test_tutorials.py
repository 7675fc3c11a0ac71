"""Tutorials that are scripts of seconds run as they are shown."""

import runpy
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Lightning, on a Dataset without workers
def test_an_own_dataset_trains_the_network_and_a_head(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "tutorials" / "own_dataset.py"))
    assert page["trainer"].callback_metrics["val_auc"] == 1
    assert page["head"].score(page["bags"], page["labels"]) == 1
    assert not any(tmp_path.iterdir())

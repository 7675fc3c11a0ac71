"""Sets of phantoms and configurations of runs on them."""

from dataclasses import replace

import pytest

from ich_mil.config import RunConfig, SplitSettings
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.network.training.settings import TrainingSettings
from tests import phantoms
from tests.feature_table import write_features
from tests.train_for_tests import CNN, ENCODER, HEAD, ReachedError


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Two sets, `site` and `other`, and the folder `prepared`, which tests share."""
    place = tmp_path_factory.mktemp("train")
    for seed, name in enumerate(("site", "other")):
        phantoms.rsna(place / name, studies=8, seed=seed)
    return place


@pytest.fixture
def config(sites, tmp_path):
    return RunConfig(
        out=tmp_path / "run",
        train=SetSettings("rsna", str(sites / "site")),
        prepared=sites / "prepared",
        split=SplitSettings(validation=0.3, test=0.2),
        encoder=ENCODER,
        cnn=CNN,
        training=TrainingSettings(max_epochs=7),
        jobs=1,
        seed=5,
    )


@pytest.fixture
def of_table(config, tmp_path):
    """A run on the table `f.csv` of 20 scans."""
    write_features(tmp_path / "f.csv", 20, 0)
    return replace(config, train=SetSettings("features", str(tmp_path / "f.csv")), head=HEAD)


@pytest.fixture
def told(monkeypatch):
    """Arguments of the training of the CNN, where it ends."""
    told = {}

    def stop(prepared, splits, out, **settings):
        told.update(settings, prepared=prepared, splits=splits, out=out)
        raise ReachedError

    monkeypatch.setattr("ich_mil.network.training.fit_cnn.fit_cnn", stop)
    return told

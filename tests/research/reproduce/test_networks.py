"""Heads on the features of several networks: one split without leaks, and the average of the networks."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

from ich_mil.sets.features import read_feature_table
from research.reproduce.protocol import read_protocol
from research.reproduce.run import reproduce
from research.reproduce.scoring import Model, read_scored, scored_file
from research.reproduce.statistics import drift_rates
from research.reproduce.tasks import tasks_of
from tests.feature_table import write_features
from tests.research.reproduce.test_reproduce import protocol


@pytest.fixture
def config(tmp_path):
    for seed in (0, 1):
        write_features(tmp_path / f"train{seed}.csv", 40, 0)
        write_features(tmp_path / f"test{seed}.csv", 24, 1)
        write_features(tmp_path / f"other{seed}.csv", 24, 2)
        table = pd.read_csv(tmp_path / f"train{seed}.csv")
        table.bag_name = table.bag_name.replace("s0-3", "s1-3")  # a test scan among the training scans
        table.to_csv(tmp_path / f"train{seed}.csv", index=False)
        other = pd.read_csv(tmp_path / f"other{seed}.csv").drop(columns="instance_label")
        other[other.instance_name != f"s2-{seed}-0"].to_csv(tmp_path / f"other{seed}.csv", index=False)
    paths = {what: str(tmp_path / f"{name}{{seed}}.csv") for what, name in
             {"root": "train", "test": "test", "external": "other"}.items()}  # fmt: skip
    one = {"name": "home", "kind": "features", "external_name": "away", "cnn_seeds": [0, 1], **paths}
    heads = {"VGPMIL": {"sweeps": 4}}
    return read_protocol(
        [str(protocol(tmp_path, sets=[one], heads=heads, main="VGPMIL", n_inducing=[8], resamples=10))]
    )


def test_the_average_is_that_of_probabilities(config, tmp_path, monkeypatch):
    monkeypatch.setattr(drift_rates, "DRAWS", 5)
    monkeypatch.setattr(drift_rates, "STEPS", (0.0, 0.25))
    reproduce(config)
    tasks = list(tasks_of(config.sets[0], config))
    for task in tasks:
        assert task.train.scans == [f"s0-{b}" for b in range(40) if b != 3]
    table = pd.read_csv(config.out / "home" / "networks.csv")
    table = table[(table.model == "VGPMIL") & (table.metric == "log_loss")].set_index(["scored", "network"])
    for name, file in (("test", "test"), ("away", "other")):
        labels = read_feature_table(tmp_path / f"{file}0.csv").labels
        fits = [read_scored(scored_file(config.out / "fits", Model("VGPMIL", 8), task))[0] for task in tasks]
        p = np.array([scores[name].scan for scores in fits])
        expected = [log_loss(labels, row) for row in (*p, p.mean(0))]
        assert list(table["mean"][name]) == pytest.approx(expected, rel=1e-9)
        assert list(table.loc[name].index) == ["0", "1", "average"]
        assert not np.allclose(p[0], p[1])

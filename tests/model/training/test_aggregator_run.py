"""A run with an aggregator of another package: trained, stored, loaded, predicted, and refused without it."""

import json
import sys

import pytest
import torch

from ich_mil.model.predictions import read_results
from ich_mil.model.storage import load_model
from ich_mil.network.frozen import extract_features
from ich_mil.sets.store import open_prepared
from tests import phantoms
from tests.runs_for_tests import HEAD, TINY, refused, run, write_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with `site_pooling:Pool`, whose module is importable while the run is trained and tested."""
    place = tmp_path_factory.mktemp("aggregator")
    (place / "site_pooling.py").write_text("from tests.network.foreign import Smooth as Pool")
    settings = TINY | {
        "out": str(place / "run"),
        "prepared": str(place / "prepared"),
        "train": {"layout": "rsna", "root": str(phantoms.rsna(place / "set", studies=16))},
        "cnn": {"aggregator": "site_pooling:Pool"},
        "head": HEAD,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        assert run("train.py", *write_config(place / "run.yaml", settings)) == 0
        yield place


def test_name_and_trained_weights_are_stored(trained):
    about = json.loads((trained / "run" / "run.json").read_text())
    assert about["config"]["cnn"]["aggregator"] == "site_pooling:Pool"
    cnn = load_model(trained / "run").members[0].cnn
    torch.manual_seed(about["config"]["seed"])
    start = type(cnn)(cnn.encoder_settings, cnn.settings)
    assert type(cnn.aggregator).__name__ == "Smooth"
    assert not torch.equal(cnn.aggregator.linear.weight, start.aggregator.linear.weight)


def test_predictions_of_the_loaded_run(trained, tmp_path):
    assert run("predict", trained / "set", "--model", trained / "run", "--out", tmp_path, "--jobs", "1") == 0
    scans = read_results(tmp_path).scans
    prepared = open_prepared(trained / "prepared" / "train")
    assert {scan.scan for scan in scans} == set(prepared.scans.index)
    cnn = load_model(trained / "run").members[0].cnn
    features = extract_features(cnn, prepared, list(prepared.scans.index))
    of_slices = torch.logit(features.cnn_slice.double()).split(features.offsets.diff().tolist())
    wanted = torch.stack([logits.logsumexp(0) for logits in of_slices]).sigmoid()
    torch.testing.assert_close(features.cnn_scan.double(), wanted, rtol=1e-4, atol=0)  # float32 logits
    assert features.attention.isnan().all()


def test_a_run_whose_module_is_gone_is_refused(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(trained)])
    monkeypatch.delitem(sys.modules, "site_pooling", raising=False)
    line = refused(capsys, "predict", trained / "set", "--model", trained / "run", "--out", tmp_path / "p")
    assert "site_pooling:Pool" in line
    assert "PYTHONPATH" in line

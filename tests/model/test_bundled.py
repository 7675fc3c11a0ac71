"""The model that comes with the program: small, whole, known by its card, and aware of its limits."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import ich_mil
from ich_mil.cli import main
from ich_mil.errors import ModelError
from ich_mil.ledger import Code
from ich_mil.model import folder as folder_module
from ich_mil.model.folder import BUNDLED
from ich_mil.model.predictions import read_results
from ich_mil.model.storage import load_model
from ich_mil.phantoms.data_sets import write_rsna
from ich_mil.sets.store import open_prepared
from tests.runs_for_tests import write_config

FOLDER = Path(ich_mil.__file__).parent / "bundled" / BUNDLED
MEGABYTES = 11


def test_it_is_an_ensemble_of_half_precision_and_at_most_11_megabytes():
    model = load_model(BUNDLED)
    assert len(model.members) == 2
    assert model.calibration is not None
    assert all(member.likeness is not None for member in model.members)
    for member in model.members:
        weights = load_file(member.folder / "cnn.safetensors").values()
        assert {value.dtype for value in weights if value.size > 10_000} == {np.dtype(np.float16)}
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= MEGABYTES * 2**20


def test_its_card_names_data_terms_and_limits():
    card = (FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8")
    for word in ("RSNA 2019", "CT-ICH", "CC BY 4.0", "Apache-2.0", "non-commercial", "must not be used"):
        assert word in card


def test_one_of_another_version_is_refused(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "old")
    about = tmp_path / "old" / "member_0" / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"format": "ich_mil.run.3"}))
    with pytest.raises(ModelError, match=r"member_0/run\.json: is of another version"):
        load_model(tmp_path / "old")


def predicted(root, out):
    """What `ich-mil predict` says of the scans below a folder, without naming a model."""
    assert main(["predict", str(root), "--out", str(out), "--jobs", "1"]) == 0
    return read_results(out).scans


def test_the_bundled_model_is_named_where_it_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder_module, "__file__", str(tmp_path / "folder.py"))
    with pytest.raises(ModelError, match="headct-base: this installation has no bundled model"):
        load_model("headct-base")


@pytest.mark.slow
def test_a_phantom_is_unlike_its_training_and_never_called_negative(tmp_path):
    write_rsna(tmp_path / "studies", n_studies=2, seed=5, size=256, n_jobs=1)
    scans = predicted(tmp_path / "studies", tmp_path / "out")
    assert len(scans) == 2
    for scan in scans:
        assert Code.UNLIKE in [entry.code for entry in scan.ledger]
        assert scan.decision != "negative"


@pytest.mark.slow
@pytest.mark.realdata
def test_a_real_head_of_another_hospital_is_judged_in_one_command(shared_data, tmp_path):
    (scan,) = predicted(shared_data / "ge_head_ct", tmp_path / "out")
    assert len(scan.slices) == 28
    assert 0 < scan.interval_95[0] < scan.probability < scan.interval_95[1] < 1
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 1,600 slices at 256 pixels
@pytest.mark.filterwarnings("ignore:probabilities are next to the share")  # phantoms are no heads
def test_a_child_on_few_scans_keeps_the_networks_and_watches_its_site(tmp_path):
    """An ensemble with own heads; its scans, which no network learned, are the reference of `drift`."""
    write_rsna(tmp_path / "site", n_studies=14, size=64, seed=3, n_jobs=1)
    about = {"layout": "rsna", "root": str(tmp_path / "site")}
    settings = {"out": str(tmp_path / "run"), "prepared": str(tmp_path / "prepared"), "train": about}
    words = write_config(tmp_path / "c.yaml", settings | {"split": {"validation": 0}, "jobs": 1})
    assert main(["train", "--from", BUNDLED, *words]) == 0
    child, base = load_model(tmp_path / "run"), load_model(BUNDLED)
    scans = open_prepared(tmp_path / "prepared" / "train").scans
    assert len(child.members) == 2
    for own, of in zip(child.members, base.members, strict=True):
        for name, value in of.cnn.state_dict().items():
            assert np.array_equal(own.cnn.state_dict()[name], value)
        assert np.array_equal(own.location.weight, of.location.weight)
        assert own.head.settings.rule == "top_3"
        patients = load_file(own.folder / "reference.safetensors")["patient"]
        assert len(patients) == 14
        # a patient with two studies counts once
        assert len(np.unique(patients)) == scans.patient.nunique() < 14
    assert child.provenance.weights != base.provenance.weights
    assert "RSNA 2019" in child.provenance.trained_on
    words = ("predict", tmp_path / "site", "--model", tmp_path / "run", "--out", tmp_path / "new")
    assert main([str(word) for word in words]) == 0
    assert main(["drift", str(tmp_path / "new"), "--model", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "new" / "drift.json").read_text())["alarm"] is False

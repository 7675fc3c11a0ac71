"""Frozen CNN: saved and loaded to the bit, its features alone and stored."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from ich_mil.errors import ModelError
from ich_mil.network import frozen
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.bags import Pictures, ScanDataset
from ich_mil.network.frozen import extract_features, load_cnn, save_cnn, stored_features, study_features
from ich_mil.network.settings import CnnSettings, EncoderSettings
from ich_mil.sets.labels import UNKNOWN
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.preparation.record import prepared_study
from ich_mil.study.window_presets import PRESETS
from tests import phantoms

WINDOWS = PRESETS["papers"]
ENCODER, CNN = EncoderSettings(size=32), CnnSettings()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    return prepare("rsna", phantoms.rsna(folder / "set", studies=4), folder / "prepared", jobs=1)


@pytest.fixture
def model():
    torch.manual_seed(1)
    return AttentionCnn(ENCODER, CNN).eval()


def test_saved_cnn_predicts_bit_identically(prepared, model, tmp_path):
    save_cnn(model, str(tmp_path))
    loaded = load_cnn(str(tmp_path))
    assert (loaded.settings, loaded.encoder_settings) == (CNN, ENCODER)
    scans = list(prepared.scans.index)
    assert torch.equal(
        extract_features(loaded, prepared, scans).x, extract_features(model, prepared, scans).x
    )


@pytest.mark.parametrize("crop", [True, False])
def test_a_study_in_memory_has_the_features_of_its_set(prepared, crop):
    torch.manual_seed(1)
    network = AttentionCnn(replace(ENCODER, crop=crop), CNN).eval()
    scan = str(prepared.scans.index[0])
    stored = extract_features(network, prepared, [scan])
    alone = study_features(network, prepared_study(prepared, scan))
    for name in (
        "x",
        "offsets",
        "cnn_scan",
        "cnn_slice",
        "attention",
        "texture",
        "positions",
        "positions_mm",
    ):
        torch.testing.assert_close(getattr(alone, name), getattr(stored, name), rtol=0, atol=0)
    assert (alone.slice_names, alone.patients) == (stored.slice_names, stored.patients)
    assert {*alone.labels.tolist(), *alone.slice_labels.tolist()} == {UNKNOWN}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"ich_mil.cnn.3"', '"ich_mil.cnn.0"', "another version"),
        ('"features": 8', '"features": 32', "does not hold"),
        ('"channels"', '"doors"', "cannot be read"),
        ('"pool"', '"dropout": 0.3, "pool"', "settings.dropout is no setting"),
        ('"settings"', "settings", "cannot be read"),
    ],
)
def test_cnn_json_that_cannot_be_used(model, tmp_path, old, new, message):
    save_cnn(model, tmp_path)
    path = tmp_path / "cnn.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ModelError, match=message) as caught:
        load_cnn(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("content", [None, b"half"])
@pytest.mark.parametrize("name", ["cnn.json", "cnn.safetensors"])
def test_cnn_file_that_is_gone_or_damaged(model, tmp_path, name, content):
    save_cnn(model, tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read"):
        load_cnn(tmp_path)


def test_features_do_not_depend_on_other_scans(prepared, model, monkeypatch):
    scans = list(prepared.scans.index)
    every = extract_features(model, prepared, scans)
    encode, seen = model.encode_maps, []
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(
        model, "encode_maps", lambda maps, **how: seen.append(cudnn.allow_tf32) or encode(maps, **how)
    )
    alone = extract_features(model, prepared, scans[3:4])
    assert seen == [False], "float32 with all its bits"
    assert torch.equal(every.select(scans[3:4]).x, alone.x)
    assert alone.slice_names == prepared.slices(scans[3]).sop.tolist()
    assert alone.slice_labels.tolist() == prepared.slices(scans[3]).slice_label.tolist()
    with pytest.raises(ValueError, match=r"call its eval\(\)"):  # dropout would draw, batch norm move
        extract_features(model.train(), prepared, scans[3:4])


def test_feature_set_holds_scans_slices_and_outputs(prepared, model):
    scans = list(prepared.scans.index)[3:0:-1]
    got = extract_features(model, prepared, scans)
    about, rows = prepared.scans.loc[scans], pd.concat([prepared.slices(scan) for scan in scans])
    assert (got.scans, got.patients, got.labels.tolist()) == (scans, list(about.patient), list(about.label))
    assert got.offsets.diff().tolist() == list(about.slices)
    assert torch.equal(got.positions, torch.tensor(list(rows.position), dtype=torch.float32))
    assert got.positions_mm.tolist() == list(rows.position_mm)
    dataset, pictures = ScanDataset(prepared, scans), Pictures(WINDOWS, 32)
    outputs = [model(pictures(dataset[b]), dataset[b].offsets) for b in range(3)]
    scan, each, attention, x = (
        torch.cat(parts).detach() for parts in zip(*(output[:4] for output in outputs), strict=True)
    )
    wanted = {"cnn_scan": scan.sigmoid(), "cnn_slice": each.sigmoid(), "attention": attention, "x": x}
    for name, values in wanted.items():
        np.testing.assert_array_equal(getattr(got, name).numpy(), values.numpy(), name)


def test_stored_features_are_reused_until_an_input_changes(prepared, model, tmp_path, monkeypatch):
    scans, path = list(prepared.scans.index)[:1], tmp_path / "features.safetensors"
    first, made = stored_features(path, model, prepared, scans), []
    monkeypatch.setattr(frozen, "extract_features", lambda *words, **_: made.append(words) or first)
    assert torch.equal(stored_features(path, model, prepared, scans).x, first.x)
    assert made == []
    models = [copy.deepcopy(model) for _ in range(5)]
    models[0].state_dict()["project.bias"].add_(1)
    models[1].state_dict()["encoder.1.2.running_mean"].add_(1)
    levels = [[level + 1, width] for level, width in WINDOWS]
    for other, change in zip(models[2:], ({"channels": levels}, {"size": 64}, {"crop": True}), strict=True):
        other.encoder_settings = replace(ENCODER, **change)
    for cnn, pictures, of in (
        *((other, prepared, scans) for other in models),
        (model, replace(prepared, fingerprint="of other pixels"), scans),
        (model, prepared, list(prepared.scans.index)[1:2]),
    ):
        stored_features(path, model, prepared, scans)
        made.clear()
        for _ in range(2):  # the second time they are stored
            stored_features(path, cnn, pictures, of)
        assert len(made) == 1

"""One run from data to a model: arguments of its steps, what a resumed run skips, what is refused."""

import json
from dataclasses import replace

import gpytorch
import pandas as pd
import pytest
import torch
import yaml

import ich_mil
from ich_mil.config import SplitSettings
from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.evaluate.baselines import CNN_SIGMOID, CnnSigmoid
from ich_mil.families import RunHeadSettings
from ich_mil.gp.calibration import platt
from ich_mil.model.training import train as module
from ich_mil.model.training.train import check_config, train
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.frozen import extract_features, load_cnn, save_cnn
from ich_mil.network.settings import EncoderSettings
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.ranks import Ranks
from ich_mil.sets.features import read_feature_table
from ich_mil.sets.splits import draw_splits, load_splits
from ich_mil.sets.store import open_prepared
from tests import phantoms
from tests.feature_table import write_features
from tests.train_for_tests import CNN, ENCODER, HEAD, WINDOWS, begin


def test_the_cnn_is_trained_by_the_settings_of_the_run(config, told, tmp_path):
    begin(replace(config, prepared=tmp_path / "prepared"))
    assert told["encoder"].windows == ((50.0, 100.0), (40.0, 400.0))
    assert (told["cnn"], told["training"], told["seed"]) == (CNN, config.training, 5)
    assert told["out"] == config.out / "cnn"
    scans = told["prepared"].scans
    assert told["splits"].equals(draw_splits(scans, validation=0.3, test=0.2, seed=5))
    assert yaml.safe_load((config.out / "config.yaml").read_text())["encoder"]["channels"] == WINDOWS
    assert json.loads((config.out / "run.json").read_text())["versions"] == {
        "ich_mil": ich_mil.__version__,
        "torch": torch.__version__,
        "gpytorch": gpytorch.__version__,
    }


def test_an_external_set_of_training_patients_is_refused_before_the_cnn_is_trained(
    config, told, sites, tmp_path
):
    shared = replace(config, external=config.train)
    with pytest.raises(DataError, match=r"site: . of its patients were trained or calibrated on: P"):
        train(shared, resume=False)
    again = phantoms.second_name(sites / "site", tmp_path / "again")
    names = [f"{scan}9,0" for scan in open_prepared(config.prepared / "train").scans.index]
    (again / "labels.csv").write_text("\n".join(["scan,label", *names]))
    renamed = replace(config, external=SetSettings("folder", str(again)), prepared=tmp_path / "renamed")
    with pytest.raises(DataError, match=r"again: . of its scans have the slices of one that was trained"):
        train(renamed, resume=False)
    assert not told
    assert not (config.out / "run.json").exists()


def test_a_finished_cnn_is_not_trained_again_and_sees_all_scans(config, told, monkeypatch):
    begin(config)
    told.clear()
    save_cnn(AttentionCnn(ENCODER, CNN), config.out)
    heads = []
    monkeypatch.setattr(module, "fit_head", lambda *words: heads.append(words))
    train(config, resume=True)
    ((features, splits, _, _),) = heads
    assert not told
    assert set(splits.split) == {"train", "validation", "test"}
    prepared = open_prepared(config.prepared / "train")
    wanted = extract_features(load_cnn(config.out), prepared, list(prepared.scans.index))
    assert sorted(features.scans) == sorted(wanted.scans)
    assert torch.equal(features.x, wanted.select(features.scans).x)


def test_a_network_needs_the_extra_and_a_table_does_not(config, of_table, told, monkeypatch):
    monkeypatch.setattr("ich_mil.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"lightning is not installed; pip install 'ich-mil\[train\]'"):
        train(config, resume=False)
    assert not config.out.exists()
    check_config(of_table)


def test_only_the_first_rank_fits_a_head():
    module.fit_head(None, None, None, Ranks(1, 2))


def test_a_run_does_not_resume_where_labels_have_changed(config, told, sites, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "stage_2_train").symlink_to(sites / "site" / "stage_2_train")
    labels = pd.read_csv(sites / "site" / "stage_2_train.csv")
    config = replace(config, train=SetSettings("rsna", str(own)), prepared=tmp_path / "prepared")
    labels.to_csv(own / "stage_2_train.csv", index=False)
    begin(config)
    labels.assign(Label=0).to_csv(own / "stage_2_train.csv", index=False)
    with pytest.raises(DataError, match="have another patient, label or slices now"):
        train(config, resume=True)


@pytest.mark.parametrize("made", ["cnn", "cnn.json", "features", "head.json"])
def test_parts_of_an_unknown_run_are_not_built_upon(config, told, made):
    config.out.mkdir()
    (config.out / made).touch()
    for resume in (True, False):
        with pytest.raises(ConfigError, match=rf"holds {made} but no run\.json"):
            train(config, resume=resume)
    assert {path.name for path in config.out.iterdir()} == {made}


def test_a_split_file_needs_no_shares_but_validation_scans_for_a_cnn(config, told, tmp_path):
    begin(config)
    drawn = told["splits"]
    drawn.to_csv(tmp_path / "own.csv", index=False)
    own = replace(config, split=SplitSettings(validation=0, file=tmp_path / "own.csv"), out=tmp_path / "own")
    begin(own)
    assert told["splits"].split.tolist() == drawn.split.tolist()
    drawn.assign(split=drawn.split.replace("validation", "test")).to_csv(tmp_path / "own.csv", index=False)
    without = replace(config, split=SplitSettings(validation=0))
    for refused in (replace(own, out=tmp_path / "none"), replace(without, out=tmp_path / "none")):
        with pytest.raises(ConfigError, match="a CNN needs validation scans"):
            train(refused, resume=False)
    assert not (tmp_path / "none" / "run.json").exists()


def test_a_resumed_run_keeps_the_split_of_its_file(of_table, tmp_path, capsys):
    rows = [f"s0-{b},{('train', 'validation')[b % 4 == b % 3]}" for b in range(18)]
    own = tmp_path / "own.csv"
    own.write_text("scan,split\n" + "\n".join(rows))
    run = replace(of_table, head=replace(HEAD, calibration="none"), split=SplitSettings(file=own))
    train(run, resume=False)
    assert f"{own}: 2 scans are in no split" in capsys.readouterr().out
    own.write_text("scan,split\n" + "\n".join(rows[::-1]))
    train(run, resume=True)  # the same list in another order
    assert "scans that are not in it are not used: 2, s0-18, s0-19" in capsys.readouterr().out
    for other in (rows[:-1], [*rows[:-1], "s0-17,test"], [*rows, "s0-18,train"]):
        own.write_text("scan,split\n" + "\n".join(other))
        with pytest.raises(DataError, match=r"own\.csv: divides 1 scans otherwise .* s0-1"):
            train(run, resume=True)


def test_settings_that_cannot_be_used_are_refused_before_scans_are_prepared(
    config, of_table, sites, tmp_path
):
    def changed(run=config, **changes):
        return replace(run, prepared=tmp_path / "prepared", **changes)

    mixed = SetSettings("features", str(tmp_path / "f.csv"))
    inside = sites / "site" / "run"
    for refused, error, message in (
        (changed(external=SetSettings("rsna", "/absent")), DataError, "absent: no such file"),
        (changed(external=mixed), ConfigError, "must all be pictures, or all be features"),
        (changed(out=inside), ConfigError, "choose another --out"),
        (
            changed(train=SetSettings("rsna", str(sites / "other")), external=config.train, out=inside),
            ConfigError,
            "choose another --out",
        ),
        (changed(encoder=EncoderSettings(name="resnet19")), ModelError, "'resnet19'"),
    ):
        with pytest.raises(error, match=message):
            train(refused, resume=False)
        assert not refused.out.exists()
        assert not refused.prepared.exists()


def test_a_kernel_that_cannot_be_used_is_refused_before_scans_are_prepared(config, of_table, tmp_path):
    for run in (config, of_table):
        run = replace(run, head=RunHeadSettings(kernel="RBF"), prepared=tmp_path / "prepared")
        with pytest.raises(ConfigError, match="has no kernel 'RBF'"):
            train(run, resume=False)
        assert not run.out.exists()
        assert not run.prepared.exists()


@pytest.mark.parametrize(
    ("scans", "validation", "message"),
    [(8, 0.0, r"f\.csv: 5 folds need at least 5 patients"), (2, 0.5, r"f\.csv: 1 patients with label 0")],
)
def test_too_few_scans_are_refused_before_a_run_begins(of_table, tmp_path, scans, validation, message):
    write_features(tmp_path / "f.csv", scans, 0)
    with pytest.raises(DataError, match=message):
        train(replace(of_table, split=SplitSettings(validation)), resume=False)
    assert not of_table.out.exists()
    uncalibrated = RunHeadSettings(calibration="none", n_inducing=4)
    train(replace(of_table, split=SplitSettings(0.0), head=uncalibrated), resume=False)


@pytest.mark.parametrize("validation", [0.3, 0.0])
def test_the_cnn_is_calibrated_on_the_scans_that_calibrate_the_head(of_table, tmp_path, validation):
    path = tmp_path / "f.csv"
    write_features(path, 40, 0)
    table = pd.read_csv(path)
    number = table.bag_name.str.split("-").str[1].astype(int)
    table.assign(bag_cnn_probability=0.2 + 0.5 * table.bag_label + number % 7 / 25).to_csv(path, index=False)
    run = replace(of_table, split=SplitSettings(validation, test=0.2))
    train(run, resume=False)
    splits = load_splits(run.out / "splits.csv")
    held = splits.scan[splits.split == ("validation" if validation else "train")].tolist()
    known = read_feature_table(path).select(held)
    slope, intercept, _ = platt(torch.logit(known.cnn_scan.double()), known.labels)
    assert CnnSigmoid.load(run.out / CNN_SIGMOID) == CnnSigmoid(slope, intercept)


def test_scans_of_the_same_slices_with_other_labels_are_not_learned(of_table, tmp_path):
    path = tmp_path / "f.csv"
    table = pd.read_csv(path).drop(columns="instance_label")
    twin = table[table.bag_name == "s0-1"].assign(bag_name="twin", bag_label=lambda one: 1 - one.bag_label)
    pd.concat([table, twin]).to_csv(path, index=False)
    with pytest.raises(DataError, match=r"f\.csv: scans of the same slices have different labels: s0-1"):
        train(of_table, resume=False)
    assert not (of_table.out / "run.json").exists()


def test_the_head_is_written_after_its_other_files(of_table):
    (of_table.out / "head_fit.json").mkdir(parents=True)  # it cannot be written
    with pytest.raises((OSError, DataError)):
        train(of_table, resume=False)
    assert not (of_table.out / "head.json").exists()
    (of_table.out / "head_fit.json").rmdir()
    train(of_table, resume=True)
    assert (of_table.out / "head.json").is_file()


@pytest.mark.parametrize("validation", [0.3, 0.0])
def test_a_held_out_slice_far_from_training_is_reported_with_file_and_scan(of_table, tmp_path, validation):
    path = tmp_path / "f.csv"
    splits = draw_splits(read_feature_table(path).table, validation=validation, test=0.0, seed=of_table.seed)
    scan = splits.scan[splits.split == ("validation" if validation else "train")].iloc[-1]
    table = pd.read_csv(path)
    table.loc[table.index[table.bag_name == scan][1], "feature_2"] = 1e9
    table.to_csv(path, index=False)
    with pytest.raises(DataError, match=rf"f\.csv: scan '{scan}': feature 2 of slice 1 "):
        train(replace(of_table, split=SplitSettings(validation)), resume=False)

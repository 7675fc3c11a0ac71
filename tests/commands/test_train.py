"""One run from data to a model: what its steps are told, what a resumed one does no more, what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gpytorch
import pandas as pd
import pytest
import torch
import yaml

import ich_mil
from ich_mil.commands import train as module
from ich_mil.commands.train import train
from ich_mil.config import RunConfig, SetSettings, SplitSettings, read_config
from ich_mil.data.features import read_feature_csv
from ich_mil.data.splits import draw_splits, load_splits
from ich_mil.data.store import open_prepared
from ich_mil.encoders.attention_cnn import AttentionCnn, CnnSettings
from ich_mil.encoders.frozen import extract_features, load_cnn, save_cnn
from ich_mil.encoders.slice_encoders import EncoderSettings
from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.evaluate.baselines import CNN_SIGMOID, CnnSigmoid
from ich_mil.gp.calibration import platt
from ich_mil.gp.settings import HeadSettings
from ich_mil.ranks import Ranks
from ich_mil.training.settings import TrainingSettings
from tests import phantoms
from tests.feature_table import write_features

WINDOWS = [[50.0, 100.0], [40.0, 400.0]]
ENCODER = EncoderSettings(size=32, channels=WINDOWS)
CNN = CnnSettings(features=4)


class ReachedError(Exception):
    """The CNN would be trained now."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return phantoms.rsna(tmp_path_factory.mktemp("train") / "site", studies=8)


@pytest.fixture
def config(site, tmp_path):
    return RunConfig(
        out=tmp_path / "run",
        train=SetSettings("rsna", str(site)),
        prepared=tmp_path / "prepared",
        split=SplitSettings(validation=0.3, test=0.2),
        encoder=ENCODER,
        cnn=CNN,
        training=TrainingSettings(max_epochs=7),
        jobs=1,
        seed=5,
    )


@pytest.fixture
def told(monkeypatch):
    """What the training of the CNN is told; it ends there."""
    told = {}

    def stop(prepared, splits, out, **settings):
        told.update(settings, prepared=prepared, splits=splits, out=out)
        raise ReachedError

    monkeypatch.setattr(module, "fit_cnn", stop)
    return told


def test_the_cnn_is_trained_as_the_run_says(config, told):
    with pytest.raises(ReachedError):
        train(replace(config, thickness_mm=12.0), resume=False)
    assert told["encoder"].windows == ((50.0, 100.0), (40.0, 400.0))
    assert (told["cnn"], told["training"], told["seed"]) == (CNN, config.training, 5)
    assert told["out"] == config.out / "cnn"
    thick = told["prepared"].scans
    assert told["splits"].equals(draw_splits(thick, validation=0.3, test=0.2, seed=5))
    assert yaml.safe_load((config.out / "config.yaml").read_text())["encoder"]["channels"] == WINDOWS
    thin = replace(config, thickness_mm=0.0, out=config.out / "thin", prepared=config.out / "apart")
    with pytest.raises(ReachedError):
        train(thin, resume=False)
    assert told["prepared"].scans.slices.sum() > 2 * thick.slices.sum()


def test_a_run_says_with_which_versions_it_was_begun(config, told):
    with pytest.raises(ReachedError):
        train(config, resume=False)
    versions = json.loads((config.out / "run.json").read_text())["versions"]
    assert versions == {
        "ich_mil": ich_mil.__version__,
        "torch": torch.__version__,
        "gpytorch": gpytorch.__version__,
    }


def test_an_external_set_of_patients_to_learn_from_is_refused_before_the_cnn_is_trained(
    config, told, site, tmp_path
):
    shared = replace(config, external=SetSettings("rsna", str(site)))
    with pytest.raises(DataError, match=r"site: . of its patients were trained or calibrated on: P"):
        train(shared, resume=False)
    again = phantoms.second_name(site, tmp_path / "again")
    names = [f"{scan}9,0" for scan in open_prepared(config.prepared / "train").scans.index]
    (again / "labels.csv").write_text("\n".join(["scan,label", *names]))
    renamed = replace(config, external=SetSettings("folder", str(again)), prepared=tmp_path / "renamed")
    with pytest.raises(DataError, match=r"again: . of its scans have the slices of one that was trained"):
        train(renamed, resume=False)
    assert not told
    assert not (config.out / "run.json").exists()
    other = phantoms.rsna(tmp_path / "other", studies=8, seed=1)
    apart = replace(config, external=SetSettings("rsna", str(other)), prepared=tmp_path / "apart")
    with pytest.raises(ReachedError):
        train(apart, resume=False)


def test_a_cnn_that_is_there_is_not_trained_again_and_sees_all_scans_as_it_was_trained(
    config, told, monkeypatch
):
    with pytest.raises(ReachedError):
        train(config, resume=False)
    told.clear()
    save_cnn(AttentionCnn(ENCODER, CNN), config.out)
    heads = []
    monkeypatch.setattr(module, "fit_head", lambda *words: heads.append(words))
    train(config, resume=True)
    ((features, splits, _, _),) = heads
    assert not told
    assert set(splits.split) == {"train", "validation", "test"}
    model = load_cnn(config.out)
    prepared = open_prepared(config.prepared / "train")
    wanted = extract_features(model, prepared, list(prepared.scans.index))
    assert sorted(features.scans) == sorted(wanted.scans)
    assert torch.equal(features.x, wanted.select(features.scans).x)


def test_ranks_beside_the_first_take_what_it_has_made_and_write_nothing(config, told, monkeypatch):
    config = replace(config, head=HeadSettings(n_inducing=8, sweeps=2, calibration="none"))
    with pytest.raises(ReachedError):
        train(config, resume=False)
    made = {path: path.read_bytes() for path in config.out.rglob("*") if path.is_file()}
    monkeypatch.setattr(Ranks, "first", False)
    monkeypatch.setattr(module, "prepare_training", lambda *_, **__: pytest.fail("prepares what is prepared"))
    monkeypatch.setattr(module, "fit_cnn", lambda *_, **__: AttentionCnn(ENCODER, CNN).eval())
    train(config, resume=False)
    assert {path: path.read_bytes() for path in config.out.rglob("*") if path.is_file()} == made


def test_a_run_does_not_go_on_where_labels_have_changed(config, told, site, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "stage_2_train").symlink_to(site / "stage_2_train")
    labels = pd.read_csv(site / "stage_2_train.csv")
    config = replace(config, train=SetSettings("rsna", str(own)))
    labels.to_csv(own / "stage_2_train.csv", index=False)
    with pytest.raises(ReachedError):
        train(config, resume=False)
    labels.assign(Label=0).to_csv(own / "stage_2_train.csv", index=False)
    with pytest.raises(DataError, match="have another patient, label or slices now"):
        train(config, resume=True)


@pytest.mark.parametrize("made", ["cnn", "cnn.json", "features", "head.json"])
def test_parts_of_an_unknown_run_are_not_built_upon(config, told, made):
    config.out.mkdir()
    (config.out / made).touch()
    with pytest.raises(ConfigError, match=rf"holds {made} but no run\.json"):
        train(config, resume=True)
    assert not told


def test_a_split_of_ones_own_needs_no_shares_but_validation_scans_for_a_cnn(config, told, tmp_path):
    with pytest.raises(ReachedError):
        train(config, resume=False)
    drawn = told["splits"]
    drawn.to_csv(tmp_path / "own.csv", index=False)
    split = SplitSettings(validation=0, file=tmp_path / "own.csv")
    own = replace(config, split=split, out=tmp_path / "own")
    with pytest.raises(ReachedError):
        train(own, resume=False)
    assert told["splits"].split.tolist() == drawn.split.tolist()
    drawn.assign(split=drawn.split.replace("validation", "test")).to_csv(tmp_path / "own.csv", index=False)
    with pytest.raises(ConfigError, match="a CNN needs validation scans"):
        train(replace(own, out=tmp_path / "none"), resume=False)
    assert not (tmp_path / "none" / "run.json").exists()


def test_a_resumed_run_is_divided_as_its_list_says(config, tmp_path, capsys):
    write_features(tmp_path / "f.csv", 20, 0)
    rows = [f"s0-{b},{('train', 'validation')[b % 4 == b % 3]}" for b in range(18)]
    own = tmp_path / "own.csv"
    own.write_text("scan,split\n" + "\n".join(rows))
    table = SetSettings("features", str(tmp_path / "f.csv"))
    head = HeadSettings(n_inducing=8, sweeps=2, calibration="none")
    run = replace(config, train=table, head=head, split=SplitSettings(file=own))
    train(run, resume=False)
    assert f"{own}: 2 scans are in no split and take no part: s0-18, s0-19" in capsys.readouterr().out
    own.write_text("scan,split\n" + "\n".join(rows[::-1]))
    train(run, resume=True)  # the same list in another order
    for other in (rows[:-1], [*rows[:-1], "s0-17,test"], [*rows, "s0-18,train"]):
        own.write_text("scan,split\n" + "\n".join(other))
        with pytest.raises(
            DataError, match=r"own\.csv: divides 1 scans otherwise than when the run began: s0-1"
        ):
            train(run, resume=True)


def test_sets_that_are_absent_or_of_two_kinds_are_refused_before_anything_is_read(config, told, tmp_path):
    absent = replace(config, external=SetSettings("rsna", str(tmp_path / "absent")))
    with pytest.raises(DataError, match="absent: no such file or folder"):
        train(absent, resume=False)
    write_features(tmp_path / "f.csv", 4, 0)
    mixed = replace(config, external=SetSettings("features", str(tmp_path / "f.csv")))
    with pytest.raises(ConfigError, match="must both be pictures or both be features"):
        train(mixed, resume=False)
    assert not config.out.exists()
    assert not config.prepared.exists()


@pytest.mark.parametrize("read", ["train", "external"])
def test_a_run_is_not_written_into_the_data(config, site, told, read):
    inside = replace(config, out=site / "run", **{read: SetSettings("rsna", str(site))})
    with pytest.raises(ConfigError, match=r"lies in the folder that is read .*choose another --out"):
        train(inside, resume=False)
    assert not inside.out.exists()
    assert not inside.prepared.exists()


def test_a_network_that_cannot_be_built_is_told_before_scans_are_prepared(config, told):
    with pytest.raises(ModelError, match="encoder 'resnet19' is neither"):
        train(replace(config, encoder=EncoderSettings(name="resnet19")), resume=False)
    assert not config.out.exists()
    assert not config.prepared.exists()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"kernel": "RBF"}, "head.kernel: gpytorch.kernels has no kernel 'RBF'"),
        ({"kernel": "PolynomialKernel"}, "head.kernel: PolynomialKernel cannot be made from its name alone"),
        ({"kernel": "RBFKernelGrad"}, r"a matrix \((10, 10|8, 8)\) of 2 slices, not \(2, 2\)"),
    ],
)
def test_a_head_that_cannot_be_fitted_is_told_before_scans_are_prepared(
    config, told, tmp_path, chosen, message
):
    """With a width of 4, or of 3 features: a value and a derivative for each."""
    config = replace(config, head=HeadSettings(**chosen))
    with pytest.raises(ConfigError, match=message):
        train(config, resume=False)
    write_features(tmp_path / "f.csv", 30, 0)
    table = replace(config, train=SetSettings("features", str(tmp_path / "f.csv")))
    with pytest.raises(ConfigError, match=message):
        train(table, resume=False)
    smooth = replace(table, head=HeadSettings(smooth_mm=5.0))
    with pytest.raises(DataError, match=r"f\.csv: head\.smooth_mm is 5"):
        train(smooth, resume=False)
    assert not config.out.exists()
    assert not config.prepared.exists()


@pytest.mark.parametrize(
    ("scans", "validation", "message"),
    [
        (8, 0.0, r"f\.csv: 5 folds need at least 5 patients of each label, there are 4 of one"),
        (
            2,
            0.5,
            r"f\.csv: 1 patients with label 0 are too few .* add scans of that label, or lower the shares$",
        ),
    ],
)
def test_too_few_scans_are_told_before_a_run_begins(config, tmp_path, scans, validation, message):
    write_features(tmp_path / "f.csv", scans, 0)
    table = SetSettings("features", str(tmp_path / "f.csv"))
    few = replace(config, train=table, split=SplitSettings(validation=validation))
    with pytest.raises(DataError, match=message):
        train(few, resume=False)
    assert not config.out.exists()
    uncalibrated = replace(few, split=SplitSettings(0.0), head=HeadSettings(calibration="none", n_inducing=4))
    train(uncalibrated, resume=False)


@pytest.mark.parametrize("validation", [0.3, 0.0])
def test_the_cnn_is_calibrated_on_the_scans_that_calibrate_the_head(config, tmp_path, validation):
    path = tmp_path / "f.csv"
    write_features(path, 40, 0)
    table = pd.read_csv(path)
    number = table.bag_name.str.split("-").str[1].astype(int)
    table.assign(bag_cnn_probability=0.2 + 0.5 * table.bag_label + number % 7 / 25).to_csv(path, index=False)
    head = HeadSettings(n_inducing=8, sweeps=2)
    run = replace(config, train=SetSettings("features", str(path)), head=head)
    run = replace(run, split=SplitSettings(validation, test=0.2))
    train(run, resume=False)
    splits = load_splits(run.out / "splits.csv")
    held = splits.scan[splits.split == ("validation" if validation else "train")].tolist()
    known = read_feature_csv(path).select(held)
    slope, intercept, _ = platt(torch.logit(known.cnn_scan.double()), known.labels)
    assert CnnSigmoid.load(run.out / CNN_SIGMOID) == CnnSigmoid(slope, intercept)


def test_a_head_is_there_when_all_that_is_told_of_it_is(config, tmp_path):
    write_features(tmp_path / "f.csv", 20, 0)
    table = SetSettings("features", str(tmp_path / "f.csv"))
    run = replace(config, train=table, head=HeadSettings(n_inducing=8, sweeps=2))
    (config.out / "head_fit.json").mkdir(parents=True)  # it cannot be written
    with pytest.raises((OSError, DataError)):
        train(run, resume=False)
    assert not (config.out / "head.json").exists()
    (config.out / "head_fit.json").rmdir()
    train(run, resume=True)
    assert (config.out / "head.json").is_file()


@pytest.mark.parametrize("validation", [0.3, 0.0])
def test_a_held_out_slice_far_from_training_is_told_with_file_and_scan(config, tmp_path, validation):
    path = tmp_path / "f.csv"
    write_features(path, 20, 0)
    splits = draw_splits(read_feature_csv(path).table, validation=validation, test=0.0, seed=config.seed)
    scan = splits.scan[splits.split == ("validation" if validation else "train")].iloc[-1]
    table = pd.read_csv(path)
    table.loc[table.index[table.bag_name == scan][1], "feature_2"] = 1e9
    table.to_csv(path, index=False)
    head = HeadSettings(n_inducing=8, sweeps=2)
    run = replace(config, train=SetSettings("features", str(path)), head=head)
    run = replace(run, split=SplitSettings(validation))
    with pytest.raises(DataError, match=rf"f\.csv: scan '{scan}': feature 2 of slice 1"):
        train(run, resume=False)


def test_training_starts_from_the_networks_of_a_finished_run(config, told, monkeypatch):
    start = AttentionCnn(replace(ENCODER, size=64), replace(CNN, features=8)).eval()
    members = [SimpleNamespace(cnn="another"), SimpleNamespace(cnn=start)]
    model = SimpleNamespace(members=members, check_input=lambda *, pictures: None)
    monkeypatch.setattr(module, "load_model", lambda run: model if run == Path("start") else None)
    with pytest.raises(ReachedError):
        train(replace(config, start=Path("start")), resume=False)  # its seed is odd: the second member
    assert told["start"] is start
    assert told["encoder"] == start.encoder_settings
    assert told["cnn"] == start.settings
    kept = read_config(["--config", str(config.out / "config.yaml")])
    assert (kept.encoder.size, kept.start) == (64, Path("start"))


def test_networks_are_not_trained_on_sets_for_heads_alone(config, told, tmp_path):
    other = phantoms.rsna(tmp_path / "other", studies=8, seed=1)
    with pytest.raises(ReachedError):
        train(replace(config, also=[SetSettings("rsna", str(other), networks=False)]), resume=False)
    own = {*open_prepared(config.prepared / "train").scans.index}
    assert {*told["splits"].scan} == own
    assert {*load_splits(config.out / "splits.csv").scan} > own

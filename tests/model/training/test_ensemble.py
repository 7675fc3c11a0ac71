"""Several runs as one model: the mixture by its moments; training, joining, calibration and use."""

import json
from dataclasses import replace
from shutil import copytree

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from ich_mil.config import RunConfig, SplitSettings
from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.families import RunHeadSettings
from ich_mil.gp.calibration import Calibration
from ich_mil.heads.counterfactual import Counterfactuals, counterfactuals
from ich_mil.model.predictions import DIGITS
from ich_mil.model.storage import load_model, samples_each
from ich_mil.model.training import train as training
from ich_mil.model.training.ensemble import join_runs, joint_splits
from ich_mil.model.training.train import train
from ich_mil.model.training.train_members import train_ensemble
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.sets.features import read_feature_table
from ich_mil.sets.splits import load_splits
from ich_mil.sets.views import Views
from tests import phantoms
from tests.feature_table import write_features
from tests.runs_for_tests import HEAD, TINY, refused, run, write_config

SAMPLES = 150


def write_tables(place, name, n_scans, seed):
    """The same scans as three networks see them: tables `name`0.csv, ... of 3, 3 and 2 features."""
    write_features(place / f"{name}0.csv", n_scans, seed)
    table = pd.read_csv(place / f"{name}0.csv")
    table["bag_cnn_probability"] = 0.3 + 0.4 * table.bag_label
    table.to_csv(place / f"{name}0.csv", index=False)
    generator = np.random.default_rng(seed + 100)
    for k in (1, 2):
        other = table.assign(bag_cnn_probability=table.bag_cnn_probability + 0.1 * k)
        for column in (f"feature_{i}" for i in range(3)):
            other[column] += generator.normal(size=len(table))
        other.drop(columns=["feature_2"][: k - 1]).to_csv(place / f"{name}{k}.csv", index=False)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    place = tmp_path_factory.mktemp("ensemble")
    write_tables(place, "a", 40, 0)
    write_tables(place, "b", 60, 1)
    return place


def config_of(tables, out, *, validation=0.3):
    return RunConfig(
        out=out,
        train=SetSettings("features", str(tables / "a{member}.csv")),
        external=SetSettings("features", str(tables / "b{member}.csv")),
        split=SplitSettings(validation=validation),
        head=RunHeadSettings(**HEAD, random_state=2),
        members=3,
        samples=SAMPLES,
        bootstrap=20,
        seed=5,
    )


@pytest.fixture(scope="module")
def trained(tables):
    """A trained ensemble, calibrated on validation scans, with metrics and report."""
    config = config_of(tables, tables / "run")
    assert run("train.py", *write_config(tables / "c.yaml", config.as_dict())) == 0
    return tables / "run"


@pytest.fixture
def views(tables):
    return Views.of([read_feature_table(tables / f"b{k}.csv") for k in range(3)])


def members_of(trained, views):
    """What each member says by itself, with as many samples."""
    models = [load_model(trained / f"member_{k}") for k in range(3)]
    return [model.predict(Views.of([view])) for model, view in zip(models, views.members, strict=True)]


def test_members_differ_in_their_seeds_and_tables_and_share_a_split(trained, tables):
    configs = [yaml.safe_load((trained / f"member_{k}" / "config.yaml").read_text()) for k in range(3)]
    assert [one["seed"] for one in configs] == [5, 6, 7]
    assert [one["head"]["random_state"] for one in configs] == [2, 3, 4]
    assert [one["train"]["root"] for one in configs] == [str(tables / f"a{k}.csv") for k in range(3)]
    splits = [
        load_splits(folder / "splits.csv")[["scan", "split"]]
        for folder in (trained, *trained.glob("member_?"))
    ]
    assert all(one.equals(splits[0]) for one in splits)
    alone = replace(config_of(tables, tables / "one"), members=1, train=SetSettings("features", "a.csv"))
    assert alone.member(0) is alone


def test_without_a_joint_calibration_members_move_to_a_prevalence(trained):
    model = replace(load_model(trained), calibration=None)
    assert [member.calibration.prevalence for member in model.members] == [0.5] * 3
    moved = model.at_prevalence(0.1)
    assert moved.provenance.prevalence == 0.1
    for before, after in zip(model.members, moved.members, strict=True):
        assert after.calibration.intercept == pytest.approx(before.calibration.intercept - np.log(9))


def test_the_mixture_has_the_mean_of_means_and_the_variance_within_and_between(trained, views):
    model, said = load_model(trained), members_of(trained, views)
    mixture = replace(model, calibration=None).predict(views)
    for level in ("scan", "slice"):
        means, stds = (
            torch.stack([getattr(one, f"{level}_{what}") for one in said]) for what in ("mean", "std")
        )
        torch.testing.assert_close(getattr(mixture, f"{level}_mean"), means.mean(0), rtol=1e-12, atol=1e-14)
        variance = stds.square().mean(0) + means.var(0, correction=0)
        torch.testing.assert_close(getattr(mixture, f"{level}_std").square(), variance, rtol=1e-9, atol=1e-14)
    drawn = [
        [
            scan.probabilities(one.calibration_then(None))
            for scan in one.head.draw(view, model.samples, seed=one.seed)
        ]
        for one, view in zip(model.members, views.members, strict=True)
    ]
    pooled = [
        [torch.cat(parts) for parts in zip(*of_scan, strict=True)] for of_scan in zip(*drawn, strict=True)
    ]
    for level, number in (("slice", 0), ("scan", 1)):
        wanted = np.concatenate([np.quantile(one[number], 0.025, axis=0) for one in pooled])
        np.testing.assert_allclose(getattr(mixture, f"{level}_low").numpy(), wanted, rtol=1e-10, atol=1e-14)


def test_without_slices_the_mixture_says_the_mean_of_its_members(trained, views):
    model = replace(load_model(trained), calibration=None)
    mixture, found = model.explain(views)
    assert torch.equal(mixture.slice_mean, model.predict(views).slice_mean)
    means = mixture.slice_mean.round(decimals=DIGITS).split(views.features.offsets.diff().tolist())
    each = []
    for member, view in zip(model.members, views.members, strict=True):
        pairs = zip(member.head.draw(view, model.samples, seed=member.seed), means, strict=True)
        last = member.calibration_then(None)
        scans = [counterfactuals(f, p, threshold=0.5, calibration=last) for f, p in pairs]
        each.append(Counterfactuals.join(scans))
    wanted = torch.stack([one.scan_without for one in each]).mean(0)
    torch.testing.assert_close(found.scan_without, wanted, rtol=1e-12, atol=0, equal_nan=True)
    runs = [[run.scan_without for of_scan in one.runs for run in of_scan] for one in each]
    assert len(runs[0]) > 5
    got = [run.scan_without for of_scan in found.runs for run in of_scan]
    np.testing.assert_allclose(got, np.mean(runs, 0), rtol=1e-12)


def test_the_joint_calibration_is_fitted_to_the_common_validation_scans(trained, tables):
    model = load_model(trained)
    splits = load_splits(trained / "splits.csv")
    held = splits.scan[splits.split == "validation"].tolist()
    views = Views.of([read_feature_table(tables / f"a{k}.csv").select(held) for k in range(3)])
    scans, slices = model.logits(views)
    assert scans.shape == (3 * SAMPLES, len(held))
    wanted = Calibration.fit(scans, slices, views.features.labels, rule="max")
    assert model.calibration == wanted
    own = model.members[0].head.calibration
    raw = load_model(trained / "member_0").logits(Views.of([views.members[0]]))[0]
    torch.testing.assert_close(scans[:SAMPLES], own.slope * raw + own.intercept, rtol=1e-12, atol=0)
    p = wanted.scan(scans).mean(0)
    torch.testing.assert_close(model.predict(views).scan_mean, p, rtol=1e-9, atol=0)
    told = "Platt scaling of members and of their mixture on held-out scans, 50% of them positive"
    assert model.provenance.calibration == told
    assert model.provenance.name == ("2 x VGPMIL, M=8, D=3, 1 x VGPMIL, M=8, D=2, mixture")


def test_slices_are_never_likelier_than_their_scan(trained, views):
    model = load_model(trained)
    strict = replace(model.calibration, intercept=-3.0, slice_intercept=3.0)
    said = replace(model, calibration=strict).predict(views)
    scans = said.scan_mean.repeat_interleave(views.features.offsets.diff())
    assert (said.slice_mean <= scans + 1e-12).all()
    assert (said.slice_mean > scans - 1e-12).any()


def test_samples_are_shared_out():
    assert [samples_each(1000, n) for n in (1, 2, 3, 10)] == [1000, 500, 333, 200]
    assert samples_each(150, 3) == 150


def test_a_member_that_fails_is_named_and_the_finished_are_not_trained_again(tables, tmp_path, monkeypatch):
    config, fit_head = config_of(tables, tmp_path / "run"), training.fit_head
    fitted = []

    def fails(features, splits, config, ranks):
        if config.seed == 6:
            raise ModelError(f"{config.out}: cannot be fitted")
        fit_head(features, splits, config, ranks)

    def counts(features, splits, config, ranks):
        fitted.append(config.out.name)
        fit_head(features, splits, config, ranks)

    monkeypatch.setattr(training, "fit_head", fails)
    with pytest.raises(ModelError, match=r"member 1: .*member_1: cannot be fitted"):
        train_ensemble(config, resume=False)
    head = (config.out / "member_0" / "head.json").stat().st_mtime_ns
    with pytest.raises(ModelError, match="member_1: its training is not finished"):
        load_model(config.out)
    monkeypatch.setattr(training, "fit_head", counts)
    with pytest.raises(ConfigError, match="--resume"):
        train_ensemble(config, resume=False)
    with pytest.raises(ConfigError, match="other settings"):
        train_ensemble(replace(config, samples=99), resume=True)
    train_ensemble(config, resume=True)
    assert fitted == ["member_1", "member_2"]
    assert (config.out / "member_0" / "head.json").stat().st_mtime_ns == head
    made = {path: path.read_bytes() for path in config.out.rglob("*") if path.is_file()}
    train_ensemble(config, resume=True)
    assert {path: path.read_bytes() for path in config.out.rglob("*") if path.is_file()} == made
    assert len(fitted) == 2


@pytest.mark.parametrize("validation", [0.3, pytest.param(0.0, marks=pytest.mark.slow)])
def test_joined_runs_are_the_trained_ensemble(tables, trained, tmp_path, views, validation):
    old = tmp_path / "run"
    if validation:
        copytree(trained, old)
    else:
        train_ensemble(config_of(tables, old, validation=validation), resume=False)
    assert run("ensemble", *sorted(old.glob("member_?")), "--out", tmp_path / "new") == 0
    for name in ("ensemble.json", "splits.csv", "cnn_sigmoid.json"):
        assert (tmp_path / "new" / name).read_bytes() == (old / name).read_bytes(), name
    old.rename(tmp_path / "gone")  # the new model holds all of its members
    before, joined = load_model(tmp_path / "gone"), load_model(tmp_path / "new")
    assert before.calibration.slope != 1
    assert torch.equal(before.predict(views).scan_mean, joined.predict(views).scan_mean)
    assert joined.provenance.name == before.provenance.name
    again = join_of_two(tmp_path / "new", tmp_path / "gone" / "member_0", tmp_path / "four")
    assert [member.folder.name for member in again.members] == [f"member_{k}" for k in range(4)]


def join_of_two(one, two, out):
    join_runs([one, two], out)
    return load_model(out)


def run_with_split(tables, place, k, parts):
    """Run k on 40 scans in these splits."""
    config = config_of(tables, place / f"run{k}")
    rows = [f"s0-{b},{part}" for b, part in enumerate(parts)]
    (place / f"{k}.csv").write_text("scan,split\n" + "\n".join(rows))
    split = SplitSettings(file=place / f"{k}.csv")
    train(replace(config.member(0), out=config.out, split=split, seed=k, external=None), resume=False)


PARTS = ["test"] * 6 + ["validation"] * 10 + ["train"] * 24


@pytest.fixture
def apart(tables, tmp_path):
    """Two runs with other splits of the same scans."""
    for k in range(2):
        run_with_split(tables, tmp_path, k, PARTS[:: 1 - 2 * k])
    return tmp_path


@pytest.mark.parametrize(
    ("common", "told"), [(1, "hold out different scans, train"), (3, "3 scans are held")]
)
def test_runs_with_few_common_validation_scans(apart, tables, capsys, common, told):
    """One scan is no validation split; three of ten are too few for a calibration of the mixture."""
    before = 16 - common  # run0 has scans 6 to 15 in its validation split
    parts = ["train"] * before + ["validation"] * 10 + ["train"] * (24 - before) + ["test"] * 6
    run_with_split(tables, apart, 2, parts)
    if common == 1:
        with pytest.raises(DataError, match=told):
            join_of_two(apart / "run0", apart / "run2", apart / "new")
        assert not (apart / "new" / "run.json").exists()
    else:
        assert join_of_two(apart / "run0", apart / "run2", apart / "new").calibration is None
        assert told in capsys.readouterr().out


def test_runs_without_common_validation_scans_keep_their_calibrations(apart, tables, capsys):
    model = join_of_two(apart / "run0", apart / "run1", apart / "new")
    assert "0 scans are held out from all members" in capsys.readouterr().out
    assert model.calibration is None
    splits = load_splits(apart / "new" / "splits.csv").set_index("scan").split
    # tests of one are training scans of the other
    assert splits.value_counts().to_dict() == {"train": 40}
    site = read_feature_table(tables / "b0.csv")
    views = Views.of([site, site])
    means = [load_model(apart / f"run{k}").predict(Views.of([site])).scan_mean for k in range(2)]
    torch.testing.assert_close(model.predict(views).scan_mean, sum(means) / 2, rtol=1e-12, atol=0)
    words = (tables / "b0.csv", "--layout", "features", "--model")
    assert run("recalibrate", *words, apart / "new", "--out", apart / "ours") == 0
    ours = load_model(apart / "ours")
    assert (ours.calibration.slope, ours.calibration.slice_slope) == (1, 1)
    assert ours.calibration.intercept != 0
    assert float(ours.predict(views).scan_mean.mean()) == pytest.approx(0.5, abs=0.02)
    assert "a0" not in capsys.readouterr().err
    refused(capsys, "validate", *words, apart / "ours", "--out", apart / "v")


def test_a_scan_is_in_the_split_of_whoever_has_learned_most_from_its_patient():
    def table(*rows):
        return pd.DataFrame(rows, columns=["scan", "patient", "label", "split", "content"]).assign(
            learn="all"
        )

    one = table(("a", "p", 1, "train", "1"), ("b", "q", 0, "test", "2"), ("c", "r", 0, "validation", "3"))
    two = table(("a2", "p", 1, "test", "4"), ("b", "q", 0, "test", "2"), ("d", "s = t", 0, "test", "3"))
    three = table(("e", "t", 0, "test", "5"), ("f", "u", 1, "test", "6"), ("c", "r", 0, "test", "3"))
    found = joint_splits([one, two, three]).set_index("scan").split.to_dict()
    # d has the slices of c, and e a patient of d
    assert found == {
        "a": "train", "a2": "train", "b": "test", "c": "validation", "d": "validation", "e": "validation",
        "f": "test",
    }  # fmt: skip


def test_a_run_that_cannot_be_joined_is_named(trained, tmp_path, capsys):
    runs = [tmp_path / f"run{k}" for k in range(3)]
    for k, copy in enumerate(runs):
        copytree(trained / f"member_{k}", copy)
    (runs[1] / "head.json").unlink()
    command = ("ensemble", *runs, "--out", tmp_path / "new")
    assert f"{runs[1]}: its training is not finished" in refused(capsys, *command)
    assert not (tmp_path / "new").exists()
    joins = ("ensemble", runs[0], runs[2], "--out", tmp_path / "new")
    assert run(*joins) == 0
    assert "holds a run already" in refused(capsys, *joins)
    about = json.loads((runs[2] / "run.json").read_text())
    for change, error, given, message in (
        ({}, ConfigError, (0, 0), "is the same model as"),
        ({}, ConfigError, (0,), "at least two"),
        ({"site": {"scans": 30, "positive": 4, "run": "x"}}, ModelError, (0, 2), "run2: is recalibrated"),
    ):
        (runs[2] / "run.json").write_text(json.dumps(about | change))
        with pytest.raises(error, match=message):
            join_runs([runs[k] for k in given], tmp_path / "out")


def test_an_ensemble_is_validated_reported_recalibrated_and_triaged(trained, tables, tmp_path, capsys):
    assert (trained / "report.html").is_file()
    table = pd.read_csv(trained / "external" / "metrics.csv")
    assert table[(table.level == "scan") & (table.metric == "auc")].set_index("model").value.iloc[0] > 0.9
    words = (tables / "b{member}.csv", "--layout", "features", "--model")
    assert run("validate", *words, trained, "--out", tmp_path / "v") == 0
    assert pd.read_csv(tmp_path / "v" / "metrics.csv").equals(table)
    assert run("report", trained) == 0
    assert run("recalibrate", *words, trained, "--out", tmp_path / "ours") == 0
    own, ours = load_model(trained), load_model(tmp_path / "ours")
    assert replace(ours.calibration, intercept=0.0) == replace(own.calibration, intercept=0.0)
    assert ours.calibration.intercept != own.calibration.intercept
    assert ours.provenance.weights != own.provenance.weights
    for command in (
        ("validate", *words, tmp_path / "ours", "--out", tmp_path / "w"),
        ("report", tmp_path / "ours"),
        ("train", "--config", tables / "c.yaml", "--out", tmp_path / "ours", "--resume"),
        ("ensemble", tmp_path / "ours", trained, "--out", tmp_path / "x"),
    ):
        refused(capsys, *command)
    options = ("--sensitivity", 0.8, "--specificity", 0.8, "--confidence", 0.8)
    assert run("triage", tmp_path / "v", *options) == 0
    assert json.loads((tmp_path / "v" / "triage.json").read_text())["model_weights"] == own.provenance.weights


@pytest.mark.slow
def test_pictures_to_predictions_by_members_of_different_sizes(tmp_path):
    phantoms.rsna(tmp_path / "site", studies=8)
    settings = TINY | {
        "out": str(tmp_path / "run"),
        "prepared": str(tmp_path / "prepared"),
        "train": {"layout": "rsna", "root": str(tmp_path / "site")},
        "split": {"validation": 0.3},
        "training": {"max_epochs": 1, "bags": 2},
        "head": {"n_inducing": 8, "sweeps": 3, "calibration": "none"},
        "members": 2,
        "pages": 1,
    }
    words = write_config(tmp_path / "c.yaml", settings)
    assert run("train.py", *words) == 0
    assert len([*(tmp_path / "run" / "studies").glob("*.html")]) == 1
    other = ("--encoder.size", 64, "--encoder.crop", "true", "--members", 1, "--out", tmp_path / "other")
    assert run("train", *words, *other, "--split.file", tmp_path / "run" / "splits.csv") == 0
    assert run("ensemble", tmp_path / "run", tmp_path / "other", "--out", tmp_path / "new") == 0
    phantoms.rsna(tmp_path / "new_site", studies=1, seed=1)
    out = tmp_path / "predictions"
    model = ("--model", tmp_path / "new", "--out", out, "--jobs", 1, "--dicom")
    assert run("predict", tmp_path / "new_site", *model) == 0
    names = {path.name for path in out.iterdir()}
    assert {"features.safetensors", "features_1.safetensors", "features_2.safetensors"} <= names
    assert {"index.html", "scans.csv", "slices.csv", "dicom"} <= names
    about = json.loads((out / "predictions.json").read_text())["model"]
    assert about["weights"] == load_model(tmp_path / "new").provenance.weights
    assert about["name"].startswith("3 x ")

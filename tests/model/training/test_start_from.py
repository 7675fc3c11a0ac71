"""Runs that start from the networks of another: what is kept, inherited and refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ich_mil.config import SplitSettings, read_config
from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.families import RunHeadSettings
from ich_mil.model.training import train as module
from ich_mil.model.training.resume import check_folder, with_start_settings
from ich_mil.model.training.train import train
from ich_mil.model.training.training_sets import unseen_by_network
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.frozen import load_cnn
from ich_mil.network.location import Location
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.sets.splits import load_learned, load_splits
from ich_mil.sets.store import open_prepared
from tests import phantoms
from tests.train_for_tests import CNN, ENCODER, ReachedError, begin


def start_model(network, location=None):
    """A model with a second member of this network."""
    members = [SimpleNamespace(cnn="another"), SimpleNamespace(cnn=network, location=location)]
    return SimpleNamespace(members=members, check_input=lambda *, pictures: None)


@pytest.fixture
def network(monkeypatch):
    """The second network of every run to start from."""
    start = AttentionCnn(replace(ENCODER, size=64), replace(CNN, features=32)).eval()
    monkeypatch.setattr(module, "load_model", lambda run: start_model(start))
    return start


@pytest.fixture
def parent(config, told, network, tmp_path):
    """Folder of a run on `site`, with terms of use."""
    run = replace(config, out=tmp_path / "parent", train=replace(config.train, terms="not for sale"))
    begin(run)
    return run.out


TRAINED = replace(ENCODER, freeze=0)
"""Networks of another run are trained, although the scans are few."""


def test_training_starts_from_the_networks_of_a_finished_run(config, told, network, parent, tmp_path):
    begin(replace(config, start=parent, encoder=TRAINED))  # its seed is odd: the second member
    assert told["start"] is network
    assert told["encoder"] == replace(network.encoder_settings, freeze=0)
    assert told["cnn"] == network.settings
    kept = read_config(["--config", str(config.out / "config.yaml")])
    assert (kept.encoder.size, kept.start) == (64, parent)


def test_a_resumed_run_needs_the_start_that_it_began_with(config, told, network, parent):
    child = replace(config, start=parent, encoder=TRAINED)
    begin(child)
    check_folder(child, resume=True)  # the stored size is that of the start, 64, not 32
    with pytest.raises(ConfigError, match=r"other settings \(encoder.freeze\)"):
        check_folder(replace(child, encoder=replace(TRAINED, freeze=1)), resume=True)
    with pytest.raises(ConfigError, match=r"\(.*start.*\); repeat --from"):
        check_folder(replace(config, encoder=TRAINED), resume=True)
    with pytest.raises(ReachedError):
        train(child, resume=True)
    (parent / "cnn.safetensors").write_bytes(b"another network")
    with pytest.raises(DataError, match=r"parent: the run to start from has changed since .* began"):
        train(child, resume=True)


@pytest.mark.parametrize(("learn", "freeze"), [("all", "none"), ("heads", 0)])
def test_few_scans_and_sets_for_heads_keep_the_networks(
    config, told, network, parent, sites, monkeypatch, capsys, learn, freeze
):
    place, heads = Location(np.arange(16.0), 1.0, 2.0, 3.0), []
    monkeypatch.setattr(module, "load_model", lambda run: start_model(network, place))
    monkeypatch.setattr(module, "fit_head", lambda *words: heads.append(words))
    child = replace(config, start=parent, train=SetSettings("rsna", str(sites / "other"), learn=learn))
    child = replace(child, encoder=replace(ENCODER, freeze=freeze))
    told.clear()
    train(replace(child, prepared=child.out.parent / "other"), resume=False)
    assert not told
    assert "kept as in" in capsys.readouterr().out
    for name, value in load_cnn(child.out).state_dict().items():
        assert torch.equal(value, network.state_dict()[name])
    assert Location.load(child.out, 16).slope == 2.0
    splits = load_splits(child.out / "splits.csv")
    assert {*splits.learn} == {"heads"}
    assert "other: 6 scans" in (text := json.loads((child.out / "run.json").read_text())["trained_on"])
    assert "(heads alone)" in text
    features, _, own, _ = heads[0]
    assert sorted(unseen_by_network(features, splits, own)) == sorted(splits.scan)
    assert {*load_learned(child.out / "splits.csv").split} > {"inherited"}


def test_kept_networks_stay_where_scans_were_added_before_resume(
    config, told, network, parent, sites, monkeypatch
):
    monkeypatch.setattr(module, "fit_head", lambda *words: None)
    child = replace(config, start=parent, train=SetSettings("rsna", str(sites / "other")))
    child = replace(child, prepared=child.out.parent / "other")
    train(child, resume=False)
    (child.out / "cnn.json").unlink()  # as after a kill
    monkeypatch.setattr(module, "keeps_networks", lambda *_: False)  # as from 100 scans on
    told.clear()
    train(child, resume=True)
    assert not told
    assert (child.out / "cnn.json").is_file()


def test_scans_that_the_kept_networks_learned_are_not_new(config, parent, network, monkeypatch):
    heads = []
    monkeypatch.setattr(module, "fit_head", lambda *words: heads.append(words))
    child = replace(config, start=parent)
    train(child, resume=False)
    splits = load_splits(child.out / "splits.csv").set_index("scan")
    before = load_splits(parent / "splits.csv").set_index("scan").split
    assert ((splits.learn == "all") == before[splits.index].isin(["train", "validation"])).all()
    features, table, own, _ = heads[0]
    unseen = {*unseen_by_network(features, table, own)}
    assert unseen == {*splits.index[(splits.split != "train")]}


def test_a_child_has_the_members_and_the_head_of_its_start(config, tmp_path):
    child = with_start_settings(replace(config, start=Path("headct-base")))
    assert (child.members, child.head.rule) == (2, "top_3")
    own = replace(config, start=Path("headct-base"), members=4, head=RunHeadSettings(rule="noisy_or"))
    assert with_start_settings(own) == own


def test_two_generations_inherit_what_networks_learned(config, told, network, parent, sites, tmp_path):
    for seed, name in enumerate(("child", "grandchild"), start=1):
        root = phantoms.rsna(tmp_path / f"data_{name}", studies=8, seed=10 * seed)
        start = parent if name == "child" else tmp_path / "child"
        run = replace(config, out=tmp_path / name, prepared=tmp_path / f"prepared_{name}", start=start)
        run = replace(run, train=SetSettings("rsna", str(root)), encoder=TRAINED)
        begin(run)
        assert len(told["splits"]) == 8  # the network learns from its own scans
        assert "site: 6 scans" in (text := json.loads((run.out / "run.json").read_text())["trained_on"])
        assert "terms: not for sale" in text
        again = replace(run, out=tmp_path / "again", external=config.train)
        with pytest.raises(DataError, match=r"site: . of its patients were trained or calibrated on"):
            train(again, resume=False)
    learned = load_learned(tmp_path / "grandchild" / "splits.csv")
    assert learned.split.value_counts().inherited == 12


def test_scans_of_earlier_training_are_not_held_out(config, told, parent, tmp_path):
    before = load_splits(parent / "splits.csv").set_index("scan").split
    again = replace(config, start=parent, seed=7, encoder=TRAINED)
    begin(again)
    splits = told["splits"].set_index("scan").split
    assert splits.equals(before[splits.index])
    held = before.replace({"train": "validation", "validation": "train"})
    held.rename("split").to_csv(tmp_path / "split.csv")
    swapped = replace(again, out=tmp_path / "swapped", split=SplitSettings(file=tmp_path / "split.csv"))
    with pytest.raises(DataError, match=r"split\.csv: holds out \d scans that the networks to start from"):
        train(swapped, resume=False)


def test_scans_of_earlier_heads_may_be_held_out(config, told, network, sites, tmp_path):
    heads = replace(config, also=[SetSettings("rsna", str(sites / "other"), learn="heads")])
    begin(replace(heads, out=tmp_path / "parent"))
    child = replace(config, start=tmp_path / "parent", train=SetSettings("rsna", str(sites / "other")))
    begin(replace(child, prepared=tmp_path / "prepared", encoder=TRAINED))
    assert {*told["splits"].split} == {"train", "validation", "test"}
    assert {*load_learned(config.out / "splits.csv").split} > {"inherited"}


def test_networks_without_known_scans_are_refused(config, told, parent):
    (parent / "splits.csv").unlink()
    with pytest.raises(ModelError, match=r"parent/splits\.csv: is missing"):
        train(replace(config, start=parent), resume=False)


def test_networks_are_not_trained_on_sets_for_heads_alone(config, told, sites):
    begin(replace(config, also=[SetSettings("rsna", str(sites / "other"), learn="heads")]))
    own = {*open_prepared(config.prepared / "train").scans.index}
    assert {*told["splits"].scan} == own
    assert {*load_splits(config.out / "splits.csv").scan} > own

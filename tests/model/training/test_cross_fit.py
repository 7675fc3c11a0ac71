"""A run whose networks learn the scans of two sources, each without the scans that the head learns."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

from ich_mil.cli import main, train_main
from ich_mil.config import read_config
from ich_mil.errors import ConfigError, DataError
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.model.folder import read_run
from ich_mil.model.storage import load_model
from ich_mil.model.training import cross_fit as crossed
from ich_mil.model.training.train import train
from ich_mil.model.training.training_sets import open_training, trained_on, unseen_by_network
from ich_mil.network.frozen import extract_features, load_cnn
from ich_mil.network.training import fit_cnn as fit
from ich_mil.sets.features import read_features
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.splits import load_splits, network_learned
from ich_mil.sets.store import open_prepared
from tests import phantoms

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:probabilities are")]


@pytest.fixture
def words(tmp_path):
    """Two sets of whole scans in `a` and `c`, and single slices of others in `b`."""
    phantoms.rsna(tmp_path / "a", studies=8)
    phantoms.rsna(tmp_path / "c", studies=6, seed=2)
    others = prepare("rsna", phantoms.rsna(tmp_path / "o", studies=6, seed=1), tmp_path / "others", jobs=1)
    (tmp_path / "b").mkdir()
    rows = []
    for scan, of_scan in others.table.groupby("scan"):
        for n, label in zip(of_scan["index"], of_scan.slice_label, strict=True):
            grey = (others.hu(scan)[n].clip(0, 80) * (255 / 80)).astype(np.uint8)
            Image.fromarray(grey).save(tmp_path / "b" / f"{scan}_{n}.png")
            rows.append((f"{scan}_{n}", label, scan))
    table = pd.DataFrame(rows, columns=["slice", "label", "patient"])
    table.to_csv(tmp_path / "b" / "labels.csv", index=False)
    crossed = {"layout": "rsna", "learn": "sources"}
    settings = {
        "out": str(tmp_path / "run"),
        "prepared": str(tmp_path / "prepared"),
        "train": crossed | {"root": str(tmp_path / "a")},
        "also": [
            {"layout": "slices", "root": str(tmp_path / "b"), "window": [40, 80]},
            crossed | {"root": str(tmp_path / "c")},
        ],
        "split": {"validation": 0.3},
        "encoder": {"size": 32, "channels": [[40, 80]]},
        "training": {"learning_rate": 1e-3, "max_epochs": 1, "bags": 4, "patience": None},
        "head": {"n_inducing": 16},
        "samples": 100,
        "bootstrap": 20,
        "pages": 0,
        "jobs": 1,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    return ["--config", str(tmp_path / "run.yaml")]


def test_a_head_learns_scans_by_networks_that_did_not_learn_their_source(words, monkeypatch):
    learned, bags = [], []
    dataset, fit_head = fit.ScanDataset, GaussianProcessHead.fit

    def noted(prepared, scans, **settings):
        learned.append({*scans})
        return dataset(prepared, scans, **settings)

    def given(features, *others, **settings):
        bags.append(features)
        return fit_head(features, *others, **settings)

    monkeypatch.setattr(fit, "ScanDataset", noted)
    monkeypatch.setattr(GaussianProcessHead, "fit", given)
    assert train_main(words) == 0
    config = read_config(words)
    names = ("train", "also_1", "also_2")
    a, b, c = ({*open_prepared(config.prepared / name).scans.index} for name in names)
    splits = load_splits(config.out / "splits.csv")
    slices = b & {*splits.scan[splits.split == "train"]}
    assert learned[::2] == [slices, slices | a, slices | c, slices | a | c]  # of each network
    assert learned[1::2] == [b - slices] * 4
    assert {*network_learned(splits).scan} == a | b | c
    assert "(cross-fitted)" in trained_on(config, splits)

    path, prepared = config.out / "features" / "train.safetensors", open_training(config)
    features = read_features(path)
    sources = {"without_0": c, "without_1": a, ".": b}  # sets in the order of their folders: also_2, train
    for folder, scans in sources.items():
        own = sorted(scans)
        network = load_cnn(config.out / folder)
        assert torch.equal(features.select(own).x, extract_features(network, prepared, own).x)
    final = extract_features(load_cnn(config.out), prepared, sorted(a)).x
    assert not torch.allclose(features.select(sorted(a)).x, final)
    assert {*unseen_by_network(features, splits, config)} >= a | c
    (bag,) = bags
    sizes = dict(zip(bag.scans, bag.offsets.diff().tolist(), strict=True))
    assert {scan for scan, size in sizes.items() if size > 1} == a | c  # whole scans

    for file in (path, config.out / "head.json"):  # as if killed between network and features
        file.unlink()
    count = len(learned)
    train(config, resume=True)
    again = read_features(path)
    assert again.scans == features.scans
    assert torch.equal(again.x, features.x)
    assert len(learned) == count


def test_the_members_of_an_ensemble_may_use_a_set_differently(words, tmp_path):
    path = tmp_path / "run.yaml"
    settings = yaml.safe_load(path.read_text()) | {"members": 2}
    settings["train"]["learn"] = settings["also"][1]["learn"] = ["heads", "sources"]
    path.write_text(yaml.safe_dump(settings))
    assert train_main(words) == 0
    config = read_config(words)
    a = {*open_prepared(config.prepared / "train").scans.index}
    learned = [
        {*network_learned(load_splits(folder / "splits.csv")).scan}
        for folder in (config.out / "member_0", config.out / "member_1", config.out)
    ]
    assert a.isdisjoint(learned[0])
    assert a <= learned[1] == learned[2]
    told = read_run(config.out)["trained_on"]
    assert told.count("(heads alone)") == told.count("(cross-fitted)") == 2
    assert not (config.out / "member_0" / "with_all").exists()
    made = {file: file.read_bytes() for file in (config.out / "run.json", config.out / "splits.csv")}
    assert train_main([*words, "--resume"]) == 0
    assert {file: file.read_bytes() for file in made} == made
    other, joined = tmp_path / "other", tmp_path / "joined"
    a, c = ({"layout": "rsna", "root": str(tmp_path / name), "learn": "sources"} for name in "ac")
    child = {"out": str(other), "members": 1, "seed": 3, "train": a, "also": [settings["also"][0], c]}
    path.write_text(yaml.safe_dump(settings | child))
    assert main(["train", "--from", str(config.out / "member_1"), *words]) == 0
    table = load_splits(other / "splits.csv")
    assert "sources" not in {*table.learn}  # its network began at one that has learned them
    assert not (other / "without_0").exists()
    assert main(["ensemble", str(config.out), str(other), "--out", str(joined)]) == 0
    assert len(load_model(joined).members) == 3
    path.write_text(yaml.safe_dump(settings | {"members": 3}))
    with pytest.raises(ConfigError, match="one entry for each of the 3 members"):
        read_config(words)


def test_a_patient_of_a_fold_is_in_no_network_of_it(words, monkeypatch):
    config = read_config(words)
    splits = pd.DataFrame(
        [
            ("a0", "p", 1, "train", "sources"),
            ("a1", "q", 0, "test", "sources"),
            ("c0", "p", 1, "train", "sources"),
            ("c1", "r", 0, "train", "sources"),
            ("b0", "s", 1, "train", "all"),
        ],
        columns=["scan", "patient", "label", "split", "learn"],
    )
    learned = []

    def noted(prepared, table, folder, **settings):
        learned.append({*table.scan})
        return

    monkeypatch.setattr(fit, "fit_cnn", noted)
    monkeypatch.setattr(crossed, "set_names", lambda scans, config: [scan[0] for scan in scans])
    monkeypatch.setattr(crossed, "in_slices", lambda config: set())
    monkeypatch.setattr(crossed, "save_cnn", lambda network, folder: None)
    crossed.cross_fit(None, None, splits, config)
    assert learned == [{"b0", "c1"}, {"b0"}, {"b0", "a0", "c0", "c1"}]
    with pytest.raises(DataError, match="are in a set of learn: all too: 1, r; take"):
        crossed.check_patients(splits.replace("s", "r"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"slice_labels": True}, "slice_labels: learn: sources has networks learn slices by itself"),
        ({"learn": []}, "at least 1 item"),
        ({"learn": ["heads", "all"]}, "'heads', 'sources'"),
    ],
)
def test_a_wrong_use_of_a_set_is_refused(words, change, reason):
    path = Path(words[1])
    settings = yaml.safe_load(path.read_text())
    settings["train"] |= change
    path.write_text(yaml.safe_dump(settings))
    with pytest.raises(ConfigError, match=reason):
        read_config(words)

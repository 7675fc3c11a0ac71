"""A run on whole scans beside single labelled slices, from files to a report."""

import re
import shutil
from dataclasses import astuple, replace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

from ich_mil.cli import train_main
from ich_mil.config import read_config
from ich_mil.errors import DataError
from ich_mil.evaluate.baselines import CNN_SIGMOID, CnnSigmoid
from ich_mil.gp.calibration import platt
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.model.maps import read_maps
from ich_mil.model.predictions import read_results
from ich_mil.model.training import training_sets as sets
from ich_mil.model.training.train import fit_head, train
from ich_mil.model.training.training_sets import open_training, trained_on, training_boxes
from ich_mil.network.frozen import load_cnn
from ich_mil.network.location import Location
from ich_mil.network.training import fit_cnn as fit
from ich_mil.ranks import these_ranks
from ich_mil.sets.features import read_features
from ich_mil.sets.preparation.prepare import prepare
from ich_mil.sets.splits import load_splits
from ich_mil.sets.store import open_prepared
from tests import phantoms

# a head fitted to a handful of tiny scans may rank its validation scans no better than chance, and says so
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:probabilities are")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """RSNA-layout phantoms in `a`; every second slice of others as brain-window pictures in `b`."""
    place = tmp_path_factory.mktemp("slices_run")
    phantoms.rsna(place / "a", studies=10)
    others = prepare("rsna", phantoms.rsna(place / "o", studies=6, seed=1), place / "others", jobs=1)
    (place / "b").mkdir()
    rows = []
    for scan, of_scan in others.table.groupby("scan"):
        hu = others.hu(scan)
        for n, label in zip(of_scan["index"].iloc[::2], of_scan.slice_label.iloc[::2], strict=True):
            name = f"{scan}_{n}"
            Image.fromarray((hu[n].clip(0, 80) * (255 / 80)).astype(np.uint8)).save(
                place / "b" / f"{name}.png"
            )
            rows.append((name, label, scan))
    pd.DataFrame(rows, columns=["slice", "label", "patient"]).to_csv(place / "b" / "labels.csv", index=False)
    settings = {
        "out": str(place / "run"),
        "prepared": str(place / "prepared"),
        "train": {"layout": "rsna", "root": str(place / "a"), "slice_labels": True},
        "also": [{"layout": "slices", "root": str(place / "b"), "window": [40, 80]}],
        "split": {"validation": 0.35, "test": 0.3},
        "encoder": {"size": 32, "channels": [[40, 80]]},
        "training": {"learning_rate": 1e-3, "max_epochs": 2, "bags": 4},
        "head": {"n_inducing": 16},
        "samples": 100,
        "bootstrap": 20,
        "pages": 2,
        "jobs": 1,
        "seed": 18,  # by which each split has scans of both labels and single slices
    }
    (place / "run.yaml").write_text(yaml.safe_dump(settings))
    return place


@pytest.fixture(scope="module")
def run(place):
    """The finished run, and what its parts were given."""
    given = {"bags": [], "weights": [], "head": []}

    def noted(module, name, what):
        """A function, or class, of a module whose arguments, or instances, are noted."""
        made = getattr(module, name)

        def call(*words, **settings):
            one = made(*words, **settings)
            given[what].append(one if isinstance(made, type) else (*words, *settings.values()))
            return one

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "ScanDataset", noted(fit, "ScanDataset", "bags"))
        patch.setattr(fit, "class_weights", noted(fit, "class_weights", "weights"))
        patch.setattr(sets, "LEAST_WATCHED", 2)
        patch.setattr(GaussianProcessHead, "fit", noted(GaussianProcessHead, "fit", "head"))
        assert train_main(["--config", str(place / "run.yaml")]) == 0
    return read_config(["--config", str(place / "run.yaml")]), given


def test_scans_of_both_sets_are_divided_together_and_learned_from(run):
    config, given = run
    learned, watched = given["bags"]
    splits = load_splits(config.out / "splits.csv")
    features = read_features(config.out / "features" / "train.safetensors")
    assert sorted(features.scans) == sorted(splits.scan)
    sizes = dict(zip(features.scans, features.offsets.diff().tolist(), strict=True))
    for split, dataset in (("train", learned), ("validation", watched)):
        chosen = splits[splits.split == split]
        assert dataset.scans == chosen.scan.tolist()
        assert {1} < {sizes[scan] for scan in chosen.scan}  # single slices and scans
    own = features.select(learned.scans)
    assert learned.bag_labels == own.slice_labels.tolist()  # every slice a bag, as all are labelled
    assert watched.bag_labels == features.select(watched.scans).labels.tolist()
    assert given["weights"] == [(learned.bag_labels,)]


def test_the_head_learns_from_slices_and_is_calibrated_on_whole_scans(run):
    config, given = run
    learned, watched = given["bags"]
    ((learn, _, _, watch, _),) = given["head"]
    assert learn.offsets.diff().tolist() == [1] * len(learned.bag_labels)
    assert learn.labels.tolist() == learned.bag_labels
    assert watch.scans == [
        scan for scan, n in zip(watched.scans, watched.sizes.tolist(), strict=True) if n > 1
    ]
    assert {*watch.labels.tolist()} == {0, 1}
    assert [*pd.read_csv(config.out / "validation" / "scans.csv").scan] == watch.scans


def test_the_cnn_is_calibrated_on_whole_scans_without_validation_scans(run, tmp_path):
    config, _ = run
    splits = load_splits(config.out / "splits.csv")
    features = read_features(config.out / "features" / "train.safetensors")
    several = features.offsets.diff() > 1
    rising = 0.3 + 0.4 * features.labels + torch.arange(features.n_scans) % 7 / 50
    features = replace(features, cnn_scan=torch.where(several, rising, 1 - rising))
    head = replace(config.head, calibration="none")
    fit_head(features, splits, replace(config, out=tmp_path, head=head), these_ranks())  # too few to watch
    learn = set(splits.scan[splits.split != "test"])
    used = torch.tensor([scan in learn for scan in features.scans]) & several
    wanted = platt(torch.logit(features.cnn_scan[used].double()), features.labels[used])[:2]
    assert astuple(CnnSigmoid.load(tmp_path / CNN_SIGMOID)) == pytest.approx(wanted)


def test_whole_scans_alone_are_measured_and_have_pages(run):
    config, _ = run
    for name in ("validation", "test"):
        slices = pd.read_csv(config.out / name / "slices.csv")
        assert slices.groupby("scan").size().min() > 1
    pages = [page.read_text() for page in (config.out / "studies").glob("*.html")]
    assert len(pages) == 2
    assert all(re.search(r'"left": ?"R"', page) for page in pages)  # of the records of their own set
    report = (config.out / "report.html").read_text()
    assert "single slices are not measured" in report
    assert "Trained on scan labels alone" not in report


def test_a_resumed_run_notices_a_changed_label_of_either_set_and_of_a_slice_alone(run, place):
    config, _ = run
    made = (config.out / "head.json").read_bytes()
    table = open_prepared(config.prepared / "train").table
    sop = table.sop[(table.scan_label == 1) & (table.slice_label == 0)].iloc[0]
    for path, row in (
        (place / "b" / "labels.csv", lambda labels: labels.index == 0),
        (place / "a" / "stage_2_train.csv", lambda labels: f"{sop}_any" == labels.ID),
    ):
        before, labels = path.read_text(), pd.read_csv(path)
        column = "label" if "label" in labels else "Label"
        labels.loc[row(labels), column] = 1 - labels.loc[row(labels), column]
        labels.to_csv(path, index=False)
        with pytest.raises(DataError, match="start a new run"):
            train(config, resume=True)
        path.write_text(before)
    train(config, resume=True)
    assert (config.out / "head.json").read_bytes() == made


def test_a_set_that_is_there_twice_is_refused_with_both_names(run, place, tmp_path):
    config, _ = run
    twice = replace(config, out=tmp_path / "run", prepared=tmp_path / "prepared", also=config.also * 2)
    with pytest.raises(DataError, match=r"/b and .*/b: \d+ scans are in both sets"):
        train(twice, resume=False)
    assert not (tmp_path / "run").exists()


def test_an_external_set_of_slices_must_be_of_others_than_any_training_set(run, place, tmp_path):
    config, _ = run
    known = replace(config, out=tmp_path / "run", external=config.also[0])
    with pytest.raises(DataError, match=r"/b: \d+ of its patients were trained or calibrated on"):
        train(known, resume=False)


def test_a_set_of_boxes_trains_the_location_alone(place, tmp_path, monkeypatch):
    monkeypatch.setattr(sets, "LEAST_WATCHED", 2)
    shutil.copytree(place / "b", tmp_path / "c")
    labels = pd.read_csv(tmp_path / "c" / "labels.csv")
    for path in list((tmp_path / "c").glob("*.png")):  # mirrored: no slice may be in two sets
        Image.open(path).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(path.with_stem(f"c_{path.stem}"))
        path.unlink()
    labels = labels.assign(slice="c_" + labels.slice)
    labels.to_csv(tmp_path / "c" / "labels.csv", index=False)
    boxed = labels.slice[labels.label == 1].iloc[::2]
    rows = [f"{name},subdural,0.5,0.5,0.4,0.3" for name in boxed]
    (tmp_path / "c" / "boxes.csv").write_text("\n".join(["slice,kind,x,y,width,height", *rows]))
    settings = yaml.safe_load((place / "run.yaml").read_text())
    settings |= {"out": str(tmp_path / "run"), "prepared": str(tmp_path / "prepared")}
    settings["also"] += [settings["also"][0] | {"root": str(tmp_path / "c"), "learn": "boxes"}]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    words = ["--config", str(tmp_path / "run.yaml")]
    assert train_main(words) == 0
    config = read_config(words)
    splits = load_splits(config.out / "splits.csv")
    of_boxes = splits[splits.scan.isin(labels.slice)]
    assert len(of_boxes) == len(labels)
    assert {*of_boxes.split} == {"train", "validation", "test"}  # by patient, as those of the other sets
    features = read_features(config.out / "features" / "train.safetensors")
    assert {*features.scans} == {*splits.scan} - {*labels.slice}
    assert "(location alone)" in trained_on(config, splits)
    results = read_results(config.out / "test")
    mapped = {scan.scan: read_maps(config.out / "test", scan, results.model) for scan in results.scans}
    shown = [scan for scan in results.scans if mapped[scan.scan] is not None]
    assert len(shown) == config.pages
    for scan in shown:
        assert 0 < mapped[scan.scan].mean.max() < max(one.probability for one in scan.slices)
    learned = {*splits.scan[splits.split == "train"]} & {*boxed}
    fitted = Location.load(config.out, load_cnn(config.out).channels)
    again = Location.fit(load_cnn(config.out), open_training(config), learned, training_boxes(config))
    np.testing.assert_allclose(fitted.weight, again.weight)
    path = tmp_path / "c" / "boxes.csv"
    before = path.read_text()
    path.write_text(before.replace("0.4,0.3", "0.3,0.3"))
    with pytest.raises(DataError, match="boxes, texts or covariates have changed"):
        train(config, resume=True)
    path.write_text(before + "\nc_lost.jpg,subdural,0.5,0.5,0.4,0.3")
    with pytest.raises(DataError, match=r"boxes\.csv: names of no slice: 1, c_lost\.jpg; write them as"):
        training_boxes(config)
    path.unlink()
    with pytest.raises(DataError, match=r"there is no boxes\.csv"):
        training_boxes(config)

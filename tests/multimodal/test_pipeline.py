"""A run with a multimodal head: fitted, calibrated, stored, loaded, measured and shown like the others."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from ich_mil.cli import main
from ich_mil.config import RunConfig, read_config
from ich_mil.errors import DataError, ModelError
from ich_mil.families import RunHeadSettings
from ich_mil.files import write_text
from ich_mil.gp.calibration import Calibration
from ich_mil.heads.counterfactual import counterfactuals, scan_logits
from ich_mil.model.copying import copy_run
from ich_mil.model.predictions import read_results
from ich_mil.model.storage import load_model, save_calibration
from ich_mil.model.training.train import train
from ich_mil.model.training.train_members import train_ensemble
from ich_mil.multimodal.head import MultimodalHead
from ich_mil.multimodal.settings import MultimodalSettings
from ich_mil.output.run_report import validate_and_report
from ich_mil.pages.words import ranking
from ich_mil.sets.features import FeatureSet, read_feature_table
from ich_mil.sets.views import Views
from tests.feature_table import write_features

# few scans are separated by chance
pytestmark = pytest.mark.filterwarnings("ignore:the model separates", "ignore:probabilities are less sure")
CONFIG = Path(__file__).parents[2] / "configs" / "multimodal.yaml"
QUICK = ["--multimodal.gradients", "100"]
QUICK += ["--bootstrap", "20", "--samples", "200"]
POSITIVE = ("Fall from a ladder. On warfarin.", "Collapsed, vomiting. Takes warfarin daily.")
NEGATIVE = ("Headache for a year.", "Dizzy. Headache at times.")


def write_set(folder: Path, name: str, scans: int, seed: int) -> list[str]:
    """Features, requests and covariates of a set; the options that name them."""
    write_features(folder / f"{name}.csv", scans, seed)
    features = pd.read_csv(folder / f"{name}.csv")  # bleeds that overlap with the rest
    for column in ("feature_0", "feature_1"):
        features[column] -= 1.5 * features.instance_label
    write_text(folder / f"{name}.csv", features.to_csv(index=False))
    rng = np.random.default_rng(seed)
    requests, covariates = [], []
    for b in range(scans):
        likely = rng.random() < (0.85 if b % 2 else 0.15)
        requests.append((f"s{seed}-{b}", (POSITIVE if likely else NEGATIVE)[b // 2 % 2]))
        covariates.append((f"s{seed}-{b}", f"{60 + 10 * (b % 2) + rng.integers(20):03}Y", "MF"[b % 3 % 2]))
    words = [f"--{name}.root", str(folder / f"{name}.csv")]
    tables = {"requests": (requests, ["text"]), "covariates": (covariates[:-1], ["age", "sex"])}
    for kind, (rows, columns) in tables.items():
        path = folder / f"{name}_{kind}.csv"
        write_text(path, pd.DataFrame(rows, columns=["scan", *columns]).to_csv(index=False))
        words += [f"--{name}.{kind}", str(path)]
    return words


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("multimodal")
    words = [*write_set(folder, "train", 60, 0), *write_set(folder, "external", 30, 1)]
    return read_config(["--config", str(CONFIG), "--out", str(folder / "run"), *QUICK, *words])


@pytest.fixture(scope="module")
def run(config: RunConfig) -> Path:
    validate_and_report(config, train(config, resume=False))
    return config.out


@pytest.fixture(scope="module")
def features(config: RunConfig) -> FeatureSet:
    """The external set with its extras."""
    assert config.external is not None
    bare = read_feature_table(config.external.path)
    return replace(bare, extras=config.external.extras.read(bare.scans))


def test_a_run_from_tables_to_results(config, run):
    model = load_model(run)
    assert model.provenance.name == "vMMIC, 3 slice features, 10 sentence features, 2 covariates"
    assert model.provenance.calibration == "Platt scaling on held-out scans, 50% of them positive"
    metrics = pd.read_csv(run / "external" / "metrics.csv").set_index(["model", "level", "metric"]).value
    assert metrics["multimodal head", "scan", "auc"] > 0.9
    assert metrics["multimodal head", "slice", "auc"] > 0.7
    results = read_results(run / "external")
    scan = next(one for one in results.scans if one.scan == "s1-1")
    assert [one.kind for one in scan.extras] == ["sentence", "sentence", "covariates"]
    assert scan.extras[0].text == POSITIVE[0].split(". ")[0] + "."
    assert scan.interval_95[0] < scan.probability < scan.interval_95[1]
    assert scan.std > 0
    assert [one.kind for one in results.scans[-1].extras][-1] == "sentence"  # its covariates are not known
    told = json.loads((run / "head_fit.json").read_text())["message"]
    assert told.startswith("vMMIC with slice, sentence, covariates: ")
    train(config, resume=True)  # nothing is left to do
    moved = [abs(value - scan.probability) for value, _ in ranking(scan)]
    assert moved == sorted(moved, reverse=True)
    assert {"sentence 1", "sentence 2", "the covariates"} < {name for _, name in ranking(scan)}


def test_removed_alone_equals_never_there(run, features):
    """A scan without its only sentence, or without its covariates, is predicted as if it had none."""
    model = load_model(run)
    views = Views.of([features])
    _, explained = model.explain(views)
    extras = features.extras
    for missing, kind in (
        (replace(extras, sentences={}), "sentence"),
        (replace(extras, covariates={}), "covariates"),
    ):
        bare = model.predict(views.with_extras(missing)).scan_mean
        checked = 0
        for b, own in enumerate(explained.extras):
            if len(same := [one for one in own if one.kind == kind]) == 1:
                assert same[0].scan_without == pytest.approx(float(bare[b]), abs=1e-12)
                checked += 1
        assert checked > 5


def test_a_slice_is_removed_from_each_draw(run, features):
    """Runs and single slices by their definition, from the draws of one scan."""
    (member,), calibration = load_model(run).members, load_model(run).calibration
    one = features.select(["s1-1"])
    draws = next(member.head.draw(one, 200, seed=member.seed))
    mean = torch.zeros(draws.terms.shape[1])
    mean[1:3] = 1.0
    got = counterfactuals(draws, mean, threshold=0.5, calibration=calibration)
    for parts, value in (
        (draws.terms[:, 0], got.scan_without[0]),
        (draws.terms[:, 1] + draws.terms[:, 2], torch.tensor(got.runs[0][0].scan_without).double()),
    ):
        score = draws.score - parts[:, None]
        logit = torch.special.log_ndtr(score) - torch.special.log_ndtr(-score)
        torch.testing.assert_close(calibration.scan(logit).mean(), value)
    assert (got.runs[0][0].first, got.runs[0][0].last) == (1, 2)


def test_loaded_model_predicts_the_same(run, features, tmp_path):
    model, views = load_model(run), Views.of([features])
    copy_run(run, tmp_path / "copy")
    save_calibration(load_model(tmp_path / "copy"), Calibration(slope=0.5), tmp_path / "copy")
    again = load_model(tmp_path / "copy")
    assert again.calibration == Calibration(slope=0.5)
    torch.testing.assert_close(again.logits(views), model.logits(views), rtol=0, atol=0)


def lengths(sentences: Sequence[str]) -> np.ndarray:
    """An embedding of one's own."""
    return np.array([[len(one), one.count("a")] for one in sentences], dtype=float).reshape(-1, 2)


def test_any_function_of_sentences_embeds_them(features, tmp_path):
    own = MultimodalSettings(gradients=50)
    settings = RunHeadSettings(family="multimodal", calibration="none")
    head = MultimodalHead.fit(features, settings, own, embed=lengths)
    head.save(tmp_path)
    with pytest.raises(ModelError, match="embed="):
        MultimodalHead.load(tmp_path)
    again = MultimodalHead.load(tmp_path, embed=lengths)
    assert again.name == "vMMIC, 3 slice features, 2 sentence features, 2 covariates"
    wanted, got = (scan_logits(one.draw(features, 50, seed=0)) for one in (head, again))
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    with pytest.raises(ModelError, match="3 features a slice, these have 8"):
        MultimodalHead.load(tmp_path, n_features=8, embed=lengths)


def test_damaged_head_files_are_refused(features, tmp_path):
    own = MultimodalSettings(gradients=50)
    settings = RunHeadSettings(family="multimodal", calibration="none")
    MultimodalHead.fit(features, settings, own, embed=lengths).save(tmp_path)
    path, tensors = tmp_path / "head.json", tmp_path / "head.safetensors"
    about, state = json.loads(path.read_text()), load_file(tensors)
    for changed in (about | {"parameters": [1]}, about | {"own": about["own"] | {"gradients": 0}}):
        path.write_text(json.dumps(changed))
        with pytest.raises(ModelError, match=r"head\.json"):
            MultimodalHead.load(tmp_path, embed=lengths)
    path.write_text(json.dumps(about))
    for name, value in state.items():
        save_file(state | {name: value[..., :-1].contiguous()}, tensors)
        with pytest.raises(ModelError, match="head"):
            MultimodalHead.load(tmp_path, embed=lengths)
    tensors.write_bytes(b"x")
    with pytest.raises(ModelError, match=r"head\.safetensors"):
        MultimodalHead.load(tmp_path, embed=lengths)


def test_slices_far_from_training_name_their_scan(run, features):
    x = features.x.clone()
    x[int(features.offsets[4]) + 1, 2] = 1e12
    with pytest.raises(DataError, match=f"scan '{features.scans[4]}': a feature of slice 1 "):
        load_model(run).predict(Views.of([replace(features, x=x)]))


def test_a_scan_is_the_same_in_any_company(run, features):
    model = load_model(run)
    whole, two = (model.predict(Views.of([one])) for one in (features, features.select(features.scans[3:5])))
    torch.testing.assert_close(two.scan_mean, whole.scan_mean[3:5], rtol=1e-12, atol=0)


def test_the_command_line_takes_the_second_table(config, run, tmp_path, capsys):
    assert config.external is not None
    words = ["validate", config.external.root, "--layout", "features", "--model", str(run)]
    tables = ["--requests", config.external.requests, "--covariates", config.external.covariates]
    assert main([*words, "--out", str(tmp_path / "both"), *tables]) == 0
    assert read_results(tmp_path / "both").scans == read_results(run / "external").scans
    assert main([*words, "--out", str(tmp_path / "none")]) == 0
    assert "slices alone, though the model also takes: covariates, sentence" in capsys.readouterr().out
    assert not any(one.extras for one in read_results(tmp_path / "none").scans)
    table = pd.read_csv(config.external.covariates).drop(columns="sex")
    table.to_csv(tmp_path / "short.csv", index=False)
    assert main([*words, "--out", str(tmp_path / "short"), "--covariates", str(tmp_path / "short.csv")]) == 2
    assert "lacks sex" in capsys.readouterr().err


def test_changed_requests_stop_a_resumed_run(config, run):
    path = Path(config.train.requests)
    text = path.read_text()
    path.write_text(text.replace("warfarin", "aspirin"))
    try:
        with pytest.raises(DataError, match="texts or covariates have changed since"):
            train(config, resume=True)
    finally:
        path.write_text(text)


@pytest.mark.slow
def test_an_ensemble_of_multimodal_heads(config, tmp_path, features):
    two = replace(config, members=2, out=tmp_path / "two")
    train_ensemble(two, resume=False)
    model = load_model(two.out)
    views = Views.of([features, features])
    predictions, explained = model.explain(views)
    assert model.calibration is not None
    single = load_model(two.out / "member_0")
    own, alone = single.explain(Views.of([features]))
    assert [len(one) for one in explained.extras] == [len(one) for one in alone.extras]
    assert float((predictions.scan_mean - own.scan_mean).abs().max()) < 0.3

"""A run with a multimodal head: fitted, calibrated, stored, loaded, measured and shown like the others."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ich_mil.commands.train import train
from ich_mil.commands.validate import validate_run
from ich_mil.config import RunConfig, read_config
from ich_mil.data.features import read_feature_csv
from ich_mil.data.views import Views
from ich_mil.files import write_text
from ich_mil.runs.model import load_model
from ich_mil.runs.predictions import read_results
from tests.feature_table import write_features

pytestmark = pytest.mark.filterwarnings("ignore:the model separates")  # few scans are separated by chance
CONFIG = Path(__file__).parents[2] / "configs" / "multimodal.yaml"
QUICK = [
    "--multimodal.restarts",
    "1",
    "--multimodal.tolerance",
    "1e-3",
    "--bootstrap",
    "20",
    "--samples",
    "200",
]
QUICK += ["--multimodal.text_features", "3"]
POSITIVE = ("Fall from a ladder. On warfarin.", "Collapsed, vomiting. Takes warfarin daily.")
NEGATIVE = ("Headache for a year.", "Dizzy. Headache at times.")


def write_set(folder: Path, name: str, scans: int, seed: int) -> list[str]:
    """Features, requests and covariates of a set; the options that name them."""
    write_features(folder / f"{name}.csv", scans, seed)
    features = pd.read_csv(folder / f"{name}.csv")  # of bleeds that overlap with the rest
    features["feature_0"] -= 1.5 * features.instance_label
    features["feature_1"] -= 1.5 * features.instance_label
    write_text(folder / f"{name}.csv", features.to_csv(index=False))
    rng = np.random.default_rng(seed)
    rows, ages = [], []
    for b in range(scans):
        likely = rng.random() < (0.85 if b % 2 else 0.15)
        rows.append((f"s{seed}-{b}", (POSITIVE if likely else NEGATIVE)[b // 2 % 2]))
        ages.append((f"s{seed}-{b}", f"{60 + 10 * (b % 2) + rng.integers(20):03}Y", "MF"[rng.integers(2)]))
    tables = {"requests": (rows, ["scan", "text"]), "covariates": (ages[:-1], ["scan", "age", "sex"])}
    words = [f"--{name}.root", str(folder / f"{name}.csv")]
    for kind, (values, columns) in tables.items():
        path = folder / f"{name}_{kind}.csv"
        write_text(path, pd.DataFrame(values, columns=columns).to_csv(index=False))
        words += [f"--{name}.{kind}", str(path)]
    return words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("multimodal")


@pytest.fixture(scope="module")
def config(folder: Path) -> RunConfig:
    words = [*write_set(folder, "train", 60, 0), *write_set(folder, "external", 30, 1)]
    return read_config(["--config", str(CONFIG), "--out", str(folder / "run"), *QUICK, *words])


@pytest.fixture(scope="module")
def run(config: RunConfig) -> Path:
    train(config, resume=False)
    validate_run(config)
    return config.out


def external(config: RunConfig) -> Views:
    assert config.external is not None
    features = read_feature_csv(config.external.path)
    return Views.of([replace(features, extras=config.external.extras.read(features.scans))])


def test_a_run_from_tables_to_results(config, run):
    model = load_model(run)
    assert model.provenance.name == "vMMIC (laplace), 3 slice features, 3 sentence features, 2 covariates"
    assert model.provenance.calibration == "Platt scaling on held-out scans"
    metrics = pd.read_csv(run / "external" / "metrics.csv").set_index(["model", "level", "metric"]).value
    assert metrics["Gaussian-process head", "scan", "auc"] > 0.9
    assert metrics["Gaussian-process head", "slice", "auc"] > 0.7
    results = read_results(run / "external")
    scan = next(one for one in results.scans if one.scan == "s1-1")
    assert [one.kind for one in scan.extras] == ["sentence", "sentence", "covariates"]
    assert scan.interval_95[0] <= scan.probability <= scan.interval_95[1]
    assert scan.std > 0
    assert [one.kind for one in results.scans[-1].extras][-1] == "sentence"  # its covariates are not known
    assert json.loads((run / "head_fit.json").read_text())["message"].startswith(
        "laplace with slice, sentence"
    )
    train(config, resume=True)  # nothing is left to do

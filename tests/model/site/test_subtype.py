"""`ich-mil subtype`: kinds of bleed from predicted scans, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ich_mil.errors import ModelError
from ich_mil.model.model import TrainedModel
from ich_mil.model.predictions import Results, ScanPrediction, read_results, write_results
from ich_mil.model.site import subtype
from ich_mil.sets.features import bare_features, write_features
from ich_mil.sets.views import Views
from tests.results import MODEL
from tests.runs_for_tests import refused, run

N = 48

pytestmark = pytest.mark.filterwarnings("ignore:.*not converged")


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    """Short chains, and a model of three networks."""
    model = TrainedModel(tmp_path, (None,) * 3, None, MODEL, samples=10, bootstrap=10, seed=0)
    monkeypatch.setattr(subtype, "load_model", lambda _: model)
    monkeypatch.setattr(subtype, "SAMPLER", {"chains": 2, "burn_in": 100, "draws": 60})


def network(kinds, *, tells, seed):
    """Features of N scans of 4 slices; a network that tells moves the first one by the kind."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(N, 4, 3))
    x[:, :, 0] += 4.0 * kinds[:, None] * tells
    names = [f"scan {b}" for b in range(N)]
    slices = [f"{name} slice {i}" for name in names for i in range(4)]
    return bare_features(x.reshape(-1, 3), np.full(N, 4), names, np.ones(N, dtype=int), slices)


@pytest.fixture(scope="module")
def kinds():
    """subdural in half of the scans, bleed in all, epidural in six: a training part of the folds has four."""
    generator = np.random.default_rng(0)
    subdural = generator.permutation(N) % 2
    epidural = (np.arange(N) < 6).astype(int)
    table = pd.DataFrame({"scan": [f"scan {b}" for b in range(N)], "subdural": subdural})
    return table.assign(bleed=1, epidural=epidural)


@pytest.fixture(scope="module")
def views(kinds):
    y = kinds.subdural.to_numpy()
    return Views.of([network(y, tells=k == 1, seed=k) for k in range(3)])


def results_of(views, decision="positive"):
    scans = tuple(
        ScanPrediction(scan, scan, 0.5, 0.1, (0.4, 0.6), decision, None, (), (), (), "")
        for scan in views.features.scans
    )
    return Results("new", MODEL, "", scans, ())


@pytest.fixture
def folder(tmp_path, views):
    """As `predict` leaves it."""
    write_results(results_of(views), tmp_path / "predictions")
    for k, view in enumerate(views.members):
        name = f"features_{k}" if k else "features"
        write_features(view, tmp_path / "predictions" / f"{name}.safetensors")
    return tmp_path / "predictions"


def words(folder, table, out):
    return "subtype", folder, "--kinds", table, "--out", out


def test_a_kind_is_learned_and_attributed_to_the_network_that_tells_it(
    folder, kinds, views, tmp_path, capsys
):
    kinds.to_csv(tmp_path / "kinds.csv", index=False)
    assert run(*words(folder, tmp_path / "kinds.csv", tmp_path / "out")) == 0
    assert "epidural: 6 of 48 scans, too few" in capsys.readouterr().out
    about = json.loads((tmp_path / "out" / "kinds.json").read_text())["kinds"]
    assert [one["name"] for one in about] == ["subdural"]
    assert all(one["auc"] > 0.95 and one["log_loss"] < one["base_log_loss"] for one in about)

    found = subtype.Kinds.load(tmp_path / "out", weights=MODEL.weights)
    results = results_of(views)
    scans = [replace(scan, kinds=found.predict(views.select([scan.scan]))) for scan in results.scans]
    results = replace(results, scans=tuple(scans))
    truth = kinds.subdural.to_numpy()
    p = np.array([scan.kinds[0].probability for scan in results.scans])
    assert ((p > 0.5) == truth).mean() > 0.95
    for scan in results.scans:
        one = scan.kinds[0]
        assert one.name == "subdural"
        assert one.source == "network 1"
        assert one.share > 0.5
        assert one.interval_95[0] <= one.probability <= one.interval_95[1]
    write_results(results, tmp_path / "again")
    assert read_results(tmp_path / "again") == results
    with pytest.raises(ModelError, match="belongs to another model"):
        subtype.Kinds.load(tmp_path / "out", weights="another")


def test_what_is_refused(folder, kinds, tmp_path, capsys):
    table = tmp_path / "kinds.csv"
    for given, message in (
        (kinds[["scan"]], "has no column of a kind"),
        (kinds.assign(scan=kinds.scan + "x"), "scans without features"),
        (kinds.assign(subdural=2), "subdural must be 0 or 1"),
        (kinds[["scan", "epidural"]], "no kind has enough scans"),
        (kinds[["scan"]].assign(epidural=0), "no kind has enough scans"),
    ):
        given.to_csv(table, index=False)
        assert message in refused(capsys, *words(folder, table, tmp_path / "out"))
    results = read_results(folder)
    write_results(replace(results, model=replace(results.model, weights="another")), folder)
    kinds.to_csv(table, index=False)
    assert "was predicted by another model" in refused(capsys, *words(folder, table, tmp_path / "out"))
    write_results(results, folder)
    (folder / "features_1.safetensors").unlink()
    error = refused(capsys, *words(folder, table, tmp_path / "out"))
    assert "features_1.safetensors: cannot be read" in error
    with pytest.raises(ModelError, match="holds no kinds of bleed"):
        subtype.Kinds.load(tmp_path, weights="")

"""`ich-mil subtype`: kinds of bleed from predicted scans, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ich_mil.errors import DataError, ModelError
from ich_mil.model.model import TrainedModel
from ich_mil.model.predictions import Results, ScanPrediction, read_results, write_results
from ich_mil.model.site import subtype
from ich_mil.model.site.logistic_kind import LogisticKind
from ich_mil.sets.features import bare_features, write_features
from ich_mil.sets.views import Views
from tests.results import MODEL
from tests.runs_for_tests import refused, run

N = 48


@pytest.fixture(autouse=True)
def three_networks(monkeypatch, tmp_path):
    """A model of three networks."""
    model = TrainedModel(tmp_path, (None,) * 3, None, MODEL, samples=10, bootstrap=10, seed=0)
    monkeypatch.setattr(subtype, "load_model", lambda _: model)


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
    """subdural in half of the scans, bleed in all, epidural in six: a training part of the folds has four.

    No network tells noise.
    """
    generator = np.random.default_rng(0)
    subdural = generator.permutation(N) % 2
    epidural = (np.arange(N) < 6).astype(int)
    table = pd.DataFrame({"scan": [f"scan {b}" for b in range(N)], "subdural": subdural})
    return table.assign(bleed=1, epidural=epidural, noise=generator.permutation(N) % 2)


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
    told = capsys.readouterr().out
    assert "epidural: 6 of 48 scans, too few" in told
    assert "noise: 24 of 48 scans" in told
    assert told.count("not told better than by its share; left out") == 1
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


def test_log_loss_less_that_of_another_with_its_interval():
    """Ten patients of two scans: half of them lose what the other half gains."""
    y = np.ones(20, dtype=int)
    p = np.where(np.arange(20) < 12, 0.8, 0.4)
    less, interval = subtype.log_loss_less(y, p, np.full(20, 0.55), [f"patient {i // 2}" for i in range(20)])
    assert less == pytest.approx(-(12 * np.log(0.8 / 0.55) + 8 * np.log(0.4 / 0.55)) / 20)
    assert interval.low < 0 < interval.high


def sources_of(B, D, *, seed, effect=0.0):
    generator = np.random.default_rng(seed)
    y = np.arange(B) % 2
    x = {f"network {k}": generator.normal(size=(B, D)) for k in range(2)}
    x["network 1"][:, 0] += effect * y
    return x, y, [f"patient {b}" for b in range(B)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("B", "D", "effect"), [(10, 4, 0.0), (40, 10_000, 0.0), (40, 3, 100.0)])
def test_logistic_regression_of_hard_input_stays_finite(tmp_path, B, D, effect):
    """10 scans; more columns than scans; separable classes; a constant column in each."""
    x, y, patients = sources_of(B, D, seed=0, effect=effect)
    x["network 0"][:, 1] = 7.0
    model = LogisticKind.fit(x, y, patients)
    new = {**x, "network 0": x["network 0"] + 0.0}
    new["network 0"][:, 1] = -1e6  # constant in training: not informed
    mean, std = model.predict_proba(new, return_std=True)
    np.testing.assert_array_equal(mean, model.predict_proba(x))
    assert np.isfinite(mean).all()
    assert ((mean > 0) & (mean < 1)).all()
    assert (std > 0).all()
    if effect:
        assert (mean[:, 1] > 0.5).tolist() == (y == 1).tolist()
        assert model.shares.argmax() == 1
    model.save(tmp_path / "kind.safetensors")
    np.testing.assert_array_equal(LogisticKind.load(tmp_path / "kind.safetensors").predict_proba(x), mean)


def test_logistic_regression_of_noise_is_near_the_base_rate():
    x, y, patients = sources_of(400, 5, seed=1)
    p = LogisticKind.fit(x, y, patients).predict_proba(x)[:, 1]
    assert abs(p.mean() - 0.5) < 0.01
    assert 0.1 < p.min() < p.max() < 0.9


def test_refits_draw_patients_not_scans():
    """100 copies of the scans of 10 patients give the uncertainty of 10 patients."""
    x, y, patients = sources_of(10, 2, seed=0)
    copied = {name: np.repeat(table, 100, axis=0) for name, table in x.items()}
    many, owners = np.repeat(y, 100), [owner for owner in patients for _ in range(100)]
    by_patient = LogisticKind.fit(copied, many, owners).predict_proba(x, return_std=True)[1].mean()
    by_scan = LogisticKind.fit(copied, many, range(1000)).predict_proba(x, return_std=True)[1].mean()
    assert by_patient > 3 * by_scan


def test_scans_with_the_same_features_are_refused():
    x, y, patients = sources_of(20, 2, seed=0)
    with pytest.raises(DataError, match="same features"):
        LogisticKind.fit({name: np.ones_like(table) for name, table in x.items()}, y, patients)


def test_damaged_logistic_regression_is_refused(tmp_path):
    x, y, patients = sources_of(20, 2, seed=0)
    model = replace(LogisticKind.fit(x, y, patients), mean=np.zeros(3))
    model.save(tmp_path / "kind.safetensors")
    with pytest.raises(ModelError, match=r"kind\.safetensors"):
        LogisticKind.load(tmp_path / "kind.safetensors")


def test_what_is_refused(folder, kinds, tmp_path, capsys):
    table = tmp_path / "kinds.csv"
    for given, message in (
        (kinds[["scan"]], "has no column of a kind"),
        (kinds.assign(scan=kinds.scan + "x"), "names of no predicted scan, or of several: scan 0x"),
        (kinds.assign(subdural=2), "subdural must be 0 or 1"),
        (kinds[["scan", "epidural"]], "no kind has enough scans and is told better than by its share"),
        (kinds[["scan"]].assign(epidural=0), "no kind has enough scans and is told better than by its share"),
        (kinds[:10], "no kind has enough scans and is told better than by its share"),
    ):
        given.to_csv(table, index=False)
        assert message in refused(capsys, *words(folder, table, tmp_path / "out"))
    results = read_results(folder)
    scans = tuple(replace(one, folder=f"site/{one.scan[5:]}", label=0) for one in results.scans)
    write_results(replace(results, scans=scans), folder)
    kinds.assign(scan=kinds.scan.str[5:]).to_csv(table, index=False)  # last parts of folders
    assert "label says no bleed: scan 0, scan 1" in refused(capsys, *words(folder, table, tmp_path / "out"))
    pd.concat([kinds, kinds.assign(scan=kinds.scan.str[5:])]).to_csv(table, index=False)
    assert "scans with two rows: scan 0" in refused(capsys, *words(folder, table, tmp_path / "out"))
    write_results(replace(results, model=replace(results.model, weights="another")), folder)
    kinds.to_csv(table, index=False)
    assert "was predicted by another model" in refused(capsys, *words(folder, table, tmp_path / "out"))
    write_results(results, folder)
    (folder / "features_1.safetensors").unlink()
    error = refused(capsys, *words(folder, table, tmp_path / "out"))
    assert "features_1.safetensors: cannot be read" in error
    with pytest.raises(ModelError, match="holds no kinds of bleed"):
        subtype.Kinds.load(tmp_path, weights="")

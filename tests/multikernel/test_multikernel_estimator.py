"""`MultiKernelGP`: predictions, weights, files, and one error for each kind of bad input."""

import warnings

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.multikernel import MultiKernelGP

QUICK = {"chains": 2, "burn_in": 100, "draws": 30, "importance": 4}


def fitted(*args, sources, y, **parameters):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the chains have not converged")
        return MultiKernelGP(**(QUICK | parameters)).fit(sources, y)


@pytest.fixture(scope="module")
def data():
    """36 scans of 3 classes; source `told` separates them, `noise` does not."""
    rng = np.random.default_rng(0)
    y = np.array(["edh", "sah", "sdh"])[np.arange(36) % 3]
    centres = {"edh": (2.5, 0), "sah": (-2.5, 0), "sdh": (0, 3)}
    told = np.array([centres[one] for one in y]) + rng.normal(size=(36, 2))
    return {"told": told, "noise": rng.normal(size=(36, 3))}, y


@pytest.fixture(scope="module")
def model(data):
    return fitted(sources=data[0], y=data[1], draws=200, burn_in=150)


def test_predictions_and_weights(data, model):
    sources, y = data
    p, std = model.predict_proba(sources, return_std=True)
    assert p.shape == std.shape == (36, 3)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
    assert (std > 0.005).all()
    assert (std < 0.5).all()
    assert (model.predict(sources) == y).mean() > 0.85
    assert model.score(sources, y) == (model.predict(sources) == y).mean()
    weights = model.weights_
    part = model.predict_proba({name: values[[5, 2]] for name, values in sources.items()})
    np.testing.assert_allclose(part, p[[5, 2]], rtol=1e-9)  # in any company
    assert (weights["2.5 %"] < weights["mean"]).all()
    means = weights.groupby("source")["mean"].mean()
    assert means["told"] > means["noise"]


def test_classes_are_even_far_from_training(model):
    p, std = model.predict_proba(
        {"told": np.full((1, 2), 1e4), "noise": np.full((1, 3), 1e4)}, return_std=True
    )
    np.testing.assert_allclose(p, 1 / 3, atol=0.06)  # 2,000 draws of std 0.2
    assert std.min() > 0.1


def test_table_and_its_kernel_matrix_agree(data):
    sources, y = data
    x = (sources["told"] - sources["told"].mean(0)) / sources["told"].std(0)
    kernel = gpytorch.kernels.RBFKernel()
    kernel.lengthscale = 2**0.5
    with torch.no_grad():
        S = kernel.double()(torch.as_tensor(x)).to_dense().numpy()
    table = fitted(sources=[sources["told"]], y=y)
    matrix = fitted(sources=[S], y=y, kernels=["precomputed"])
    np.testing.assert_allclose(table.log_theta_, matrix.log_theta_, rtol=1e-6)
    np.testing.assert_allclose(
        table.predict_proba([sources["told"][:4]]), matrix.predict_proba([(S[:4], np.ones(4))]), rtol=1e-5
    )


def test_normalised_sources_do_not_depend_on_units(data):
    sources, y = data
    S = np.cov(sources["told"]) + np.eye(36)
    first, second = (fitted(sources=[k * S], y=y, kernels=["precomputed"], draws=10) for k in (1, 1024))
    np.testing.assert_allclose(first.log_theta_, second.log_theta_, rtol=1e-6)


def test_frames_tensors_and_lists_are_taken(data):
    """The same seed gives the same numbers."""
    sources, y = data
    a = fitted(sources=sources, y=y)
    b = fitted(sources=[pd.DataFrame(sources["told"]), torch.as_tensor(sources["noise"])], y=list(y))
    np.testing.assert_array_equal(a.log_theta_, b.log_theta_)
    assert b.source_names_ == ["source_0", "source_1"]
    assert clone(a).get_params() == a.get_params()


def test_a_saved_model_predicts_the_same(data, model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = MultiKernelGP.load(path)
    np.testing.assert_array_equal(again.predict_proba(data[0]), model.predict_proba(data[0]))
    pd.testing.assert_frame_equal(again.weights_, model.weights_)
    assert again.diagnostics_["smallest_ess"] == model.diagnostics_["smallest_ess"]


def test_kernel_objects_are_checked_on_loading(data, tmp_path):
    sources, y = data
    kernel = gpytorch.kernels.MaternKernel(nu=1.5)
    one = fitted(sources=[sources["told"]], y=y, kernels=[kernel])
    path = tmp_path / "model.safetensors"
    one.save(path)
    same = MultiKernelGP.load(path, kernels=[gpytorch.kernels.MaternKernel(nu=1.5)])
    np.testing.assert_array_equal(same.predict_proba([sources["told"]]), one.predict_proba([sources["told"]]))
    with pytest.raises(ModelError, match="kernels="):
        MultiKernelGP.load(path)
    with pytest.raises(ModelError, match="source_0"):
        MultiKernelGP.load(path, kernels=[gpytorch.kernels.MaternKernel(nu=0.5)])


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        MultiKernelGP.load(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        MultiKernelGP.load(path)


def test_checkpoint_is_continued_with_its_data(data, tmp_path, monkeypatch):
    sources, y = data
    path = tmp_path / "chains.safetensors"
    whole = fitted(sources=sources, y=y)
    monkeypatch.setattr("ich_mil.multikernel.estimator.SAVE_SECONDS", 0.0)
    write = __import__("ich_mil.multikernel.storage", fromlist=["write"]).write
    calls = 0

    def stops(*args):
        nonlocal calls
        calls += 1
        write(*args)
        if calls == 50:
            raise KeyboardInterrupt

    monkeypatch.setattr("ich_mil.multikernel.storage.write", stops)
    with pytest.raises(KeyboardInterrupt):
        fitted(sources=sources, y=y, checkpoint=path)
    calls = -(10**9)
    again = fitted(sources=sources, y=y, checkpoint=path)
    assert calls + 10**9 < 85  # of 132: the first 50 steps were not made again
    np.testing.assert_array_equal(again.log_theta_, whole.log_theta_)
    np.testing.assert_array_equal(again.predict_proba(sources), whole.predict_proba(sources))
    with pytest.raises(ConfigError, match=r"chains\.safetensors"):
        fitted(sources=sources, y=y, checkpoint=path, random_state=9)
    with pytest.raises(ConfigError, match=r"chains\.safetensors"):
        fitted(sources=sources, y=np.roll(y, 1), checkpoint=path)


def test_chains_that_disagree_are_told(data):
    sources, y = data
    with pytest.warns(UserWarning, match="R-hat"):
        MultiKernelGP(chains=2, burn_in=100, draws=10, proposal="random_walk", importance=1).fit(sources, y)


def with_nan(x):
    x = np.array(x)
    x[3, 0] = np.nan
    return x


def test_bad_sources_and_labels_are_refused(data):
    sources, y = data
    told = sources["told"]
    S = np.cov(told) + np.eye(36)
    skew = S.copy()
    skew[0, 1] += 0.5
    few = y.copy()
    few[:3] = "iph"
    cases = [
        ([told], few, None, "iph has 3 scans"),
        ([told], np.full(36, "edh"), None, "at least two"),
        ([told], [None, *y[1:]], None, "scan 0"),
        ([told[:-1]], y, None, "35 rows"),
        ([S[:, :-1]], y, ["precomputed"], "square"),
        ([skew], y, ["precomputed"], "not symmetric"),
        ([S - 3 * np.eye(36)], y, ["precomputed"], "not positive definite"),
        ([np.ones((36, 2))], y, None, "constant"),
        ([with_nan(told)], y, None, "row 3"),
        ([], y, None, "at least one source"),
        (told, y, None, "single ndarray"),
        ([[["a"]] * 36], y, None, "numbers"),
    ]
    for given, labels, kernels, said in cases:
        with pytest.raises(DataError, match=said):
            MultiKernelGP(**QUICK, kernels=kernels).fit(given, labels)


def test_kernels_unlike_the_sources_are_refused(data):
    sources, y = data
    for kernels in (["precomputed"], {"other": None, "told": None}, ["rbf", None]):
        with pytest.raises(ConfigError, match="kernel"):
            MultiKernelGP(**QUICK, kernels=kernels).fit(sources, y)


def test_new_scans_unlike_the_training_scans_are_refused(data, model):
    told, noise = data[0]["told"], data[0]["noise"]
    cases = [
        ({"told": told, "other": noise}, "other"),
        ({"told": noise, "noise": told}, "features"),
        ({"told": told[:4], "noise": noise[:3]}, "different numbers"),
        ({"told": with_nan(told), "noise": noise}, "row 3"),
    ]
    for given, said in cases:
        with pytest.raises(DataError, match=said):
            model.predict_proba(given)

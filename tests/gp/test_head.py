"""The estimator: bags in any form and order, scikit-learn's habits, storage to the bit, bad input named."""

import inspect
import math
import re
import types
import warnings

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, cross_val_score

from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.gp.bags import Bags, pack
from ich_mil.gp.fit_calibration import calibrate
from ich_mil.gp.head import Head
from ich_mil.gp.observations.densities import GammaLogisticTail, LogDensity
from ich_mil.gp.predict import predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.sparse_gp import make_kernel
from tests.gp.synthetic import scans

SMALL = {"n_inducing": 16, "sweeps": 15, "variance": 0.5, "bias": 0.0, "lengthscale_squared": 48.0}


@pytest.fixture(scope="module")
def head():
    x, offsets, labels = scans(30)
    return Head(**SMALL).fit(x, offsets, labels)


def test_bags_as_offsets_index_or_list(head):
    x, offsets, labels = scans(30)
    x, offsets, labels = x.numpy(), offsets.numpy(), labels.numpy()
    names = np.array([f"scan {b:02d}" for b in range(30)])
    index = np.repeat(names, np.diff(offsets))
    interleaved = np.argsort(
        [n - offsets[np.searchsorted(offsets, n, "right") - 1] for n in range(len(x))], kind="stable"
    )
    other = Head(**SMALL).fit(x[interleaved], index[interleaved], labels)
    assert torch.equal(other.model_.q_mean, head.model_.q_mean)
    p, std = head.predict_instance_proba(x, offsets, return_std=True)
    q, other_std = other.predict_instance_proba(x[interleaved], index[interleaved], return_std=True)
    assert np.array_equal(q, p[interleaved])
    assert np.array_equal(other_std, std[interleaved])
    assert np.array_equal(
        other.predict_bag_proba(x[interleaved], list(index[interleaved])), head.predict_bag_proba(x, offsets)
    )
    tables = [pd.DataFrame(part) for part in np.split(x, offsets[1:-1])]
    listed = Head(**SMALL).fit(tables, labels=labels)
    assert torch.equal(listed.model_.q_mean, head.model_.q_mean)
    assert np.array_equal(listed.predict_bag_proba(tables), head.predict_bag_proba(x, offsets))
    assert listed.score(tables, labels=labels) == head.score(x, offsets, labels)


@pytest.mark.parametrize(
    ("bags", "offsets"),
    [
        ([0, 0, 3, 3, 3, 7, 7], [0, 2, 5, 7]),  # ids that end with the number of rows
        ([0, 2, 5, 7], [0, 2, 5, 7]),
        ([0, 4, 2, 4, 0, 2, 7], [0, 2, 4, 6, 7]),  # some fall
        ([0.0, 1, 2, 3, 4, 5, 7], [0, 1, 2, 3, 4, 5, 6, 7]),  # no whole numbers
    ],
)
def test_numbers_of_bags_are_not_taken_for_offsets(bags, offsets):
    assert pack(np.ones((7, 2)), np.array(bags))[0].offsets.tolist() == offsets


def test_probabilities_are_those_of_predict_with_the_calibration(head):
    x, offsets, labels = scans(12, seed=3)
    got = predict(head.model_, Bags(x, offsets), calibration=head.model_.calibration)
    p, std = head.predict_bag_proba(x, offsets, return_std=True)
    assert np.array_equal(p, got.scan_mean.numpy())
    assert np.array_equal(std, got.scan_std.numpy())
    assert np.array_equal(head.predict(x, offsets), (p >= 0.5).astype(int))
    assert head.score(x, offsets, labels) == np.mean((p >= 0.5) == labels.numpy())
    assert roc_auc_score(labels, p) > 0.9
    slices = head.predict_instance_proba(x, offsets)
    assert all(slices[a:b].max() <= q + 1e-12 for a, b, q in zip(offsets[:-1], offsets[1:], p, strict=True))


def test_validation_scans_stop_and_calibrate():
    x, offsets, labels = scans(30)
    held = scans(14, seed=8)
    head = Head(**SMALL).fit(x, offsets, labels, validation=held)
    assert len(head.report_.validation_log_loss) == len(head.report_.elbo)
    assert head.model_.calibration == calibrate(head.model_, Bags(*held))
    plain = Head(**SMALL, calibration="none").fit(x, offsets, labels, validation=held)
    assert plain.model_.calibration is None
    before, after = (
        predict(head.model_, Bags(*held), calibration=c).scan_mean for c in (None, head.model_.calibration)
    )
    assert log_loss(held[2], after) < log_loss(held[2], before)


def test_parameters_are_the_settings_and_clone_takes_them():
    head = Head(density="gamma", beta=4.0, n_inducing=20)
    signature = inspect.signature(Head).parameters
    assert {name: one.default for name, one in signature.items()} == vars(HeadSettings())
    assert all(re.search(rf"\n *{name}: ", HeadSettings.__doc__) for name in signature)
    given = Head(HeadSettings(density="gamma", beta=4.0), n_inducing=20)
    assert given.get_params() == head.get_params()
    assert set(head.get_params()) == set(signature)
    other = clone(head).set_params(beta=1.0)
    assert (head.beta, other.beta, other.n_inducing) == (4.0, 1.0, 20)
    with pytest.raises(TypeError, match="gamma"):
        Head(gamma=1.0)
    with pytest.raises(ValueError, match=r"(?s)alpha\n.*greater than 0.*-1\.0"):
        Head(alpha=-1.0).fit(*scans())
    with pytest.raises(ValueError, match="Invalid parameter 'gamma'"):
        head.set_params(gamma=1)


def test_a_density_and_a_kernel_as_objects(tmp_path):
    x, offsets, labels = scans(20)
    own = LogDensity(lambda c: -torch.log(torch.cosh(c / 2)), bounded=True)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
    kernel.outputscale = torch.tensor(0.5).double()
    kernel.base_kernel.lengthscale = torch.tensor(math.sqrt(48)).double()
    named = Head(**SMALL, calibration="none").fit(x, offsets, labels)
    given = Head(**SMALL, calibration="none", density=own, kernel=kernel).fit(x, offsets, labels)
    np.testing.assert_allclose(
        given.predict_bag_proba(x, offsets), named.predict_bag_proba(x, offsets), rtol=1e-7
    )
    assert given.model_.given == ("kernel", "density")
    given.save(tmp_path)
    with pytest.raises(ModelError, match="was fitted with a kernel object of its own: load it with kernel="):
        Head.load(tmp_path)
    fresh = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    again = Head.load(tmp_path, kernel=fresh)
    assert again.model_.given == given.model_.given
    assert np.array_equal(again.predict_bag_proba(x, offsets), given.predict_bag_proba(x, offsets))
    assert float(fresh.outputscale.detach()) == pytest.approx(math.log(2))  # nothing was written into it


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ({"density": "gamma"}, {"density": GammaLogisticTail(1.0, 2.5)}),
        ({"kernel": "MaternKernel"}, {"kernel": make_kernel(HeadSettings(kernel="MaternKernel"), 3)}),
    ],
    ids=["density", "kernel"],
)
def test_given_objects_are_used_in_calibration(named, given):
    one, two, plain = (Head(**SMALL, **own).fit(*scans(30)).model_.calibration for own in (named, given, {}))
    for part in ("slope", "intercept", "slice_slope", "slice_intercept"):
        assert getattr(two, part) == pytest.approx(getattr(one, part), rel=1e-6)
        assert getattr(two, part) != pytest.approx(getattr(plain, part), rel=1e-3)


def bad_inputs():
    """Arguments of `fit` that are refused, and what the message names."""
    x, offsets, labels = (part.numpy() for part in scans())
    index = np.repeat(np.arange(24.0), np.diff(offsets))
    empty, unknown, broken = offsets.copy(), index.copy(), x.copy()
    empty[3], unknown[9], broken[7, 1] = empty[2], np.nan, np.nan
    listed = list(np.split(x, offsets[1:-1]))
    frames = [pd.DataFrame(part, columns=["a", "b", "c"]) for part in listed]
    frames[2] = frames[2][["b", "a", "c"]]
    text = pd.Series(["s1"] * 9 + [1] * (len(x) - 9))
    yield from (
        ((bad, offsets, labels), "X must be a table") for bad in (x[0], x[:, :0], x[:0], x.astype(str))
    )
    yield (broken, offsets, labels), "row 7 of X"
    yield (x, offsets, labels[:-1]), "labels of shape"
    yield (x, offsets, np.where(labels == 1, 1, 2)), "got 2"
    yield (x, offsets, np.where(labels == 1, 1, -1)), "got -1"
    yield (x, offsets, pd.array([None, *(labels[1:] == 1)], dtype="boolean")), "got <NA>"
    yield (x, offsets, np.ones_like(labels)), "all 24 .* 1"
    yield (x, offsets.astype(float), labels), "bags must be offsets"
    yield (x, empty, labels), "bag 2 of the offsets"
    yield (x, index[:, None], labels), "bags must be one-dimensional"
    yield (x, unknown, labels), "row 9 of X has no bag"
    yield (x, text, labels), "named by text alone"
    yield (x[: offsets[8]], offsets[:9], labels[:8]), "5 folds .* 4 of one"
    yield (x, offsets, None), "labels must be given"
    yield (x, None, labels), "bags must be a list of 2-D arrays"
    yield ([], None, labels), "bags must be a list of 2-D arrays"
    yield ([*listed[:3], listed[3][:, :2], *listed[4:]], None, labels), r"X\[3\] has 2 features"
    yield ([*listed[:3], broken[7:8], *listed[4:]], None, labels), r"row 0 of X\[3\]"
    yield (frames, None, labels), "columns b, a, c"


@pytest.mark.parametrize(("given", "message"), list(bad_inputs()))
def test_bad_input_is_named(given, message):
    head = Head(**SMALL)
    with pytest.raises(DataError, match=message):
        head.fit(*given)
    with pytest.raises(NotFittedError):
        head.predict_bag_proba(*given[:2])


def test_bad_validation_groups_and_objects_are_named():
    x, offsets, labels = (part.numpy() for part in scans())
    for given, error, message in (
        ({"groups": ["a", "b", "c"]}, DataError, r"of shape \(3,\)"),
        ({"validation": (x[:, :1], offsets, labels)}, DataError, "validation scans: 1 features"),
        ({"validation": (x, offsets, labels - 1)}, DataError, "validation: labels .* got -1"),
        ({"validation": (x, offsets, 0 * labels)}, DataError, "validation scans: all 24"),
        ({"validation": (x, labels)}, ValueError, "validation must be"),
    ):
        with pytest.raises(error, match=message):
            Head(**SMALL).fit(x, offsets, labels, **given)
    plain = {**SMALL, "calibration": "none"}
    with pytest.raises(ConfigError, match="density"):
        Head(**plain, family="probit", density=LogDensity(torch.cos)).fit(x, offsets, labels)
    for kernel in ("Kernel", "SpectralMixtureKernel", "NoKernel"):
        with pytest.raises(ConfigError, match=r"head\.kernel: "):
            Head(**plain, kernel=kernel).fit(x, offsets, labels)
    with pytest.raises(ConfigError, match="3 features"):
        Head(**plain, kernel=gpytorch.kernels.RBFKernel(ard_num_dims=7)).fit(x, offsets, labels)
    for kernel in (gpytorch.kernels.RBFKernel, None):
        with pytest.raises(ValueError, match="kernel"):
            Head(**plain, kernel=kernel).fit(x, offsets, labels)
    for density in (None, "gaussian", types.SimpleNamespace(theta=1, log_psi=1)):
        with pytest.raises(ValueError, match="density"):
            Head(**plain, density=density).fit(x, offsets, labels)


@pytest.mark.parametrize("bad", [np.nan, -np.inf, 1e200])
def test_a_bad_feature_is_named_by_row(head, bad, monkeypatch):
    monkeypatch.setattr("ich_mil.gp.bags.CHUNK", 3)
    x, offsets, labels = (part.numpy() for part in scans(30))
    index = np.repeat(np.arange(30), np.diff(offsets))
    order = np.random.default_rng(0).permutation(len(x))
    broken = x[order]
    broken[5, 1] = bad
    for call in (
        lambda: head.predict_bag_proba(broken, index[order]),
        lambda: Head(**SMALL).fit(broken, index[order], labels),
    ):
        with pytest.raises(DataError, match="row 5 of X: a feature is NaN or infinite"):
            call()


@pytest.mark.parametrize(
    "store",
    [
        lambda values: torch.as_tensor(values).double().requires_grad_() * 1.0,
        lambda values: (pd.DataFrame if values.ndim == 2 else pd.Series)(values),  # read-only
    ],
    ids=["tensor of a network", "pandas"],
)
def test_arrays_may_be_tensors_or_pandas(store):
    x, offsets, labels = (part.numpy() for part in scans(20))
    plain = {**SMALL, "calibration": "none"}
    expected = Head(**plain).fit(x, offsets, labels).predict_bag_proba(x, offsets)
    got = Head(**plain).fit(store(x), offsets, store(labels)).predict_bag_proba(store(x), offsets)
    np.testing.assert_allclose(got, expected, rtol=1e-10)  # products round by how memory is aligned


def test_numbers_of_numpy_are_numbers():
    head = Head(n_inducing=np.int64(12), variance=np.float32(2.5), sweeps=3, calibration="none").fit(*scans())
    assert (type(head.model_.settings.n_inducing), type(head.model_.settings.variance)) == (int, float)


@pytest.mark.parametrize("family", ["large_margin", "probit", "gibbs"])
def test_every_family_fits_calibrates_and_comes_back(tmp_path, family, monkeypatch):
    monkeypatch.setattr("ich_mil.gp.inference.gibbs.BURN_IN", 100)
    monkeypatch.setattr("ich_mil.gp.inference.gibbs.DRAWS", 100)
    head = Head(family=family, n_inducing=12)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*R-hat.*")  # short chains
        warnings.filterwarnings("ignore", message="LM-VGPMIL has not converged")
        head.fit(*scans(30))
    x, offsets, labels = scans(16, seed=4)
    p = head.predict_bag_proba(x, offsets)
    assert roc_auc_score(labels, p) > 0.85
    head.save(tmp_path)
    again = Head.load(tmp_path)
    assert (again.get_params(), again.n_features_in_) == (vars(head.model_.settings), 3)
    assert np.array_equal(again.predict_bag_proba(x, offsets), p)
    assert np.array_equal(again.predict_instance_proba(x, offsets), head.predict_instance_proba(x, offsets))


@pytest.mark.parametrize("settings", [{"family": "probit"}, {"learn": "kernel"}])
def test_settings_that_cannot_be_factorised_are_refused(settings, monkeypatch):
    monkeypatch.setattr("ich_mil.gp.sparse_gp.JITTER", 1e200)
    head = Head(**settings, variance=1e200, n_inducing=60, calibration="none")
    with pytest.raises(DataError, match=r"covariance of the 60 inducing values cannot .* lower them$"):
        head.fit(*scans())


def test_what_makes_probabilities_doubtful_is_told():
    """Folds of an LM-VGPMIL that has not converged; samples too wide for the labels."""
    with pytest.warns(UserWarning, match="LM-VGPMIL has not converged in 3 sweeps"):
        Head(**SMALL | {"family": "large_margin", "sweeps": 3}).fit(*scans(30))
    wide = {"density": "gamma", "alpha": 2.0, "beta": 0.5}
    with pytest.warns(UserWarning, match="less sure than the held-out labels allow"):
        Head(**SMALL | wide).fit(*scans(60))


@pytest.mark.parametrize("given", [[0, 1, 2], np.ones(10, bool), np.ones(31, bool), ["False"] * 30])
def test_the_bags_of_the_calibration_are_one_boolean_each(given):
    with pytest.raises(DataError, match="calibrates must be 30 booleans"):
        Head(**SMALL).fit(*scans(30), calibrates=given)


def test_numbers_that_may_be_offsets_or_names_go_by_the_labels():
    """Rows 0, 1, 3: three bags of one row, or two of which the second has two."""
    x, numbers = np.arange(12.0).reshape(3, 4), np.array([0, 1, 3])
    assert pack(x, numbers, [0, 1, 1])[0].offsets.tolist() == [0, 1, 2, 3]
    assert pack(x, numbers, [0, 1])[0].offsets.tolist() == [0, 1, 3]
    with pytest.raises(DataError, match="offsets of 2 bags and names of 3 rows alike"):
        pack(x, numbers)


def test_columns_of_a_data_frame_are_checked(tmp_path):
    x, offsets, labels = scans(30)
    frame = pd.DataFrame(x.numpy(), columns=["a", "b", "c"])
    head = Head(**SMALL, calibration="none").fit(frame, offsets, labels)
    assert head.feature_names_in_.tolist() == ["a", "b", "c"]
    head.save(tmp_path)
    for one in (head, Head.load(tmp_path)):
        p = one.predict_bag_proba(frame, offsets)
        assert np.array_equal(p, one.predict_bag_proba(x, offsets))
        with pytest.raises(DataError, match="columns b, a, c"):
            one.predict_bag_proba(frame[["b", "a", "c"]], offsets)
    with pytest.raises(DataError, match="columns c, b, a"):
        Head(**SMALL).fit(frame, offsets, labels, validation=(frame[["c", "b", "a"]], offsets, labels))


def list_of_bags(n_bags):
    x, offsets, labels = scans(n_bags)
    return list(x.split(offsets.diff().tolist())), labels.numpy()


def test_lists_of_bags_follow_scikit_learn(head):
    x, offsets, labels = scans(30)
    bags, y = list_of_bags(30)
    other = clone(Head(**SMALL)).fit(bags, y)
    p = head.predict_bag_proba(x, offsets)
    np.testing.assert_array_equal(other.predict_proba(bags), np.stack([1 - p, p], axis=1))
    np.testing.assert_array_equal(other.predict_proba(x, offsets), other.predict_proba(bags))
    assert other.score(bags, y) == head.score(x, offsets, labels)
    assert is_classifier(other)


def test_cross_validation_and_grid_search_of_scikit_learn():
    bags, y = list_of_bags(30)
    splits = StratifiedKFold(3)
    scores = cross_val_score(Head(**SMALL), bags, y, cv=splits, scoring="roc_auc")
    train, held = next(splits.split(y, y))
    one = Head(**SMALL).fit([bags[b] for b in train], y[train])
    p = one.predict_bag_proba([bags[b] for b in held])
    assert scores[0] == roc_auc_score(y[held], p)
    grid = {"n_inducing": [4, 16]}
    search = GridSearchCV(Head(**SMALL), grid, cv=splits, scoring="neg_log_loss").fit(bags, y)
    assert search.best_params_ == {"n_inducing": 16}
    assert search.predict_proba(bags[:4]).shape == (4, 2)
    groups = np.arange(30) // 2  # patients, for the folds of the calibration too
    cross_val_score(Head(**SMALL), bags, y, groups=groups, cv=GroupKFold(3), params={"groups": groups})

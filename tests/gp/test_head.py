"""The estimator: bags in any form and order, scikit-learn's habits, storage to the bit, bad input named."""

import math
import types
import warnings

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss, roc_auc_score

from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.gp.bags import Bags, canonical_rows, pack
from ich_mil.gp.calibration import Calibration
from ich_mil.gp.fit_calibration import calibrate
from ich_mil.gp.head import Head
from ich_mil.gp.inference.folds import folds_of
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


def test_bags_as_offsets_or_index_in_any_order_are_the_same(head):
    x, offsets, labels = scans(30)
    x, offsets, labels = x.numpy(), offsets.numpy(), labels.numpy()
    names = np.array([f"scan {b:02d}" for b in range(30)])
    index = np.repeat(names, np.diff(offsets))
    shuffled = np.random.default_rng(0).permutation(len(x))
    # within a bag the order of rows matters to Gauss-Seidel; a shuffle that keeps it
    shuffled = shuffled[np.argsort(index[shuffled], kind="stable")]
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
    features, cut, order = pack(x[shuffled], torch.as_tensor(np.searchsorted(names, index[shuffled])))
    assert np.array_equal(cut.numpy(), offsets)
    assert np.array_equal(features.numpy(), x[shuffled][order.numpy()])


@pytest.mark.parametrize(
    ("bags", "offsets"),
    [
        ([0, 0, 3, 3, 3, 7, 7], [0, 2, 5, 7]),  # ids that end with the number of rows
        ([0, 0, 3, 3, 3, 8, 8], [0, 2, 5, 7]),
        ([0, 2, 5, 7], [0, 2, 5, 7]),
        ([0, 1, 2, 3, 4, 5, 7], [0, 1, 2, 3, 4, 5, 7]),  # as the docstring says
        ([1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]),
        ([0, 4, 2, 4, 0, 2, 7], [0, 2, 4, 6, 7]),  # some fall
        ([0.0, 1, 2, 3, 4, 5, 7], [0, 1, 2, 3, 4, 5, 6, 7]),  # no whole numbers
    ],
)
def test_numbers_of_bags_are_not_taken_for_offsets(bags, offsets):
    assert pack(np.ones((7, 2)), np.array(bags))[1].tolist() == offsets


@pytest.mark.parametrize("kind", [np.uint8, np.uint64])
def test_numbers_without_a_sign_may_fall(head, kind):
    assert pack(np.ones((4, 2)), np.array([0, 2, 1, 4], dtype=kind))[1].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match="bags must be offsets, whole numbers from 0 to the number of rows"):
        head.predict_bag_proba(np.ones((8, 3)), np.array([0, 5, 3, 8], dtype=kind))


def test_probabilities_are_those_of_predict_with_the_calibration(head):
    x, offsets, labels = scans(12, seed=3)
    x = x[canonical_rows(x, offsets)]
    got = predict(head.model_, Bags(x, offsets), calibration=head.model_.calibration)
    p, std = head.predict_bag_proba(x, offsets, return_std=True)
    assert np.array_equal(p, got.scan_mean.numpy())
    assert np.array_equal(std, got.scan_std.numpy())
    assert np.array_equal(head.predict(x, offsets), (p >= 0.5).astype(int))
    assert head.score(x, offsets, labels) == np.mean((p >= 0.5) == labels.numpy())
    assert roc_auc_score(labels, p) > 0.9
    slices = head.predict_instance_proba(x, offsets)
    assert all(slices[a:b].max() <= q + 1e-12 for a, b, q in zip(offsets[:-1], offsets[1:], p, strict=True))


def test_without_validation_it_is_calibrated_on_scans_held_out_once():
    x, offsets, labels = scans(30)
    parts = list(x.split(offsets.diff().tolist()))
    head = Head(**SMALL, calibration_folds=3, seed=2).fit(x, offsets, labels)
    of_scan, of_slices = {}, {}
    for train, held in folds_of(labels, None, folds=3, seed=0):
        cut = torch.tensor([0] + [len(parts[b]) for b in train]).cumsum(0)
        one = Head(**SMALL, seed=2, calibration="none")
        one.fit(torch.cat([parts[b] for b in train]), cut, labels[list(train)])
        assert one.model_.calibration is None
        for b in held:
            from ich_mil.gp.predict import scan_samples

            whole = torch.tensor([0, len(parts[b])])
            of_scan[b], of_slices[b] = scan_samples(one.model_, Bags(parts[b], whole))
    stack = [torch.cat([of[b] for b in range(30)], 1) for of in (of_scan, of_slices)]
    expected = Calibration.fit(*stack, labels, rule="max")
    for name in ("slope", "intercept", "slice_slope", "slice_intercept"):
        # other tiles, hence other rounding; BFGS ends where the gradient is below 1e-5
        assert getattr(head.model_.calibration, name) == pytest.approx(getattr(expected, name), rel=1e-5)
    several = offsets.diff() > 1
    assert 2 < int(several.sum()) < 30
    head = Head(**SMALL, calibration_folds=3, seed=2).fit(x, offsets, labels, calibrates=several)
    expected = Calibration.fit(*(part[:, several] for part in stack), labels[several], rule="max")
    assert head.model_.calibration.slope == pytest.approx(expected.slope, rel=1e-5)


def test_validation_scans_stop_and_calibrate():
    x, offsets, labels = scans(30)
    held = scans(14, seed=8)
    head = Head(**SMALL).fit(x, offsets, labels, validation=held)
    assert len(head.report_.validation_log_loss) == len(head.report_.elbo)
    assert head.model_.calibration == calibrate(head.model_, held)
    plain = Head(**SMALL, calibration="none").fit(x, offsets, labels, validation=held)
    assert plain.model_.calibration is None
    before, after = (
        predict(head.model_, Bags(held.x, held.offsets, None, None, None), calibration=c).scan_mean
        for c in (None, head.model_.calibration)
    )
    assert log_loss(held[2], after) < log_loss(held[2], before)


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_other_calibrations_are_saved_too(tmp_path, method):
    head = Head(**SMALL, calibration=method).fit(*scans(30))
    assert head.model_.calibration.method == method
    head.save(tmp_path)
    x, offsets, _ = scans(6, seed=4)
    assert np.array_equal(
        Head.load(tmp_path).predict_bag_proba(x, offsets), head.predict_bag_proba(x, offsets)
    )


def test_a_reloaded_head_predicts_the_same_bits(head, tmp_path):
    head.save(tmp_path)
    again = Head.load(tmp_path)
    assert again.get_params() == head.get_params()
    assert again.n_features_in_ == head.n_features_in_ == 3
    x, offsets, _ = scans(6, seed=4)
    for name in ("predict_bag_proba", "predict_instance_proba"):
        for one, two in zip(
            getattr(head, name)(x, offsets, return_std=True),
            getattr(again, name)(x, offsets, return_std=True),
            strict=True,
        ):
            assert np.array_equal(one, two)


def test_parameters_are_the_settings_and_clone_takes_them():
    head = Head(density="gamma", beta=4.0, n_inducing=20)
    assert set(head.get_params()) == set(HeadSettings.names())
    other = clone(head).set_params(beta=1.0)
    assert (head.beta, other.beta, other.n_inducing) == (4.0, 1.0, 20)
    with pytest.raises(TypeError, match="Head has no parameter 'gamma'; it has family, preset"):
        Head(gamma=1.0)
    with pytest.raises(ValueError, match=r"^alpha must be a finite number above 0, got -1\.0"):
        Head(alpha=-1.0).fit(*scans())
    with pytest.raises(ValueError, match="Invalid parameter 'gamma'"):
        head.set_params(gamma=1)


def test_a_density_and_a_kernel_of_ones_own(tmp_path):
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
    assert again.model_.given == ("kernel", "density")
    again.save(tmp_path / "again")
    with pytest.raises(ModelError, match="was fitted with a kernel object of its own: load it with kernel="):
        Head.load(tmp_path / "again")
    for other in (gpytorch.kernels.MaternKernel(nu=0.5), gpytorch.kernels.MaternKernel(nu=2.5)):
        with pytest.raises(ModelError, match=r"head\.json: the head was fitted with a kernel unlike kernel="):
            Head.load(tmp_path, kernel=gpytorch.kernels.ScaleKernel(other))


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ({"density": "gamma"}, {"density": GammaLogisticTail(1.0, 2.5)}),
        ({"kernel": "MaternKernel"}, {"kernel": make_kernel(HeadSettings(kernel="MaternKernel"), 3)}),
    ],
    ids=["density", "kernel"],
)
def test_what_is_given_as_an_object_is_calibrated_with_it(named, given):
    one, two, plain = (
        Head(**SMALL, calibration_folds=3, **own).fit(*scans(30)).model_.calibration
        for own in (named, given, {})
    )
    for part in ("slope", "intercept", "slice_slope", "slice_intercept"):
        assert getattr(two, part) == pytest.approx(getattr(one, part), rel=1e-6)
        assert getattr(two, part) != pytest.approx(getattr(plain, part), rel=1e-3)


def test_bad_input_is_named():
    x, offsets, labels = (part.numpy() for part in scans())
    index = np.repeat(np.arange(24), np.diff(offsets))
    head = Head(**SMALL)
    with pytest.raises(NotFittedError, match="Head instance is not fitted yet"):
        head.predict_bag_proba(x, offsets)
    for bad, shape in (
        (x[0], r"\(3,\)"),
        (x[:, :0], r"\(\d+, 0\)"),
        (x[:0], r"\(0, 3\)"),
        (x + 0j, r"\(\d+, 3\)"),
    ):
        with pytest.raises(DataError, match=r"X must be a table \(N, D\) of numbers, got shape " + shape):
            head.fit(bad, offsets, labels)
    with pytest.raises(DataError, match="there are 24 bags, but labels of shape"):
        head.fit(x, offsets, labels[:-1])
    for other in (2, -1):
        with pytest.raises(DataError, match=f"labels must be 0 or 1, got {other}; leave unlabelled bags out"):
            head.fit(x, offsets, np.where(labels == 1, 1, other))
    with pytest.raises(DataError, match="labels must be 0 or 1, got '0'"):
        head.fit(x, offsets, labels.astype(str))
    with pytest.raises(DataError, match="labels must be 0 or 1, got <NA>; leave unlabelled bags out"):
        head.fit(x, offsets, pd.array([None, *(labels[1:] == 1)], dtype="boolean"))
    for odd in (torch.tensor(x).to_sparse(), torch.tensor(x, device="meta")):
        with pytest.raises(DataError, match=r"X must be a table \(N, D\) of numbers, got a tensor that is"):
            head.fit(odd, offsets, labels)
    for bags in (offsets[:-1], offsets.astype(float)):
        with pytest.raises(
            DataError,
            match="bags must be offsets, whole numbers from 0 to the number of rows, or name the bag",
        ):
            head.fit(x, bags, labels)
    empty = offsets.copy()
    empty[3] = empty[2]
    with pytest.raises(DataError, match="every bag needs at least one row, bag 2 of the offsets has none"):
        head.fit(x, empty, labels)
    broken = x.copy()
    broken[7, 1] = np.nan
    with pytest.raises(DataError, match="row 7 of X: a feature is NaN or infinite"):
        head.fit(broken, offsets, labels)
    for label in (0, 1):
        with pytest.raises(DataError, match=f"all 24 are labelled {label}, both labels are needed"):
            head.fit(x, offsets, np.full_like(labels, label))
    for bags in ([], index[:, None]):
        with pytest.raises(DataError, match=r"bags must be one-dimensional, .* got shape"):
            head.fit(x, bags, labels)
    with pytest.raises(
        DataError, match=r"5 folds need at least 5 patients .* there are 4 of one; take fewer"
    ):
        head.fit(x[: offsets[8]], offsets[:9], labels[:8])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_a_bad_feature_is_named_by_its_row_in_x(head, bad, monkeypatch):
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


def test_tables_of_pandas_and_tensors_of_a_network_are_features(head):
    x, offsets, labels = scans(30)
    expected = head.predict_bag_proba(x, offsets)
    table = pd.DataFrame(x.numpy())  # whose values are read-only
    index = pd.Series(np.repeat(np.arange(30), offsets.diff()))
    smooth = Head(**SMALL, calibration="none", smooth_mm=5.0)
    smooth.fit(table, index, pd.Series(labels), positions=pd.Series(np.arange(len(x), dtype=float)))
    for given in (table, x.clone().requires_grad_() * 1.0):
        again = Head(**SMALL).fit(given, offsets, labels)
        # products round by how memory is aligned
        np.testing.assert_allclose(again.predict_bag_proba(given, offsets), expected, rtol=1e-10)


@pytest.mark.parametrize(
    "store",
    [
        lambda values: values[::-1].copy()[::-1],
        lambda values: values.astype(values.dtype.newbyteorder(">")),
        lambda values: torch.as_tensor(values).double().requires_grad_(),
    ],
)
def test_arrays_may_be_stored_in_any_way(head, store):
    x, offsets, labels = (part.numpy() for part in scans(30))
    z = np.arange(len(x), dtype=float)
    again = Head(**SMALL).fit(store(x), offsets, store(labels))
    got, expected = again.predict_bag_proba(store(x), offsets), head.predict_bag_proba(x, offsets)
    np.testing.assert_allclose(got, expected, rtol=1e-10)
    of_x, of_z = (
        Head(**SMALL, calibration="none", smooth_mm=5.0).fit(x, offsets, labels, positions=positions)
        for positions in (z, store(z))
    )
    torch.testing.assert_close(of_z.model_.q_mean, of_x.model_.q_mean, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("density", [3, None, "gaussian", types.SimpleNamespace(theta=1, log_psi=1)])
def test_what_is_no_density_is_told(density):
    with pytest.raises(ValueError, match=r"density must be one of gamma, logistic, .*got "):
        Head(**SMALL, density=density).fit(*scans())


@pytest.mark.parametrize("kernel", [gpytorch.kernels.RBFKernel, torch.nn.Linear(3, 3), None])
def test_what_is_no_kernel_is_told(kernel):
    with pytest.raises(ValueError, match=r"kernel must be the name of a class in gpytorch\.kernels, or"):
        Head(**SMALL, kernel=kernel).fit(*scans())


@pytest.mark.parametrize("options", [{"ard_num_dims": 7}, {"active_dims": (0, 5)}])
def test_a_kernel_of_other_features_is_told(options):
    kernel = gpytorch.kernels.RBFKernel(**options)
    with pytest.raises(ConfigError, match="the kernel cannot be computed of 3 features a slice"):
        Head(**SMALL, kernel=kernel).fit(*scans())


def test_labels_that_pandas_names_in_another_order_are_not_taken_by_place():
    x, offsets, labels = (part.numpy() for part in scans(30))
    names = np.array([f"s{b}" for b in range(30)])  # np.unique: s0, s1, s10, ...
    bags = np.repeat(names, np.diff(offsets))
    named = pd.Series(labels, index=names)
    head = Head(**SMALL, calibration="none")
    with pytest.raises(DataError, match=r"named by bag, .* give labels\.loc\[np\.unique\(bags\)\]"):
        head.fit(x, bags, named)
    right = named.loc[np.unique(bags)]
    with pytest.raises(DataError, match="labels are named by bag, in another order"):
        head.fit(x, bags, right).score(x, bags, named)
    by_place = Head(**SMALL, calibration="none").fit(x, bags, right.to_numpy())
    for given in (right, right.reset_index(drop=True)):
        assert torch.equal(head.fit(x, bags, given).model_.q_mean, by_place.model_.q_mean)
    head.fit(x, offsets, named)  # offsets name no bag


def test_patients_that_pandas_names_in_another_order_are_not_taken_by_place():
    x, offsets, labels = (part.numpy() for part in scans(30))
    names = np.array([f"s{b}" for b in range(30)])
    bags = np.repeat(names, np.diff(offsets))
    patients = pd.Series([f"p{b // 2}" for b in range(30)], index=names)  # s0 and s1 are of one, s2 and s3
    right = pd.Series(labels, index=names).loc[np.unique(bags)]
    head = Head(**SMALL, calibration_folds=3)
    with pytest.raises(DataError, match=r"^groups are named by bag, .* groups\.loc\[np\.unique\(bags\)\]"):
        head.fit(x, bags, right, groups=patients)
    given = patients.loc[right.index]
    by_place = [f"p{int(name[1:]) // 2}" for name in sorted(names)]
    calibrations = [head.fit(x, bags, right, groups=one).model_.calibration for one in (given, by_place)]
    assert calibrations[0] == calibrations[1] != head.fit(x, bags, right).model_.calibration


def test_more_bad_input_is_named_before_anything_is_kept():
    x, offsets, labels = (part.numpy() for part in scans())
    head = Head(**SMALL)
    index = np.repeat(np.arange(24), np.diff(offsets)).astype(float)
    index[9] = np.nan
    with pytest.raises(DataError, match="row 9 of X has no bag"):
        head.fit(x, index, labels)
    mixed = pd.Series(["s1"] * 9 + [1] * (len(x) - 9))
    with pytest.raises(DataError, match="bags must be named by text alone, or by numbers alone"):
        head.fit(x, mixed, labels)
    with pytest.raises(DataError, match=r"there are 24 scans, but patients \(groups\) of shape \(3,\)"):
        head.fit(x, offsets, labels, groups=["a", "b", "c"])
    with pytest.raises(DataError, match="validation scans: 1 features a slice, training scans have 3"):
        head.fit(x, offsets, labels, validation=(x[:, :1], offsets, labels))
    with pytest.raises(DataError, match=r"validation: labels must be 0 or 1, got -1"):
        head.fit(x, offsets, labels, validation=(x, offsets, labels - 1))
    with pytest.raises(ValueError, match=r"validation must be \(X, bags, labels\), or"):
        head.fit(x, offsets, labels, validation=(x, labels))
    with pytest.raises(DataError, match=r"X must be a table \(N, D\) of numbers \("):
        head.fit(np.full((4, 2), "a", dtype=object), [0, 2, 4], [0, 1])
    with pytest.raises(ConfigError, match="a density is of ψ-VGPMIL, not of the family 'probit'"):
        Head(**SMALL, family="probit", density=LogDensity(torch.cos), calibration="none").fit(
            x, offsets, labels
        )
    for kernel in ("Kernel", "SpectralMixtureKernel", "NoKernel"):
        with pytest.raises(ConfigError, match=r"head\.kernel: "):
            Head(**SMALL, kernel=kernel, calibration="none").fit(x, offsets, labels)
    assert not hasattr(head, "model_")


def test_numbers_of_numpy_are_numbers():
    head = Head(n_inducing=np.int64(12), beta=np.float32(2.5), sweeps=3, calibration="none").fit(*scans())
    assert (type(head.model_.settings.n_inducing), type(head.model_.settings.beta)) == (int, float)


@pytest.mark.parametrize("family", ["large_margin", "probit", "gibbs"])
def test_every_family_fits_calibrates_and_comes_back(tmp_path, family):
    short = {"burn_in": 100, "draws": 100} if family == "gibbs" else {}
    head = Head(family=family, n_inducing=12, calibration_folds=3, **short)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*R-hat.*")  # short chains
        head.fit(*scans(30))
    x, offsets, labels = scans(16, seed=4)
    p = head.predict_bag_proba(x, offsets)
    assert roc_auc_score(labels, p) > 0.85
    head.save(tmp_path)
    assert np.array_equal(Head.load(tmp_path).predict_bag_proba(x, offsets), p)


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.device("meta"),
        lambda: torch.autocast("cpu", torch.bfloat16),
    ],
    ids=["no grad", "inference", "default device", "autocast"],
)
def test_it_is_the_same_head_whatever_mode_it_is_fitted_in(mode, tmp_path):
    x, offsets, labels = scans(20)
    own = LogDensity(lambda c: -torch.log(torch.cosh(c / 2)), bounded=True)
    settings = {**SMALL, "calibration_folds": 2, "learn": "kernel", "outer": 1, "density": own}
    settings["precision"] = "mixed"
    head = Head(**settings).fit(x, offsets, labels)
    head.save(tmp_path)
    expected = head.predict_bag_proba(x, offsets)
    with mode():
        given = x.clone()  # as an encoder makes them in that mode
        made = Head(**settings).fit(given, offsets, labels)
        loaded = Head.load(tmp_path)
        for one in (made, loaded, head):
            assert np.array_equal(one.predict_bag_proba(given, offsets), expected)
    for one in (made, loaded):  # autograd goes through them afterwards, for maps of evidence
        seen = x[:3].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(one.model_(seen).mean.sum(), seen)
        assert float(gradient.abs().min()) > 0


def test_as_many_folds_as_patients_of_a_label():
    folds = folds_of(torch.arange(8) % 2, None, folds=4, seed=0)
    assert [sorted(b % 2 for b in held) for _, held in folds] == [[0, 1]] * 4


def test_folds_keep_patients_together_and_hold_each_scan_out_once():
    labels = torch.arange(40) % 2
    patients = [f"p{b // 2}" for b in range(40)]  # each patient has a scan of either label
    folds = folds_of(labels, patients, folds=4, seed=1)
    assert sorted(b for _, held in folds for b in held) == list(range(40))
    for train, held in folds:
        assert not {patients[b] for b in train} & {patients[b] for b in held}
        assert set(train) | set(held) == set(range(40))
    # another seed deals them otherwise, also where nobody has two scans
    for keys in (patients, None):
        drawn = [folds_of(labels, keys, folds=4, seed=seed) for seed in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("labels", "patients", "message"),
    [
        (
            [0] * 9 + [1] * 2,
            None,
            "3 folds need .* 3 patients of each label, there are 2 of one; take fewer folds$",
        ),
        ([0, 0, 0, 1, 0, 1], "aaabac", "3 folds .* there are 1 of one; add scans of other patients of that"),
        ([0, 0, 0, 1, 1, 1], "aabcde", "3 folds need at least 3 patients of each label, there are 2 of one"),
        ([0, 0, 0, 1, 1, 1], ["a", "b", None, "c", "d", "e"], "scan 2 has no patient: .* is None"),
        ([0, 0, 0, 1, 1, 1], [1, 2, 3, 4, math.nan, 5], "scan 4 has no patient: .* is nan"),
        ([0, 0, 0, 1, 1, 1], "abcde", r"there are 6 scans, but patients \(groups\) of shape \(5,\)"),
    ],
)
def test_folds_that_cannot_be_filled_are_refused(labels, patients, message):
    with pytest.raises(DataError, match=message):
        folds_of(torch.tensor(labels), patients and list(patients), folds=3, seed=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"family": "large_margin", "margin_c": 1e150},
        {"family": "probit", "variance": 1e200, "jitter": 1e200},
        {"learn": "kernel", "variance": 1e200, "jitter": 1e200},
        {"family": "gibbs", "variance": 1e200, "jitter": 1e200, "chains": 2, "burn_in": 0, "draws": 4},
    ],
)
def test_settings_beyond_what_float64_can_factorise_are_told(settings):
    head = Head(**settings, n_inducing=60, calibration="none")
    with pytest.raises(DataError, match=r"covariance of the 60 inducing values cannot .* lower them$"):
        head.fit(*scans())


def test_rows_of_a_bag_in_another_order_or_precision_have_the_same_probabilities(head):
    x, offsets, _ = scans(12, seed=3)
    x = x.float()
    bags = np.repeat(np.arange(12), offsets.diff())
    p, std = head.predict_bag_proba(x, bags, return_std=True)
    q = head.predict_instance_proba(x, bags)
    order = np.random.default_rng(1).permutation(len(x))
    other, other_std = head.predict_bag_proba(x[order].double(), bags[order], return_std=True)
    np.testing.assert_allclose(other, p, rtol=1e-12)
    np.testing.assert_allclose(other_std, std, rtol=1e-10)
    np.testing.assert_allclose(head.predict_instance_proba(x[order], bags[order]), q[order], rtol=1e-12)


def test_columns_of_a_data_frame_are_asked_for_again(tmp_path):
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


def test_masked_values_are_refused():
    x, offsets, labels = scans(30)
    masked = np.ma.masked_greater(x.numpy(), 1.0)
    with pytest.raises(DataError, match="masked"):
        Head(**SMALL).fit(masked, offsets, labels)

"""Tables and labels with an index, in all three estimators: the same order, or refused."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from ich_mil.errors import DataError
from ich_mil.gp.bags import pack
from ich_mil.gp.head import Head
from ich_mil.gp.tables import check_aligned
from ich_mil.multikernel import MultiKernelGP
from ich_mil.multimodal import MultimodalMIL

N_BAGS = 20
SCANS = np.array([f"s{b:02d}" for b in range(N_BAGS)])
IDS = np.repeat(SCANS, 2)
Y = pd.Series(np.arange(N_BAGS) % 2, index=SCANS)
ROWS = pd.Index([f"{scan}/{k % 2}" for k, scan in enumerate(IDS)])
X = pd.DataFrame(
    np.random.default_rng(0).normal(size=(2 * N_BAGS, 2)) + 2 * np.repeat(Y, 2).to_numpy()[:, None],
    index=ROWS,
    columns=["a", "b"],
)
BAGS = pd.Series(IDS, index=ROWS)
COVARIATES = pd.DataFrame({"age": np.random.default_rng(1).normal(size=N_BAGS)}, index=SCANS)
SMALL = {"n_inducing": 8, "sweeps": 5, "variance": 0.5, "bias": 0.0, "lengthscale_squared": 8.0}


class OfHead:
    def fit(self, x=X, bags=BAGS, y=Y, covariates=COVARIATES, **others):
        return Head(**SMALL, calibration="none").fit(x, bags, y, **others)

    def predict(self, model, x=X, bags=BAGS, covariates=COVARIATES):
        return model.predict_bag_proba(x, bags)

    def score(self, model, y):
        return model.score(X, BAGS, y)


class OfMultimodal:
    def fit(self, x=X, bags=BAGS, y=Y, covariates=COVARIATES):
        model = MultimodalMIL(gradients=50, samples=20)
        return model.fit([x, covariates], [bags, SCANS], y)

    def predict(self, model, x=X, bags=BAGS, covariates=COVARIATES):
        return model.predict_bag_proba([x, covariates], [bags, SCANS])

    def score(self, model, y):
        return model.score([X, COVARIATES], [BAGS, SCANS], y)


class OfMultiKernel:
    def sources(self, x, covariates):
        return {"brain": pd.DataFrame(x.groupby(IDS).mean()), "covariates": covariates}

    def fit(self, x=X, bags=BAGS, y=Y, covariates=COVARIATES):
        model = MultiKernelGP(method="laplace", chains=2, burn_in=100, draws=10, importance=1)
        return model.fit(self.sources(x, covariates), y)

    def predict(self, model, x=X, bags=BAGS, covariates=COVARIATES):
        return model.predict_proba(self.sources(x, covariates))

    def score(self, model, y):
        return model.score(self.sources(X, COVARIATES), y)


@pytest.fixture(autouse=True)
def _short_fits():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="ich_mil|tests")
        warnings.filterwarnings("ignore", message="the chains have not|.*did not converge|the model sep")
        yield


ESTIMATORS = [OfHead(), OfMultimodal(), OfMultiKernel()]
ALL = pytest.mark.parametrize("of", ESTIMATORS, ids=["head", "multimodal", "multikernel"])


@ALL
def test_labels_in_another_order_are_refused(of):
    with pytest.raises(DataError, match=r"the index of (labels|y) is not .*order differs.*\.loc\["):
        of.fit(y=Y.iloc[::-1])


@ALL
def test_labels_of_other_scans_are_refused(of):
    with pytest.raises(DataError, match="it lacks 's00'"):
        of.fit(y=Y.rename({"s00": "t00"}))
    with pytest.raises(DataError, match="it lacks 's07'"):
        of.fit(y=Y.drop("s07"))


@ALL
def test_labels_without_an_index_count_by_position(of):
    model = of.fit()
    expected = of.predict(model)
    for y in (Y.to_numpy(), Y.reset_index(drop=True), torch.tensor(Y.tolist())):
        np.testing.assert_array_equal(of.predict(of.fit(y=y)), expected)
    assert of.score(model, Y) == of.score(model, Y.to_numpy())
    with pytest.raises(DataError, match="order differs"):
        of.score(model, Y.iloc[::-1])


@pytest.mark.parametrize("of", [OfHead(), OfMultimodal()], ids=["head", "multimodal"])
def test_rows_and_their_bags_correspond(of):
    model = of.fit()
    for call in (of.fit, lambda **given: of.predict(model, **given)):
        for bags, message in (
            (BAGS.iloc[::-1], "order differs"),
            (BAGS.rename({"s03/1": "s03/2"}), "it lacks 's03/1'"),
        ):
            with pytest.raises(DataError, match=message):
                call(bags=bags)
    shuffled = np.random.default_rng(2).permutation(len(X))
    p = of.predict(model, x=X.iloc[shuffled], bags=BAGS.iloc[shuffled])
    np.testing.assert_allclose(p, of.predict(model), rtol=1e-9)


@pytest.mark.parametrize("of", [OfMultimodal(), OfMultiKernel()], ids=["multimodal", "multikernel"])
def test_covariates_of_scans_in_another_order(of):
    model = of.fit()
    for call in (of.fit, lambda **given: of.predict(model, **given)):
        with pytest.raises(DataError, match="order"):
            call(covariates=COVARIATES.iloc[::-1])


def test_groups_and_calibrates_follow_the_bags():
    groups, calibrates = pd.Series(SCANS, index=SCANS), pd.Series(True, index=SCANS)
    for given in ({"groups": groups.iloc[::-1]}, {"calibrates": calibrates.iloc[::-1]}):
        with pytest.raises(DataError, match=f"{next(iter(given))} is not np.unique.bags.: its order"):
            OfHead().fit(**given)
    with pytest.raises(DataError, match=r"validation: .*its order differs"):
        OfHead().fit(validation=(X, BAGS, Y.iloc[::-1]))


def test_kernel_matrices_name_their_scans(tmp_path):
    x = X.groupby(IDS).mean().to_numpy()
    S = pd.DataFrame(x @ x.T + np.eye(N_BAGS), index=SCANS, columns=SCANS)
    model = MultiKernelGP(
        method="laplace", chains=2, burn_in=100, draws=10, importance=1, kernels=["precomputed"]
    )
    with pytest.raises(DataError, match=r"source_0\.T is not source_0\.index: its order differs"):
        model.fit([S[SCANS[::-1]]], Y)
    model.fit([S], Y).save(tmp_path / "m.safetensors")
    own = pd.Series(np.diag(S), index=SCANS)[:4]
    for fitted in (model, MultiKernelGP.load(tmp_path / "m.safetensors", kernels=["precomputed"])):
        expected = fitted.predict_proba([(S[:4].to_numpy(), own.to_numpy())])
        np.testing.assert_array_equal(fitted.predict_proba([(S[:4], own)]), expected)
        with pytest.raises(DataError, match="has the columns s19"):
            fitted.predict_proba([(S[:4][SCANS[::-1]], own)])
        with pytest.raises(DataError, match=r"source_0\[1\] is not source_0\[0\]\.index"):
            fitted.predict_proba([(S[:4], own.iloc[::-1])])


def test_columns_of_a_source_are_checked():
    model = OfMultiKernel().fit()
    with pytest.raises(DataError, match="brain has the columns b, a"):
        OfMultiKernel().predict(model, x=X[["b", "a"]])


TABLES = [part.to_numpy() for _, part in X.groupby(IDS)]
OBJECTS = np.empty(N_BAGS, dtype=object)
OBJECTS[:] = TABLES


@pytest.mark.parametrize(
    "bags",
    [
        OBJECTS,
        pd.Series(TABLES, index=SCANS),
        np.stack(TABLES),
        np.stack(TABLES).astype(object),
        torch.as_tensor(np.stack(TABLES)),
    ],
    ids=["object array", "Series", "3-D", "3-D object", "3-D tensor"],
)
def test_bags_in_any_container_are_equal(bags):
    expected = OfHead().fit(TABLES, None, Y)
    model = Head(**SMALL, calibration="none").fit(bags, Y)
    p = expected.predict_bag_proba(TABLES)
    np.testing.assert_array_equal(model.predict_bag_proba(bags), p)
    assert model.score(bags, Y) == expected.score(TABLES, Y)
    assert np.mean((p >= 0.5) == Y) > 0.6


@pytest.mark.parametrize(
    "bags", [dict(zip(SCANS, TABLES, strict=True)), X[["a"]].squeeze(), np.ones(5), np.ones((2, 2, 2, 2))]
)
def test_other_containers_are_named(bags):
    with pytest.raises(DataError, match="bags must be a list of 2-D arrays, got"):
        Head(**SMALL).fit(bags, Y)


def test_a_series_of_bags_follows_its_labels():
    with pytest.raises(DataError, match=r"labels is not X\.index: its order differs"):
        Head(**SMALL).fit(pd.Series(TABLES, index=SCANS), Y.iloc[::-1])


def test_rows_that_were_joined_with_their_labels_twice():
    twice = pd.Series(0, index=[0, 1, 0, 1])
    with pytest.raises(DataError, match="number the rows by reset_index, or give arrays"):
        check_aligned(("x", pd.Series(0, index=[0, 0, 1, 1])), ("y", twice))


@pytest.mark.parametrize(
    ("other", "refused"),
    [
        ([2, 0, 1], "its order differs"),  # a permutation of the default index
        ([7, 8, 9], ""),
        (["a", "b", "c"], ""),
        ([0, 1, 2], ""),
        ([0, 0, 1, 2], ""),  # another length: named by the check of shapes
    ],
)
def test_default_index_has_no_meaning_of_its_own(other, refused):
    pair = ("x", pd.Series([1, 2, 3])), ("y", pd.Series(0, index=other))
    if not refused:
        check_aligned(*pair)
        return
    with pytest.raises(DataError, match=refused):
        check_aligned(*pair)


def test_offsets_name_no_bag():
    offsets = np.arange(0, 2 * N_BAGS + 1, 2)
    packed, _ = pack(X, offsets, Y.iloc[::-1])
    assert packed.truth.tolist() == Y.iloc[::-1].tolist()


def test_numbers_of_several_types_are_taken():
    table = pd.DataFrame({"a": pd.array([1, 2, 3], dtype="Int64"), "b": [0.5, 1.5, 2.5]}).astype(object)
    assert pack(table, np.array([0, 3]))[0].x.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]

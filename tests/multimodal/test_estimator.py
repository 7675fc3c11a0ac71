"""The estimators: quality, invariances, intervals, bad input, storage."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score

from ich_mil.convergence import r_hat
from ich_mil.errors import ConfigError, DataError, ModelError
from ich_mil.multimodal import MultimodalMIL
from tests.multimodal.bags import simulated

QUICK = {"gradients": 900, "samples": 400}
Bags = tuple[list[NDArray[np.float64]], list[NDArray[np.int64]], NDArray[np.int64]]


@pytest.fixture(scope="module")
def train() -> Bags:
    return simulated(150, np.random.default_rng(0))[:3]


@pytest.fixture(scope="module")
def test() -> Bags:
    return simulated(200, np.random.default_rng(1))[:3]


@pytest.fixture(scope="module")
def fitted(train: Bags) -> MultimodalMIL:
    return MultimodalMIL(**QUICK).fit(*train)


def test_bags_and_primary_instances_are_ranked(fitted, test):
    X, bags, y = test
    primary = simulated(200, np.random.default_rng(1))[3]
    assert roc_auc_score(y, fitted.predict_bag_proba(X, bags)) > 0.82
    for truth, p in zip(primary, fitted.predict_instance_proba(X, bags), strict=True):
        assert roc_auc_score(truth, p) > 0.85
    assert fitted.score(X, bags, y) > 0.7


def test_intervals_hold_the_truth(fitted):
    truth = np.array([1.5, 1.5, 1.5, 1.5, 0.0, -1.5])  # slopes; features are N(0, 1)
    slopes = fitted.coef_[fitted.coef_.feature != "intercept"]
    assert ((slopes.lower < truth) & (truth < slopes.upper)).sum() >= 5
    assert (slopes.upper - slopes.lower < 4 * 1.96).all()  # that of the prior of the thesis, N(0, 4)


def test_many_instances_take_the_normal_approximation(train, test):
    model = MultimodalMIL(gradients=100, samples=200).fit(*train)
    assert model.acceptance_ is None
    assert roc_auc_score(test[2], model.predict_bag_proba(*test[:2])) > 0.82


@pytest.mark.slow
def test_many_gradients_converge_and_agree_with_few(train, test, fitted):
    model = MultimodalMIL(gradients=40_000).fit(*train)
    assert float(r_hat(model.chains_).max()) < 1.05
    assert float(r_hat(fitted.chains_).max()) > 1.05  # of few gradients: the measure can tell
    p, q = (one.predict_bag_proba(*test[:2]) for one in (model, fitted))
    assert np.abs(p - q).mean() < 0.05


def test_the_prior_of_the_thesis_inflates_slopes(train, fitted):
    wide = MultimodalMIL(prior="thesis", **QUICK).fit(*train).coef_
    slopes = wide.feature != "intercept"
    assert wide[slopes]["mean"].abs().mean() > fitted.coef_[slopes]["mean"].abs().mean()


def test_samples_and_plug_in_against_their_definitions(fitted, test):
    X, bags, _ = test
    draws = fitted.posterior_
    chosen = np.array([3, 17])
    rows = [np.isin(b, chosen) for b in bags]
    p = fitted.predict_bag_proba(*([part[r] for part, r in zip(q, rows, strict=True)] for q in (X, bags)))
    for bag, got in zip(chosen, p, strict=True):
        values = []
        h = [
            np.c_[np.ones((b == bag).sum()), (x[b == bag] - s.mean.numpy()) / s.deviation.numpy()]
            for x, b, s in zip(X, bags, fitted.scalings_, strict=True)
        ]
        for k in range(len(draws.outer)):
            probs = np.concatenate([ndtr(one @ d[k].numpy()) for one, d in zip(h, draws.inner, strict=True)])
            theta = draws.outer[k].numpy()
            effects = np.concatenate([h[0][:, 1:] @ theta[1:3], h[1][:, 1:] @ theta[3:]])
            total = 0.0
            for delta in itertools.product((0, 1), repeat=len(probs)):
                d = np.array(delta)
                total += np.prod(np.where(d, probs, 1 - probs)) * ndtr(theta[0] + d @ effects)
            values.append(total)
        assert abs(got - np.mean(values)) < 4 * 0.5 / np.sqrt(400)  # δ is sampled, one draw for each of θ
    m = fitted.posterior_.means[0], fitted.posterior_.means[1].numpy()
    eta = np.full(len(np.unique(np.concatenate(bags))), m[1][0])
    for k, (x, b, s) in enumerate(zip(X, bags, fitted.scalings_, strict=True)):
        one = np.c_[np.ones(len(x)), (x - s.mean.numpy()) / s.deviation.numpy()]
        effect = one[:, 1:] @ m[1][[slice(1, 3), slice(3, 4)][k]]
        eta += np.bincount(b, ndtr(one @ m[0][k].numpy()) * effect, minlength=len(eta))
    # Φ of torch is exact to the rounding of 1, not of small values
    np.testing.assert_allclose(fitted.predict_plug_in(X, bags), ndtr(eta), rtol=1e-10, atol=1e-15)


def test_order_of_instances_does_not_matter(fitted, train, test):
    """Nor do units of features."""
    scales, rng = [np.array([1000.0, 0.01]), np.array([5.0])], np.random.default_rng(2)

    def shuffled(data: Bags) -> tuple[Bags, list[NDArray[np.int64]]]:
        orders = [rng.permutation(len(x)) for x in data[0]]
        X, bags = ([part[o] for part, o in zip(parts, orders, strict=True)] for parts in data[:2])
        return ([x * scale + 7 for x, scale in zip(X, scales, strict=True)], bags, data[2]), orders

    model = MultimodalMIL(**QUICK).fit(*shuffled(train)[0])
    (X, bags, _), orders = shuffled(test)
    want = fitted.predict_bag_proba(*test[:2])
    np.testing.assert_allclose(model.predict_bag_proba(X, bags), want, atol=1e-6)
    instances = zip(
        model.predict_instance_proba(X, bags), fitted.predict_instance_proba(*test[:2]), orders, strict=True
    )
    for p, wanted, order in instances:
        np.testing.assert_allclose(p, wanted[order], atol=1e-6)


def test_a_bag_is_the_same_in_any_company(fitted, test):
    X, bags, _ = test
    p, std = fitted.predict_bag_proba(X, bags, return_std=True)
    few = [b < 5 for b in bags]
    alone = fitted.predict_bag_proba(
        *([part[r] for part, r in zip(q, few, strict=True)] for q in (X, bags)), return_std=True
    )
    np.testing.assert_allclose(alone, np.stack([p, std])[:, :5], rtol=1e-12)


def test_a_modality_may_be_missing_everywhere_in_prediction(fitted, test):
    X, bags, _ = test
    p = fitted.predict_bag_proba([X[0], np.empty((0, 1))], [bags[0], np.empty(0, int)])
    both = fitted.predict_bag_proba(X, bags)
    without = ~np.isin(np.arange(200), bags[1])
    assert without.sum() > 10
    np.testing.assert_allclose(p[without], both[without], rtol=1e-12)
    assert np.abs(p - both)[~without].max() > 0.05


def test_three_modalities_and_names_of_bags():
    rng = np.random.default_rng(4)
    X, bags, y, _ = simulated(120, rng)
    extra, owner = rng.standard_normal((120, 1)), np.arange(120)
    y = np.where(extra[:, 0] > 0.8, 1, y)
    names = np.array([f"scan-{i:03}" for i in range(120)])
    tables = [pd.DataFrame(X[0], columns=["a", "b"]), X[1], extra]
    model = MultimodalMIL(**QUICK).fit(tables, [names[b] for b in (*bags, owner)], pd.Series(y, index=names))
    assert set(model.coef_[(model.coef_.modality == 0)]["feature"]) == {"intercept", "a", "b"}
    assert model.predict(tables, [names[b] for b in (*bags, owner)]).shape == (120,)


def test_the_seed_decides(train, fitted):
    again = MultimodalMIL(**QUICK).fit(*train)
    pd.testing.assert_frame_equal(again.coef_, fitted.coef_)
    assert not clone(again).set_params(random_state=1).fit(*train).coef_.equals(fitted.coef_)


def test_storage_to_the_bit(fitted, test, tmp_path):
    for name in ("v", "g"):
        fitted.save(tmp_path / name)
        back = MultimodalMIL.load(tmp_path / name)
        np.testing.assert_array_equal(back.predict_bag_proba(*test[:2]), fitted.predict_bag_proba(*test[:2]))
        pd.testing.assert_frame_equal(back.coef_, fitted.coef_)
        assert back.get_params() == fitted.get_params()
        assert fitted.chains_ is not None
        assert back.chains_ is None
    (tmp_path / "v" / "multimodal.json").write_text("{}")
    (tmp_path / "g" / "multimodal.safetensors").write_bytes(b"x")
    for folder in ("v", "g", "absent"):
        with pytest.raises(ModelError):
            MultimodalMIL.load(tmp_path / folder)
    with pytest.raises(NotFittedError):
        MultimodalMIL().save(tmp_path / "new")


def changed(train: Bags, **parts: object) -> tuple[object, object, object]:
    X, bags, y = train
    return parts.get("X", X), parts.get("bags", bags), parts.get("y", y)


def test_bad_input_is_one_clear_error(train):
    X, bags, y = train
    nan = X[0].copy()
    nan[4, 1] = np.nan
    names = pd.Series(y, index=[str(i) for i in range(150)])
    text = [b.astype(str) for b in bags]
    cases = {
        "no bag has it": changed(train, X=[X[0], np.empty((0, 1))], bags=[bags[0], np.empty(0, int)]),
        "row 4 of X holds NaN": changed(train, X=[nan, X[1]]),
        "must be a list": changed(train, X=X[0]),
        "bags of shape": changed(train, bags=[bags[0][:-1], bags[1]]),
        "but labels of shape": changed(train, y=y[:-1]),
        "have no label": changed(train, y=np.where(np.arange(150) == 7, np.nan, y)),
        "lacks '10'": (X, text, names.drop("10").sort_index()),
        "its order differs": (X, text, names),
        "both labels are needed": changed(train, y=np.ones(150, int)),
        "every column is constant": changed(train, X=[X[0], np.ones_like(X[1])]),
        "has no bag": changed(train, bags=[np.where(np.arange(len(bags[0])) == 2, np.nan, bags[0]), bags[1]]),
        "of numbers": changed(train, X=[X[0].astype(str).astype(object) + "x", X[1]]),
    }
    for told, case in cases.items():
        with pytest.raises(DataError, match=told):
            MultimodalMIL(**QUICK).fit(*case)


def test_accuracy_of_bags_of_one_class(fitted, test):
    X, bags, y = test
    right = fitted.score(X, bags, np.ones(len(y)))
    assert right == pytest.approx(fitted.predict(X, bags).mean())
    assert fitted.score(X, bags, np.zeros(len(y))) == pytest.approx(1 - right)


def test_bad_input_of_predictions(fitted, test):
    X, bags, _ = test
    with pytest.raises(DataError, match="modality 0: 1 features, the model was fitted to 2"):
        fitted.predict_bag_proba([X[0][:, :1], X[1]], bags)
    with pytest.raises(DataError, match="fitted to 2 modalities"):
        fitted.predict_bag_proba(X[:1], bags[:1])
    with pytest.raises(NotFittedError):
        MultimodalMIL().predict(X, bags)


@pytest.mark.parametrize(
    "parameters",
    [{"prior": "flat"}, {"gradients": 0}, {"samples": 1.5}],
)
def test_parameters_out_of_range(train, parameters):
    with pytest.raises(ConfigError, match=next(iter(parameters))):
        MultimodalMIL(**parameters).fit(*train)


def test_constant_columns_take_no_part_and_are_told(train, test):
    X, bags, y = train
    more = [np.c_[X[0], np.full(len(X[0]), 0.1)], X[1]]
    with pytest.warns(UserWarning, match="constant"):
        model = MultimodalMIL(**QUICK).fit(more, bags, y)
    odd = np.c_[test[0][0], np.full(len(test[0][0]), 9.0)]
    want = MultimodalMIL(**QUICK).fit(*train).predict_bag_proba(*test[:2])
    np.testing.assert_allclose(model.predict_bag_proba([odd, test[0][1]], test[1]), want, rtol=1e-9)
    assert model.coef_[model.coef_.feature == "x2"]["mean"].isna().all()


def test_separation_and_few_bags_are_told():
    rng = np.random.default_rng(5)
    y = np.repeat([0, 1], 10)
    x = np.where(y == 1, 5.0, -5.0)[:, None] + 0.1 * rng.standard_normal((20, 1))
    with pytest.warns(UserWarning, match="separates the labels perfectly: the prior bounds"):
        model = MultimodalMIL(**QUICK).fit([x], [np.arange(20)], y)
    assert model.coef_["mean"].abs().max() < 10
    with pytest.warns(UserWarning, match="fewer than"):
        model = MultimodalMIL(**QUICK).fit([rng.standard_normal((20, 30))], [np.arange(20)], y)
    assert np.isfinite(model.coef_[["mean", "std", "lower", "upper"]].to_numpy()).all()


@pytest.mark.filterwarnings("ignore:10 bags are fewer")
@pytest.mark.filterwarnings("ignore:the model separates")
def test_ten_bags_are_fitted():
    X, bags, y, _ = simulated(10, np.random.default_rng(11))
    p, std = MultimodalMIL(**QUICK).fit(X, bags, y).predict_bag_proba(X, bags, return_std=True)
    assert ((p > 0) & (p < 1)).all()
    assert (std > 0.02).all()


@pytest.mark.filterwarnings("ignore:10 bags are fewer")
def test_ten_thousand_columns_are_refused():
    with pytest.raises(DataError, match=r"20,002 coefficients, 2,000 are allowed"):
        MultimodalMIL().fit(
            [np.random.default_rng(0).standard_normal((30, 10_000))], [np.arange(30) % 10], [0, 1] * 5
        )


def test_on_a_device(train, fitted, test, device):
    model = MultimodalMIL(**QUICK, device=device).fit(*train)
    assert model.posterior_.outer.device.type == device.type
    np.testing.assert_allclose(
        roc_auc_score(test[2], model.predict_bag_proba(*test[:2])),
        roc_auc_score(test[2], fitted.predict_bag_proba(*test[:2])),
        atol=0.02,  # other random numbers
    )
    assert torch.isfinite(model.posterior_.outer).all()


@pytest.mark.realdata
def test_the_authors_set(shared_data):
    """One seed of the default."""
    from research.benchmarks.multimodal.simulated import authors_set

    train, test = authors_set()
    model = MultimodalMIL().fit(train.X, train.bags, train.labels)
    assert roc_auc_score(test.labels, model.predict_bag_proba(test.X, test.bags)) > 0.91
    p = model.predict_instance_proba(test.X, test.bags)
    assert roc_auc_score(np.concatenate(test.primary), np.concatenate(p)) > 0.93

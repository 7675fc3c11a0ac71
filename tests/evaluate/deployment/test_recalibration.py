import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize_scalar

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment.recalibration import (
    LEAST_SCANS,
    METRICS,
    _draw,
    _spread,
    cross_fitted,
    fit_intercept,
    pays_from,
    recalibrate,
    recalibration_curve,
    refitted_differences,
)
from ich_mil.evaluate.metrics import scan_metrics
from ich_mil.gp.calibration import Calibration, platt, smoothed_targets


def site(n=400, intercept=-1.5, slope=1.0, seed=0):
    """Logits of scans and labels that follow sigmoid(slope · logit + intercept)."""
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=2, size=n)
    return z, (rng.random(n) < 1 / (1 + np.exp(-slope * z - intercept))).astype(int)


def names(n, each=1):
    return [f"p{i // each}" for i in range(n)]


OWN = Calibration(slice_slope=2.0, slice_intercept=0.5)


def number(frame, n, way, metric, column):
    rows = frame[(frame.n == n) & (frame.way == way) & (frame.metric == metric)]
    assert len(rows) == 1
    return rows[column].item()


def test_intercept_is_the_one_of_most_likelihood():
    z, y = (torch.as_tensor(part) for part in site(60))
    target = smoothed_targets(y).numpy()

    def loss(b):
        f = 1.3 * z.numpy() + b
        return np.mean(np.logaddexp(0, f) - target * f)

    expected = minimize_scalar(loss, bracket=(-5, 5)).x
    assert fit_intercept(z, y, slope=1.3) == pytest.approx(expected, abs=1e-6)


def test_intercept_of_samples_gives_the_mean_of_the_targets():
    z, y = (torch.as_tensor(part) for part in site(60))
    samples = z + torch.randn(50, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    b = fit_intercept(samples, y, slope=0.7)
    p = Calibration(slope=0.7, intercept=b).scan(samples).mean(0)
    assert float(p.mean()) == pytest.approx(float(smoothed_targets(y).mean()), rel=1e-9)


def test_intercept_takes_up_a_shift_exactly():
    z, y = (torch.as_tensor(part) for part in site(60))
    at_0, at_5 = (fit_intercept(z + shift, y, slope=2.0) for shift in (0, 5))
    assert at_5 == pytest.approx(at_0 - 10, abs=1e-6)
    assert np.isfinite(fit_intercept(1e4 * z, y, slope=1.0))


def test_recalibration_finds_the_site_and_keeps_the_rest():
    z, y = site(20_000, intercept=-1.5, slope=1.0)
    moved = recalibrate(z, y, OWN)
    assert (moved.slope, moved.slice_slope, moved.slice_intercept) == (1, 2, 0.5)
    assert moved.intercept == pytest.approx(-1.5, abs=0.1)
    z, y = site(20_000, intercept=0.7, slope=0.5)
    isotonic = Calibration("top_3", "isotonic", 0.5, 0.0, ((0.2, 0.1), (0.9, 0.8)))
    moved = recalibrate(z, y, isotonic)
    assert (moved.slope, moved.intercept) == (0.5, pytest.approx(0.7, abs=0.1))
    assert (moved.rule, moved.method, moved.knots) == ("top_3", "platt", ())


def test_unlabelled_scans_are_left_out():
    z, y = site(50)
    found = recalibrate(np.append(z, [9, 9]), np.append(y, [-1, -1]), OWN)
    assert found == recalibrate(z, y, OWN)


@pytest.mark.parametrize(
    ("n", "change", "message"),
    [
        (LEAST_SCANS - 1, lambda z, y: (z, y), "at least 20 labelled scans of the site, got 19"),
        (30, lambda z, y: (z, 0 * y), "0 of 30 are positive"),
        (30, lambda z, y: (z * np.where(np.arange(30) == 3, np.nan, 1), y), "scan number 3 are NaN"),
        (30, lambda z, y: (z, y + 2), "must be 0, 1 or -1"),
    ],
)
def test_what_cannot_be_recalibrated_says_why(n, change, message):
    with pytest.raises(DataError, match=message):
        recalibrate(*change(*site(n)), OWN)


def test_twenty_scans_are_enough():
    assert recalibrate(*site(LEAST_SCANS), OWN).slope == 1


def test_a_draw_is_n_scans_and_tears_no_patient():
    owner = np.arange(60) // 4
    seen = set()
    for seed in range(20):
        drawn, rest = _draw(owner, 10, np.random.default_rng(seed))
        assert len(drawn) == len(set(drawn)) == 10
        assert not set(owner[drawn]) & set(owner[rest])
        # three patients, and two scans of the third are in neither
        assert len(rest) == 48
        seen.add(tuple(sorted(drawn)))
    assert len(seen) > 15


def test_curve_measures_each_draw_on_the_other_scans():
    z, y = site(100)
    frame = recalibration_curve(z, y, names(100), OWN, sizes=(30,), repeats=1, seed=5)
    drawn, rest = _draw(np.unique(names(100), return_inverse=True)[1], 30, default(5, 30))
    own = scan_metrics(y[rest], 1 / (1 + np.exp(-z[rest])))
    slope, intercept, _ = platt(torch.as_tensor(z[drawn]), torch.as_tensor(y[drawn]))
    found = Calibration(slope=slope, intercept=intercept)
    new = scan_metrics(y[rest], found.scan(torch.as_tensor(z[rest])[None]).mean(0).numpy())
    for metric in METRICS:
        assert number(frame, 30, "platt", metric, "own") == pytest.approx(own[metric])
        for column in ("value", "low", "high"):
            assert number(frame, 30, "platt", metric, column) == pytest.approx(new[metric])
        assert number(frame, 30, "platt", metric, "better") == (new[metric] < own[metric])
    assert set(frame.left) == {70}


def test_curve_measures_the_mean_over_samples():
    z, y = site(60)
    samples = torch.as_tensor(z) + 2 * torch.randn(5, 60, generator=default_torch(), dtype=torch.float64)
    frame = recalibration_curve(samples, y, names(60), OWN, sizes=(30,), repeats=1, seed=5)
    rest = _draw(np.unique(names(60), return_inverse=True)[1], 30, default(5, 30))[1]
    p = (1 / (1 + np.exp(-samples.numpy()[:, rest]))).mean(axis=0)
    assert number(frame, 30, "platt", "brier", "own") == pytest.approx(np.mean((p - y[rest]) ** 2), rel=1e-9)


def test_spread_of_draws_by_hand():
    pairs = [({"brier": 0.5}, {"brier": k / 20}) for k in range(21)]
    expected = {"own": 0.5, "value": 0.5, "low": 0.05, "high": 0.95, "better": 10 / 21}
    assert _spread(pairs, "brier") == pytest.approx(expected)


def test_cross_fitted_scans_know_nothing_of_their_patients_labels():
    z, y = site(60)
    keys = np.array(names(60, each=3))
    samples = torch.as_tensor(z) + torch.randn(5, 60, generator=default_torch(), dtype=torch.float64)
    p = cross_fitted(samples, y, keys, OWN, seed=0)
    patient = keys == "p4"
    turned = cross_fitted(samples, np.where(patient, 1 - y, y), keys, OWN, seed=0)
    assert np.array_equal(p[patient], turned[patient])
    assert (p[~patient] != turned[~patient]).sum() >= 40  # of the nine other parts
    # two patients: each by the other's intercept
    two = np.where(np.arange(60) < 30, "a", "b")
    p = cross_fitted(samples, y, two, OWN, seed=0)
    for held_out, others in ((two == "a", two == "b"), (two == "b", two == "a")):
        b = fit_intercept(samples[:, others], torch.as_tensor(y[others]), slope=1.0)
        assert p[held_out] == pytest.approx(torch.sigmoid(samples[:, held_out] + b).mean(0).numpy())
    with pytest.raises(DataError, match="all 60 labelled scans are of one patient"):
        cross_fitted(samples, y, ["a"] * 60, OWN, seed=0)
    with pytest.raises(DataError, match="all 60 labelled scans are of one patient"):
        refitted_differences(samples, y, ["a"] * 60, OWN, seed=0)


def test_resampled_differences_see_that_few_scans_may_mislead():
    z, y = site(400, intercept=0.0)
    keys = names(400)
    few = refitted_differences(z[:40], y[:40], keys[:40], OWN, resamples=60, seed=0)
    many = refitted_differences(z, y, keys, OWN, resamples=60, seed=0)
    for metric in METRICS:
        assert len(few[metric]) == 60
        assert np.std(few[metric]) > 1.5 * np.std(many[metric])
    # the model is right as it is: there is nothing to gain
    assert abs(np.median(many["log_loss"])) < 0.003
    assert 0.2 < (many["log_loss"] < 0).mean() < 0.8
    moved = refitted_differences(*site(400), keys, OWN, resamples=60, seed=0)
    assert (moved["log_loss"] < 0).all()
    again = refitted_differences(*site(400), keys, OWN, resamples=60, seed=0)
    assert np.array_equal(moved["ece"], again["ece"])


def test_resampled_differences_of_two_patients_by_hand():
    """A resample that leaves somebody out has one of them twice: measured on the other."""
    z, y = site(40)
    owner = np.arange(40) // 20
    wanted = []
    for drawn in (0, 1):
        rest = torch.as_tensor(z[owner != drawn])
        twice = (torch.as_tensor(np.tile(part[owner == drawn], 2)) for part in (z, y))
        b = fit_intercept(*twice, slope=1.0)
        old, new = (np.mean((torch.sigmoid(rest + add).numpy() - y[owner != drawn]) ** 2) for add in (0, b))
        wanted.append(new - old)
    found = refitted_differences(z, y, names(40, each=20), OWN, resamples=20, seed=0)["brier"]
    assert np.unique(found) == pytest.approx(np.sort(wanted), rel=1e-9)


def default_torch():
    return torch.Generator().manual_seed(0)


def default(seed, n):
    return np.random.default_rng([seed, n])


def test_a_moved_site_pays_and_the_same_site_does_not():
    sizes = (10, 30, 150)
    moved = recalibration_curve(*site(400), names(400), OWN, sizes=sizes, repeats=15, seed=0)
    assert pays_from(moved, way="intercept") in (10, 30)
    assert pays_from(moved, way="platt") in (10, 30)
    assert number(moved, 150, "platt", "log_loss", "better") == 1
    same = recalibration_curve(*site(400, intercept=0), names(400), OWN, sizes=sizes, repeats=15, seed=0)
    assert pays_from(same, way="intercept") is None
    assert pays_from(same, way="platt") is None
    # one number errs less than two, and both the less the more scans
    values = {
        way: [number(same, n, way, "log_loss", "value") for n in sizes] for way in ("intercept", "platt")
    }
    assert values["platt"][0] > values["intercept"][0] > number(same, 10, "platt", "log_loss", "own")
    assert values["platt"][0] > values["platt"][1] > values["platt"][2]


def test_draws_of_one_label_are_counted():
    z, y = site(200, intercept=-5)
    frame = recalibration_curve(z, y, names(200), OWN, sizes=(10,), repeats=40, seed=0)
    one = frame.one_label.iloc[0]
    p = y.mean()
    assert one / 40 == pytest.approx((1 - p) ** 10, abs=0.25)
    assert one > 0
    assert (frame.used + frame.one_label + frame.wrong_slope == 40).all()
    assert (frame[frame.way == "intercept"].wrong_slope == 0).all()
    none = recalibration_curve(z, 0 * y, names(200), OWN, sizes=(10,), repeats=3, seed=0)
    assert set(none.one_label) == {3}
    assert none.value.isna().all()
    assert set(none.note) == {"no draw could be used: one label only, or no slope above 0"}
    assert pays_from(none, way="platt") is None


def test_slopes_that_turn_the_order_are_counted():
    z, y = site(100, intercept=0)
    frame = recalibration_curve(-z, y, names(100), OWN, sizes=(40,), repeats=5, seed=0)
    assert set(frame[frame.way == "platt"].wrong_slope) == {5}
    assert set(frame[frame.way == "intercept"].used) == {5}


def test_sizes_that_leave_too_few_are_told_and_do_not_count():
    frame = recalibration_curve(*site(100), names(100), OWN, sizes=(30, 80, 85, 500), repeats=4, seed=0)
    note = frame.groupby("n").note.first()
    assert note[30] == note[80] == ""
    assert note[85] == "85 of 100 labelled scans: 4 draws left fewer than 20 to measure on"
    assert note[500] == "500 of 100 labelled scans: 4 draws left fewer than 20 to measure on"
    assert frame[frame.n > 80].value.isna().all()
    assert frame[frame.n <= 80].value.notna().all()
    assert pays_from(frame, way="intercept") == 30


def test_draws_that_leave_too_few_are_counted_beside_those_that_do_not():
    keys = [*names(50), *["many"] * 20]  # if drawn last, up to 19 are in neither
    frame = recalibration_curve(*site(70), keys, OWN, sizes=(40,), repeats=20, seed=0)
    measured = int(frame.used[0] + frame.one_label[0])
    assert 0 < measured < 20
    few = 20 - measured
    assert set(frame.note) == {f"40 of 70 labelled scans: {few} draws left fewer than 20 to measure on"}


def test_seed_decides_and_a_size_does_not_depend_on_the_others():
    z, y = site(100)
    many = recalibration_curve(z, y, names(100), OWN, sizes=(20, 40), repeats=3, seed=1)
    one = recalibration_curve(z, y, names(100), OWN, sizes=(40,), repeats=3, seed=1)
    pd.testing.assert_frame_equal(many[many.n == 40].reset_index(drop=True), one)
    other = recalibration_curve(z, y, names(100), OWN, sizes=(40,), repeats=3, seed=2)
    assert (other.value != one.value).any()


def test_pays_from_by_hand():
    frame = pd.DataFrame(
        [
            {"n": n, "way": "platt", "metric": "log_loss", "better": better, "used": used}
            | {"one_label": 10 - used, "wrong_slope": 0}
            for n, better, used in [
                (10, 1.0, 10),
                (20, 0.5, 10),
                (50, 0.9, 10),
                (100, 1.0, 9),
                (200, np.nan, 0),
            ]
        ]
    )
    frame.loc[frame.n == 200, "one_label"] = 0
    assert pays_from(frame, way="platt") == 50  # not 10: at 20 it does not pay
    frame.loc[frame.n == 100, ["used", "one_label"]] = [8, 2]
    assert pays_from(frame, way="platt") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": (1,)}, "sizes of at least 2"),
        ({"sizes": ()}, "sizes of at least 2"),
        ({"repeats": 0}, "one repeat"),
    ],
)
def test_no_curve_of_nothing(options, message):
    with pytest.raises(ValueError, match=message):
        recalibration_curve(*site(50), names(50), OWN, **{"seed": 0, "repeats": 1} | options)


def test_unlabelled_sites_are_refused_and_lengths_checked():
    z, y = site(50)
    with pytest.raises(DataError, match="no scan of the site is labelled"):
        recalibration_curve(z, 0 * y - 1, names(50), OWN, seed=0)
    with pytest.raises(ValueError, match="do not fit"):
        recalibration_curve(z, y, names(49), OWN, seed=0)


@pytest.mark.realdata
def test_the_cnn_is_recalibrated_to_cq500(cq500_features):
    cq500 = cq500_features
    z = torch.logit(cq500.cnn_scan.double().clamp(1e-6, 1 - 1e-6))
    frame = recalibration_curve(
        z, cq500.labels.numpy(), cq500.patients, Calibration(), sizes=(50, 200), repeats=8, seed=0
    )
    assert pays_from(frame, way="platt") == 50
    assert number(frame, 200, "platt", "ece", "value") < 0.5 * number(frame, 200, "platt", "ece", "own")

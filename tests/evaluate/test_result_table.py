import numpy as np
import pandas as pd
import pytest

from ich_mil.errors import DataError
from ich_mil.evaluate.bootstrap import of_proportion, patient_bootstrap
from ich_mil.evaluate.calibration_line import calibration_line
from ich_mil.evaluate.metrics import auc_inside, scan_metrics, slice_probability_metrics, slice_ranking
from ich_mil.evaluate.model_metrics import INSIDE, SCAN, SLICE, known_or_none
from ich_mil.evaluate.resampled_metrics import resampled_ece
from ich_mil.evaluate.result_table import COLUMNS, Scores, evaluate, read_table


@pytest.fixture
def truth():
    rng = np.random.default_rng(0)
    sizes = rng.integers(3, 8, 40)
    labels = np.arange(40) % 2
    bags = np.repeat(np.arange(40), sizes)
    return {
        "labels": labels,
        "patients": [f"p{i // 2 % 15}" for i in range(40)],
        "offsets": np.concatenate([[0], sizes.cumsum()]),
        "slice_labels": labels[bags] * rng.integers(0, 2, len(bags)),
    }


@pytest.fixture
def model(truth):
    rng = np.random.default_rng(1)
    scan = np.clip(0.3 * truth["labels"] + rng.uniform(0, 0.7, 40), 0, 1)
    slices = np.clip(0.2 * truth["slice_labels"] + rng.uniform(0, 0.8, truth["offsets"][-1]), 0, 1)
    return Scores("GP", scan, slices, slice_is_probability=True)


def number(frame, model, level, metric):
    rows = frame[(frame.model == model) & (frame.level == level) & (frame.metric == metric)]
    assert len(rows) == 1
    return rows.iloc[0]


def test_values_are_those_of_the_metrics_with_intervals_around_them(truth, model):
    frame = evaluate([model], **truth, seed=0, resamples=200)
    assert list(frame.columns) == COLUMNS
    scan = scan_metrics(truth["labels"], model.scan) | calibration_line(truth["labels"], model.scan)
    for metric, value in scan.items():
        row = number(frame, "GP", SCAN, metric)
        assert (row.value, row.n, row.positives, row.patients, row.note) == (value, 40, 20, 15, "")
        assert row.low < row.high
    bags = np.repeat(np.arange(40), np.diff(truth["offsets"]))
    for metric, value in slice_ranking(truth["slice_labels"], model.slice).items():
        assert number(frame, "GP", SLICE, metric).value == value
    inside = number(frame, "GP", INSIDE, "auc")
    scans, values = auc_inside(truth["slice_labels"], model.slice, bags)
    assert (inside.value, inside.n) == (values.mean(), len(scans))
    assert inside.low < inside.value < inside.high
    owners = [truth["patients"][b] for b in scans]
    interval = patient_bootstrap(
        lambda c: {"auc": values @ c / c.sum(axis=0)}, owners, resamples=200, seed=0
    )["auc"]
    interval = of_proportion(interval, inside.value, len(set(owners)))
    assert (inside.patients, inside.low, inside.high) == (len(set(owners)), interval.low, interval.high)
    losses = slice_probability_metrics(truth["slice_labels"], model.slice)
    assert number(frame, "GP", SLICE, "brier").value == losses["brier"]
    assert number(frame, "GP", SLICE, "log_loss").value == losses["log_loss"]
    assert number(frame, "GP", SLICE, "ece").value == losses["ece"]
    errors = (model.slice - truth["slice_labels"]) ** 2
    brier = patient_bootstrap(
        lambda c: {"brier": errors @ c / c.sum(axis=0)},
        np.array(truth["patients"])[bags],
        resamples=200,
        seed=0,
    )["brier"]
    row = number(frame, "GP", SLICE, "brier")
    assert (row.low, row.high) == pytest.approx((brier.low, brier.high), rel=1e-12)


def test_unlabelled_are_left_out_and_counted(truth, model):
    kept = np.arange(40) >= 6
    part = {**truth, "labels": np.where(kept, truth["labels"], -1)}
    row = number(evaluate([model], **part, seed=0, resamples=50), "GP", SCAN, "auc")
    assert (row.n, row.unlabelled) == (34, 6)
    assert row.value == scan_metrics(truth["labels"][kept], model.scan[kept])["auc"]


def test_models_share_the_resamples_so_equal_scores_have_equal_intervals(truth, model):
    twin = Scores("twin", model.scan, model.slice, slice_is_probability=True)
    frame = evaluate([model, twin], **truth, seed=0, resamples=60)
    first, second = (frame[frame.model == name].drop(columns="model") for name in ("GP", "twin"))
    np.testing.assert_array_equal(first.to_numpy(), second.to_numpy())


def test_what_is_missing_is_said_with_its_reason(truth, model):
    silent = Scores("CNN", model.scan, None)
    position = Scores("position", None, model.slice)
    frame = evaluate([model, silent, position], **truth, seed=0, resamples=60)
    assert number(frame, "CNN", SLICE, "auc").note == "gives no slice score"
    assert number(frame, "position", SCAN, "auc").note == "gives no scan score"
    for name in ("CNN", "position"):  # every model has every scan metric, and no other
        assert set(frame[(frame.model == name) & (frame.level == SCAN)].metric) == set(
            frame[(frame.model == "GP") & (frame.level == SCAN)].metric
        )
    unlabelled = evaluate([model, silent], **{**truth, "slice_labels": None}, seed=0, resamples=60)
    assert set(unlabelled[unlabelled.level != SCAN].note) == {"no slice labels"}
    assert set(unlabelled[(unlabelled.model == "GP") & (unlabelled.level == SLICE)].metric) == {
        "auc",
        "ap",
        "log_loss",
        "brier",
        "ece",
    }


def test_one_class_and_no_label_at_all(truth, model):
    ones = {**truth, "labels": np.ones(40, int), "slice_labels": np.ones(len(model.slice), int)}
    frame = evaluate([model], **ones, seed=0, resamples=60)
    auc = number(frame, "GP", SCAN, "auc")
    assert np.isnan([auc.value, auc.low, auc.high]).all()
    assert auc.note == "one class only"
    assert number(frame, "GP", SCAN, "brier").low < number(frame, "GP", SCAN, "brier").high
    assert number(frame, "GP", INSIDE, "auc").note == "no scan has slices of both kinds"
    for metric in ("balanced_accuracy", "sensitivity_at_90", "specificity_at_95"):
        assert np.isnan(number(frame, "GP", SCAN, metric).value)
        assert number(frame, "GP", SCAN, metric).note == "one class only"
    zeros = {**truth, "labels": np.zeros(40, int)}
    called = Scores("calls all", np.full(40, 0.9), None)
    f1 = number(evaluate([called], **zeros, seed=0, resamples=60), "calls all", SCAN, "f1")
    assert np.isnan([f1.value, f1.low, f1.high]).all()
    assert f1.note == "no scan is positive"
    silent = number(evaluate([called], **truth, seed=0, resamples=60), "calls all", SCAN, "npv")
    assert np.isnan([silent.value, silent.low, silent.high]).all()
    assert silent.note == "one class only, or no scan is called so"
    none = {**truth, "labels": np.full(40, -1), "slice_labels": np.full(len(model.slice), -1)}
    frame = evaluate([model], **none, seed=0, resamples=60)
    assert frame.value.isna().all()
    assert set(frame[frame.level == SCAN].note) == {"no scan labels"}


def test_what_is_perfect_has_the_exact_interval_of_the_patients_behind_it(truth, model):
    perfect = Scores("perfect", truth["labels"] * 0.6 + 0.2, None)
    # each positive scan is of a patient of its own, negative ones share some
    patients = np.array([f"p{i}" if label else f"n{i // 8}" for i, label in enumerate(truth["labels"])])
    frame = evaluate([perfect], **{**truth, "patients": patients}, seed=0, resamples=60)
    positive, negative = (len(np.unique(patients[truth["labels"] == kind])) for kind in (1, 0))
    assert positive > negative  # and pairs of one of each are as many as the negative ones
    behind = {"sensitivity": positive, "specificity": negative, "f1": (positive + 1) // 2}
    behind |= {"auc": negative, "ap": negative}
    behind |= {"ppv": positive, "npv": negative}
    # the threshold rests on the other class
    behind |= {f"{kind}_at_{x}": negative for kind in ("sensitivity", "specificity") for x in (90, 95)}
    for metric, n in {**behind, "accuracy": positive + negative}.items():
        row = number(frame, "perfect", SCAN, metric)
        assert (row.value, row.high) == (1, 1)
        assert row.low == pytest.approx(0.025 ** (1 / n))  # (Clopper and Pearson 1934)
    balanced = number(frame, "perfect", SCAN, "balanced_accuracy")
    assert balanced.low == pytest.approx(
        1 - np.hypot(*(1 - 0.025 ** (1 / n) for n in (positive, negative))) / 2
    )
    slope = number(frame, "perfect", SCAN, "calibration_slope")
    assert np.isnan(slope.value)
    assert "one threshold tells the classes apart" in slope.note


# [0.5, 0.5]: every resample says so, of 4 positive scans
def test_nothing_called_positive_is_not_always_so():
    labels = np.repeat([0, 1], [16, 4])
    model = Scores("timid", np.linspace(0.1, 0.4, 20), None)
    patients = [f"p{i}" for i in range(20)]
    frame = evaluate(
        [model],
        labels=labels,
        patients=patients,
        offsets=np.arange(21),
        slice_labels=None,
        seed=0,
        resamples=50,
    )
    row = number(frame, "timid", SCAN, "balanced_accuracy")
    sensitivity, specificity = 1 - 0.025 ** (1 / 4), 0.025 ** (1 / 16)  # the ends of 0 of 4 and 16 of 16
    assert row.value == 0.5
    assert (row.low, row.high) == pytest.approx((0.5 - (1 - specificity) / 2, 0.5 + sensitivity / 2))


@pytest.mark.parametrize("absent", [None, float("nan")])
def test_scans_without_a_patient_are_not_taken_for_those_of_one(truth, model, absent):
    patients = [absent, *truth["patients"][1:-1], absent]
    with pytest.raises(DataError, match=r"2 of 40 are (None|nan), the first is number 0; give each scan"):
        evaluate([model], **{**truth, "patients": patients}, seed=0, resamples=10)
    numbered = evaluate([model], **{**truth, "patients": np.arange(40)}, seed=0, resamples=10)
    assert set(numbered[numbered.level == SCAN].patients) == {40}


def test_nan_scores_name_the_model(truth, model):
    broken = Scores("diverged", np.where(np.arange(40) == 3, np.nan, model.scan), None)
    with pytest.raises(DataError, match=r"model 'diverged', scan scores: 1 of 40 scores are NaN"):
        evaluate([model, broken], **truth, seed=0, resamples=10)
    broken = Scores("diverged", None, np.full_like(model.slice, np.nan))
    with pytest.raises(DataError, match=r"model 'diverged', slice scores"):
        evaluate([broken], **truth, seed=0, resamples=10)


def test_slice_scores_beyond_1_are_no_probabilities(truth, model):
    broken = Scores("odds", None, 2 + model.slice, slice_is_probability=True)
    with pytest.raises(DataError, match=r"model 'odds', slice scores: a probability must lie in"):
        evaluate([broken], **truth, seed=0, resamples=10)


def test_sizes_and_names_must_fit(truth, model):
    with pytest.raises(ValueError, match="own name"):
        evaluate([model, model], **truth, seed=0)
    with pytest.raises(ValueError, match="39 patients"):
        evaluate([model], **{**truth, "patients": truth["patients"][:39]}, seed=0)
    with pytest.raises(ValueError, match="slice labels"):
        evaluate([model], **{**truth, "slice_labels": np.zeros(3)}, seed=0)


def test_a_table_written_as_csv_comes_back_the_same(truth, model, tmp_path):
    frame = evaluate(
        [model, Scores("NA", None, None)], **{**truth, "slice_labels": None}, seed=0, resamples=60
    )
    frame.to_csv(tmp_path / "metrics.csv", index=False)
    again = read_table(tmp_path / "metrics.csv")
    pd.testing.assert_frame_equal(again, frame, check_dtype=False)
    with pytest.raises(DataError, match=r"nothing\.csv"):
        read_table(tmp_path / "nothing.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"\(column model, level, metric and 10 more is missing\); validate"):
        read_table(tmp_path / "other.csv")


def test_known_or_none():
    assert known_or_none(np.full(3, np.nan)) is None
    np.testing.assert_array_equal(known_or_none(np.array([np.nan, 1.0])), [np.nan, 1.0])


def test_the_interval_of_a_calibration_error_holds_it_and_reaches_a_true_0(truth, model):
    constant = Scores("prevalence", np.full(40, truth["labels"].mean()), None)
    frame = evaluate([model, constant], **truth, seed=0, resamples=200)
    errors = frame[(frame.metric == "ece") & frame.value.notna()]
    assert len(errors) == 3
    assert (errors.low <= errors.value).all()
    assert (errors.value <= errors.high).all()
    right = number(frame, "prevalence", SCAN, "ece")  # resamples of another prevalence alone lie above 0
    assert (right.value, right.low) == (0, 0)
    own = number(frame, "GP", SCAN, "ece")
    counted = patient_bootstrap(
        lambda c: {"ece": resampled_ece(truth["labels"], model.scan, c)},
        truth["patients"],
        resamples=200,
        seed=0,
    )["ece"]
    assert own.low == pytest.approx(max(0, 2 * own.value - counted.high))


def test_slices_ranked_without_an_error_have_the_interval_of_pairs_of_patients(truth, model):
    perfect = Scores("perfect", None, truth["slice_labels"] * 0.6 + 0.2, slice_is_probability=True)
    frame = evaluate([perfect], **truth, seed=0, resamples=60)
    scans = np.split(truth["slice_labels"], truth["offsets"][1:-1])
    n = len(set(truth["patients"]))
    mixed = {p for p, scan in zip(truth["patients"], scans, strict=True) if len(set(scan)) == 2}
    assert len(mixed) > n // 2  # slices of both kinds are of the same patients: fewer pairs than patients
    for level, behind in ((SLICE, n // 2), (INSIDE, len(mixed))):
        row = number(frame, "perfect", level, "auc")
        assert (row.value, row.high) == (1, 1)
        assert row.low == pytest.approx(0.025 ** (1 / behind))

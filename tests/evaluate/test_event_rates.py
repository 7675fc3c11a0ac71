"""Event rates in bins: against counts by hand, and intervals that rest on patients."""

import numpy as np
import pandas as pd
import pytest

from ich_mil.errors import DataError
from ich_mil.evaluate.event_rates import calibration_table, event_rates
from ich_mil.evaluate.metrics import scan_metrics

ENDS = ["low", "high"]


def alone(n):
    return np.array([f"P{i}" for i in range(n)])


def rates(value, event, patients=None, *, bins=10):
    patients = alone(len(value)) if patients is None else np.array([*patients])
    return event_rates(np.asarray(value), np.asarray(event), patients, bins=bins, seed=0, resamples=2000)


def test_bins_by_hand_keep_ties_together():
    frame = rates([1, 2, 3, 4, 6, 6, 6, 6], [0, 0, 0, 1, 1, 0, 1, 1], bins=2)
    assert frame[["bin", "n", "patients", "events"]].to_numpy().tolist() == [[0, 4, 4, 1], [1, 4, 4, 3]]
    np.testing.assert_allclose(frame[["value", "rate"]], [[2.5, 0.25], [6, 0.75]])
    assert rates(np.repeat([0.1, 0.2], [35, 15]), np.arange(50) % 2).n.tolist() == [35, 15]


def test_a_rate_of_0_or_1_has_the_exact_interval_of_its_patients():
    frame = rates(np.arange(12), np.repeat([0, 1], 6), "abcdefgghhii", bins=2)
    np.testing.assert_allclose(frame[ENDS], [[0, 1 - 0.025 ** (1 / 6)], [0.025 ** (1 / 3), 1]])


def test_scans_of_one_patient_do_not_narrow_an_interval():
    generator = np.random.default_rng(1)
    p = generator.random(40)
    labels = (generator.random(40) < p).astype(int)
    once = calibration_table(labels, p, alone(40), seed=0)
    thrice = calibration_table(*(np.repeat(one, 3) for one in (labels, p, alone(40))), seed=0)
    assert thrice.n.tolist() == (3 * once.n).tolist()
    pd.testing.assert_frame_equal(thrice[["patients", "share", *ENDS]], once[["patients", "share", *ENDS]])
    apart = calibration_table(np.repeat(labels, 3), np.repeat(p, 3), alone(120), seed=0)
    assert ((apart.high - apart.low) < (once.high - once.low)).all()
    assert (
        calibration_table(np.array([0, 1]), np.array([0.4, 0.4]), ["a", "a"], seed=0)[ENDS]
        .isna()
        .all(axis=None)
    )


def test_the_interval_of_a_rate_is_about_that_of_a_binomial():
    (row,) = rates(np.zeros(400), np.arange(400) % 10 < 3).itertuples()
    half = 1.966 * np.sqrt(400 / 399) / np.sqrt(400 * 0.3 * 0.7)  # t of 399, of the log odds
    odds = 3 / 7 * np.exp([-half, half])
    np.testing.assert_allclose([row.low, row.high], odds / (1 + odds), atol=0.003)  # 2000 resamples


def test_calibration_bins_are_those_of_the_calibration_error_without_unlabelled_scans():
    generator = np.random.default_rng(2)
    p = generator.random(53)
    labels = np.where(np.arange(53) % 7, generator.random(53) < p**2, -1)
    frame = calibration_table(labels, p, alone(53), seed=0, resamples=10)
    assert (frame.n.sum(), frame.positives.sum()) == ((labels >= 0).sum(), (labels == 1).sum())
    error = (frame.n * (frame.probability - frame.share).abs()).sum() / frame.n.sum()
    assert error == pytest.approx(scan_metrics(labels, p)["ece"], rel=1e-12)
    known = labels >= 0
    without = calibration_table(labels[known], p[known], alone(53)[known], seed=0, resamples=10)
    pd.testing.assert_frame_equal(frame, without)


def test_what_cannot_be_binned_says_why():
    with pytest.raises(ValueError, match="1 patients for 2 scans"):
        calibration_table(np.array([0, 1]), np.array([0.1, 0.2]), ["a"], seed=0)
    with pytest.raises(DataError, match="none of the 2 labels is known"):
        calibration_table(np.array([-1, -1]), np.array([0.1, 0.2]), ["a", "b"], seed=0)
    with pytest.raises(DataError, match="patients: 1 of 2 are None"):
        calibration_table(np.array([0, 1]), np.array([0.1, 0.2]), ["a", None], seed=0)

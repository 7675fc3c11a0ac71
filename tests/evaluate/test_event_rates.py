"""Shares in bins: against counts by hand, and intervals that rest on patients."""

import numpy as np
import pandas as pd
import pytest

from ich_mil.errors import DataError
from ich_mil.evaluate.event_rates import calibration_table, error_by_decile
from ich_mil.evaluate.metrics import scan_metrics

ENDS = ["low", "high"]


def alone(n):
    return [f"P{i}" for i in range(n)]


def test_error_by_decile_by_hand():
    wrong = np.array([0, 0, 0, 1, 1, 0, 1, 1])
    frame = error_by_decile(wrong, np.array([1, 2, 3, 4, 6, 6, 6, 6]) / 10, alone(8), bins=2, seed=0)
    assert frame[["bin", "n", "patients", "wrong"]].to_numpy().tolist() == [[0, 4, 4, 1], [1, 4, 4, 3]]
    np.testing.assert_allclose(frame.uncertainty, [0.25, 0.6])
    np.testing.assert_allclose(frame.error_rate, [0.25, 0.75])


def test_equal_uncertainties_stay_in_one_bin():
    frame = error_by_decile(np.arange(50) % 2 == 0, np.repeat([0.1, 0.2], [35, 15]), alone(50), seed=0)
    assert frame.n.tolist() == [35, 15]
    ranked = error_by_decile(np.arange(100) < 10, np.arange(100), alone(100), seed=0)
    assert ranked.error_rate.tolist() == [1] + [0] * 9


def test_a_share_of_all_or_none_has_the_exact_interval_of_its_patients():
    frame = error_by_decile(
        np.repeat([0, 1], 6), np.arange(12), ["a", "b", "c", "d", "e", "f", *"gghhii"], bins=2, seed=0
    )
    np.testing.assert_allclose(frame[ENDS], [[0, 1 - 0.025 ** (1 / 6)], [0.025 ** (1 / 3), 1]])


def test_scans_of_one_patient_do_not_narrow_an_interval():
    generator = np.random.default_rng(1)
    p = generator.random(40)
    labels = (generator.random(40) < p).astype(int)
    once = calibration_table(labels, p, alone(40), seed=0)
    thrice = calibration_table(*(np.repeat(one, 3) for one in (labels, p, np.array(alone(40)))), seed=0)
    assert thrice.n.tolist() == (3 * once.n).tolist()
    pd.testing.assert_frame_equal(thrice[["patients", "share", *ENDS]], once[["patients", "share", *ENDS]])
    apart = calibration_table(np.repeat(labels, 3), np.repeat(p, 3), alone(120), seed=0)
    assert ((apart.high - apart.low) < (once.high - once.low)).all()


def test_the_interval_of_a_share_is_about_that_of_a_binomial():
    wrong = np.arange(400) % 10 < 3
    (row,) = error_by_decile(wrong, np.zeros(400), alone(400), seed=0).itertuples()
    half = 1.966 * np.sqrt(400 / 399) / np.sqrt(400 * 0.3 * 0.7)  # t of 399, of the log odds
    odds = 3 / 7 * np.exp([-half, half])
    np.testing.assert_allclose([row.low, row.high], odds / (1 + odds), atol=0.003)  # 2000 resamples


def test_bins_are_those_of_the_calibration_error():
    generator = np.random.default_rng(2)
    p = generator.random(53)
    labels = np.where(np.arange(53) % 7, generator.random(53) < p**2, -1)
    frame = calibration_table(labels, p, alone(53), seed=0, resamples=10)
    assert frame.n.sum() == (labels >= 0).sum()
    error = (frame.n * (frame.probability - frame.share).abs()).sum() / frame.n.sum()
    assert error == pytest.approx(scan_metrics(labels, p)["ece"], rel=1e-12)
    assert frame.positives.sum() == (labels == 1).sum()


def test_unlabelled_scans_and_their_patients_take_no_part():
    labels, p = np.array([0, 1, -1, 1]), np.array([0.1, 0.8, 0.5, 0.9])
    known = labels >= 0
    with_them = calibration_table(labels, p, np.array(list("abcd")), seed=3)
    without = calibration_table(labels[known], p[known], np.array(list("abd")), seed=3)
    pd.testing.assert_frame_equal(with_them, without)


def test_one_patient_has_no_interval():
    frame = calibration_table(np.array([0, 1]), np.array([0.4, 0.4]), ["a", "a"], seed=0)
    assert frame.share.tolist() == [0.5]
    assert frame[ENDS].isna().all(axis=None)


def test_what_cannot_be_binned_says_why():
    with pytest.raises(ValueError, match="true or false"):
        error_by_decile(np.array([0.5, 1]), np.array([0.1, 0.2]), ["a", "b"], seed=0)
    with pytest.raises(ValueError, match="1 patients for 2 scans"):
        error_by_decile(np.array([0, 1]), np.array([0.1, 0.2]), ["a"], seed=0)
    with pytest.raises(ValueError, match="1 patients for 2 scans"):
        calibration_table(np.array([0, 1]), np.array([0.1, 0.2]), ["a"], seed=0)
    with pytest.raises(DataError, match="none of the 2 labels is known"):
        calibration_table(np.array([-1, -1]), np.array([0.1, 0.2]), ["a", "b"], seed=0)
    with pytest.raises(DataError, match="patients: 1 of 2 are None"):
        error_by_decile(np.array([0, 1]), np.array([0.1, 0.2]), ["a", None], seed=0)

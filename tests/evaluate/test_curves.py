"""Curves and event rates: values by scikit-learn and by hand, intervals by patient."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import auc, average_precision_score, roc_auc_score

from ich_mil.evaluate.curves import (
    calibration_table,
    event_rates,
    precision_recall,
    risk_coverage,
    roc,
    scan_curves,
)
from ich_mil.evaluate.metrics import scan_metrics

HOW = {"seed": 0, "resamples": 200}


@pytest.fixture
def scans():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    score = np.clip(0.3 * labels + 0.7 * rng.random(400), 0, 1).round(2)  # with ties
    return labels, score, [str(i // 2) for i in range(400)]


def at(frame, x):
    return frame.y[np.abs(frame.x - x).argmin()]


def test_areas_equal_scikit_learn(scans):
    labels, score, patients = scans
    found = scan_curves(labels, score, patients, **HOW)
    assert auc(found["roc"].x, found["roc"].y) == pytest.approx(roc_auc_score(labels, score), abs=0.003)
    of_steps = found["precision_recall"].y[1:].mean()
    assert of_steps == pytest.approx(average_precision_score(labels, score), abs=0.01)


def test_curves_by_hand():
    labels, score = np.array([1, 0, 1, 0]), np.array([0.9, 0.7, 0.6, 0.2])
    found = scan_curves(labels, score, list("abcd"), **HOW)
    assert [at(found["roc"], x) for x in (0, 0.5, 1)] == [0.5, 1, 1]
    assert [at(found["precision_recall"], x) for x in (0.5, 0.51, 1)] == pytest.approx([1, 2 / 3, 2 / 3])
    # the most certain scans: 0.9 (right), 0.2 (right), 0.7 (wrong), 0.6 (right)
    assert [at(found["risk_coverage"], x) for x in (0.5, 0.75, 1)] == pytest.approx([0, 1 / 3, 1 / 4])
    # at 0.65: one true and one false positive of four scans
    assert at(found["net_benefit"], 0.65) == pytest.approx(1 / 4 - 1 / 4 * 0.65 / 0.35)
    assert np.isnan(at(found["net_benefit"], 1))


def test_counts_are_repeated_scans(scans):
    labels, score, _ = scans
    counts = np.random.default_rng(1).integers(0, 3, 400)
    rows = np.repeat(np.arange(400), counts)
    for curve in (roc, precision_recall, risk_coverage):
        got = curve(labels, score)(counts[:, None].astype(float))
        wanted = curve(labels[rows], score[rows])(np.ones((len(rows), 1)))
        np.testing.assert_allclose(got, wanted, rtol=1e-9)


def test_unlabelled_scans_and_one_class(scans):
    labels, score, patients = scans
    known = np.arange(400) < 300
    part = scan_curves(labels[:300], score[:300], patients[:300], **HOW)
    for name, frame in scan_curves(np.where(known, labels, -1), score, patients, **HOW).items():
        np.testing.assert_array_equal(frame, part[name])
    assert set(scan_curves(np.ones(400, int), score, patients, **HOW)) == {"risk_coverage"}


def test_ordinates_of_0_and_1_have_exact_intervals():
    labels = np.repeat([0, 1], 20)
    found = scan_curves(labels, labels * 0.8 + 0.1, [str(i) for i in range(40)], **HOW)
    exact = 0.025 ** (1 / 20)  # 20 of 20 (Clopper-Pearson)
    assert at(found["roc"].assign(y=found["roc"].low), 0.5) == pytest.approx(exact)
    risk = found["risk_coverage"].assign(y=found["risk_coverage"].high)
    assert at(risk, 0.5) == pytest.approx(1 - exact)
    assert at(risk, 1) == pytest.approx(1 - 0.025 ** (1 / 40))


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


def test_calibration_table_agrees_with_the_calibration_error():
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

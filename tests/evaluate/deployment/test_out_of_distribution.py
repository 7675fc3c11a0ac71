"""Scans unlike the training scans: distances by hand, false alarms on scans that are like them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from ich_mil.errors import ModelError
from ich_mil.evaluate.deployment.out_of_distribution import FALSE_ALARMS, LIKENESS, Likeness
from ich_mil.sets.features import bare_features


def scans(n, *, seed, size=5, shift=0.0):
    """Scans of `size` slices of four correlated features; the scan has its own mean."""
    rng = np.random.default_rng(seed)
    mix = np.array([[2.0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0.1, 0], [0, 0, 0, 1]])
    x = (rng.normal(size=(n, 1, 4)) + 0.5 * rng.normal(size=(n, size, 4)) + shift) @ mix.T
    names = [f"s{seed}-{b}" for b in range(n)]
    labels = np.arange(n) % 2
    slices = [f"{name}-{i}" for name in names for i in range(size)]
    features = bare_features(np.zeros((n * size, 1)), np.full(n, size), names, labels, slices)
    return replace(features, texture=torch.tensor(x.reshape(-1, 4)))


def test_scores_are_mean_distances_of_slices():
    precision = np.array([[2.0, 0.0], [0.0, 0.5]])
    like = Likeness(np.array([1.0, 0.0]), precision, 1.0, 0.0)
    x = np.array([[2.0, 2.0], [1.0, 0.0], [1.0, 4.0]])
    features = bare_features(x, np.array([2, 1]), ["a", "b"], np.array([0, 1]), ["0", "1", "2"])
    features = replace(features, texture=torch.tensor(x))
    np.testing.assert_allclose(like.scores(features), [(2 + 2) / 2, 8.0])


def test_false_alarm_and_detection_rates():
    like = Likeness.fit(scans(200, seed=0), seed=0)
    assert like.false_alarms <= FALSE_ALARMS
    rate = float((like.scores(scans(3000, seed=1)) > like.threshold).mean())
    # 200 scans tell a quantile of 2 % to about 1 %
    assert rate < FALSE_ALARMS + 0.02
    assert (like.scores(scans(50, seed=2, shift=6.0)) > like.threshold).mean() > 0.95


def test_few_scans_promise_what_they_can():
    assert Likeness.fit(scans(12, seed=0), seed=0).false_alarms == pytest.approx(1 / 13)


def test_single_slices_set_no_threshold_beside_scans():
    whole = scans(30, seed=0)
    whole = replace(whole, slice_labels=whole.labels.repeat_interleave(5))
    mixed = whole.as_slices(whole.scans[20:])
    like = Likeness.fit(mixed, seed=0)
    assert like.false_alarms == pytest.approx(1 / 21)


def test_scans_of_one_patient_give_none():
    one = scans(8, seed=0)
    assert Likeness.fit(replace(one, patients=["p"] * 8), seed=0) is None


def test_saved_likeness_reloads_and_damage_is_named(tmp_path):
    assert Likeness.load(tmp_path) is None
    like, new = Likeness.fit(scans(20, seed=0), seed=0), scans(5, seed=3)
    like.save(tmp_path)
    found = Likeness.load(tmp_path)
    np.testing.assert_array_equal(found.scores(new), like.scores(new))
    assert (found.threshold, found.false_alarms) == (like.threshold, like.false_alarms)
    arrays = {"mean": like.mean, "precision": like.precision}
    about = {"format": "ich_mil.likeness.1", "threshold": "1", "false_alarms": "0"}
    save_file(arrays, tmp_path / LIKENESS, metadata=about)
    with pytest.raises(ModelError, match="another version"):
        Likeness.load(tmp_path)
    (tmp_path / LIKENESS).write_text("{}")
    with pytest.raises(ModelError, match=LIKENESS):
        Likeness.load(tmp_path)

"""Scans unlike the training scans: distances by hand, false alarms on scans that are like them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from ich_mil.errors import ModelError
from ich_mil.evaluate.deployment.out_of_distribution import FALSE_ALARMS, LIKENESS, Likeness
from ich_mil.sets.features import bare_features, join_features


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


def fitted(features, sources=None):
    return Likeness.fit(features, sources=sources or ["one"] * features.n_scans, seed=0)


def test_scores_by_hand():
    precision = np.array([[2.0, 0.0], [0.0, 0.5]])
    like = Likeness(np.array([1.0, 0.0]), precision, 0.25, 1.0, 0.0)
    x = np.array([[2.0, 2.0], [3.0, 0.0], [1.0, 4.0]])
    features = bare_features(x, np.array([2, 1]), ["a", "b"], np.array([0, 1]), ["0", "1", "2"])
    features = replace(features, texture=torch.tensor(x))
    # means (2.5, 1) and (1, 4); T = 2; 0.25 + 0.75 / n of two slices and of one
    np.testing.assert_allclose(like.scores(features), [(2 * 1.5**2 + 0.5) / (2 * 0.625), 0.5 * 16 / 2])


@pytest.mark.parametrize("size", [1, 5, 40])
def test_mean_score_is_1_for_any_number_of_slices(size):
    like = fitted(scans(400, seed=0))
    assert like.correlation == pytest.approx(0.8, abs=0.03)  # variances 1 between scans, 0.25 within
    assert like.scores(scans(4000, seed=1, size=size)).mean() == pytest.approx(1, abs=0.08)


def test_false_alarm_and_detection_rates():
    like = fitted(scans(200, seed=0))
    assert like.false_alarms <= FALSE_ALARMS
    rate = float((like.scores(scans(3000, seed=1)) > like.threshold).mean())
    # 200 scans tell a quantile of 2 % to about 1 %
    assert rate < FALSE_ALARMS + 0.02
    assert (like.scores(scans(50, seed=2, shift=6.0)) > like.threshold).mean() > 0.95


def test_spread_between_sources_raises_the_threshold():
    parts = [scans(40, seed=seed, shift=shift) for seed, shift in enumerate((-1.0, 0.0, 1.0))]
    features, names = join_features(parts), ["a"] * 40 + ["b"] * 40 + ["c"] * 40
    alone, apart = fitted(features), fitted(features, names)
    assert apart.threshold > 1.5 * alone.threshold
    another = scans(2000, seed=9, shift=1.5)
    rates = [float((like.scores(another) > like.threshold).mean()) for like in (alone, apart)]
    assert rates[0] > 0.15
    assert rates[1] < 0.05


def test_few_scans_promise_what_they_can():
    assert fitted(scans(12, seed=0)).false_alarms == pytest.approx(1 / 13)


def test_single_slices_set_no_threshold_beside_scans():
    whole = scans(30, seed=0)
    whole = replace(whole, slice_labels=whole.labels.repeat_interleave(5))
    mixed = whole.as_slices(whole.scans[20:])
    assert fitted(mixed).false_alarms == pytest.approx(1 / 21)


def test_scans_of_one_patient_or_of_single_slices_give_none():
    few = scans(8, seed=0)
    assert fitted(replace(few, patients=["p"] * 8)) is None
    assert fitted(scans(8, seed=0, size=1)) is None


def test_saved_likeness_reloads_and_damage_is_named(tmp_path):
    assert Likeness.load(tmp_path) is None
    like, new = fitted(scans(20, seed=0)), scans(5, seed=3)
    like.save(tmp_path)
    found = Likeness.load(tmp_path)
    np.testing.assert_array_equal(found.scores(new), like.scores(new))
    for name in ("correlation", "threshold", "false_alarms"):
        assert getattr(found, name) == getattr(like, name)
    arrays = {"mean": like.mean, "precision": like.precision}
    about = {"format": "ich_mil.likeness.2", "threshold": "1", "false_alarms": "0"}
    save_file(arrays, tmp_path / LIKENESS, metadata=about)
    with pytest.raises(ModelError, match="another version"):
        Likeness.load(tmp_path)
    (tmp_path / LIKENESS).write_text("{}")
    with pytest.raises(ModelError, match=LIKENESS):
        Likeness.load(tmp_path)

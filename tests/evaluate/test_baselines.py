import numpy as np
import pytest

from ich_mil.errors import DataError
from ich_mil.evaluate.baselines import position_scan, position_score, slice_prevalence
from ich_mil.evaluate.metrics import scan_metrics


def test_position_score_by_hand():
    score = position_score(np.array([0.5, 0.3, 0.7, 0.1, np.nan], dtype=np.float32))
    np.testing.assert_allclose(score[:4], np.exp([0, -0.5, -0.5, -2]), rtol=1e-6)  # float32 positions
    assert np.isnan(score[4])


def test_position_scan_is_the_known_training_prevalence_and_ranks_nothing():
    probability = position_scan(np.array([0, 1, 1, 1, -1, -1]), 4)
    np.testing.assert_array_equal(probability, [0.75] * 4)
    assert scan_metrics(np.array([0, 1, 0, 1]), probability)["auc"] == 0.5


def test_no_known_training_label():
    with pytest.raises(DataError, match="no training scan has a label"):
        position_scan(np.array([-1]), 3)


def test_slice_prevalence_is_that_of_the_labelled_slices():
    np.testing.assert_array_equal(slice_prevalence(np.array([0, 1, 0, 0, -1])), [0.25] * 5)
    assert slice_prevalence(np.array([-1, -1])) is None

import numpy as np
import pytest
from scipy.stats import spearmanr

from ich_mil.errors import DataError
from ich_mil.evaluate.uncertainty import risk_coverage
from ich_mil.reproduce.statistics.joint import joint_against_independent


def test_table_by_hand():
    joint = np.array([0.1, 0.3, 0.2, 0.2])
    independent = np.array([0.1, 0.1, 0.4, 0.6])
    slices, loss = np.array([20, 30, 300, 400]), np.array([0, 1, 1, 0])
    frame = joint_against_independent(joint, independent, slices, loss, bins=2)
    assert frame.scans.tolist() == ["all", "by slices", "by slices"]
    assert frame.n.tolist() == [4, 2, 2]
    assert frame.slices_low.tolist() == [20, 20, 300]
    assert frame.slices_high.tolist() == [400, 30, 400]
    np.testing.assert_allclose(frame.joint, [0.2, 0.2, 0.2])
    np.testing.assert_allclose(frame.independent, [0.3, 0.1, 0.5])
    np.testing.assert_allclose(frame.ratio, [1.5, 0.5, 2.5])
    assert frame.aurc_joint[0] == pytest.approx(risk_coverage(loss, joint).aurc)
    assert frame.aurc_independent[0] == pytest.approx(risk_coverage(loss, independent).aurc)
    assert frame.correlation_joint[0] == pytest.approx(spearmanr(joint, loss).statistic)
    assert frame.correlation_independent[0] == pytest.approx(spearmanr(independent, loss).statistic)


def test_no_correlation_of_equal_values_is_told():
    frame = joint_against_independent(
        np.array([0.1, 0.2]), np.array([0.2, 0.2]), np.array([9, 9]), np.array([0, 1])
    )
    assert frame.n.tolist() == [2, 2]  # equal numbers of slices stay together
    assert frame.correlation_joint[0] == pytest.approx(1)
    assert np.isnan(frame.correlation_independent[0])
    assert frame.note[0] == "no correlation: all values are equal"
    frame = joint_against_independent(
        np.array([0.1, 0.2]), np.array([0.2, 0.3]), np.array([9, 9]), np.array([1, 1])
    )
    assert np.isnan(frame.correlation_joint[0])


def test_deviations_of_nothing_are_refused():
    with pytest.raises(DataError, match="above 0, got 0"):
        joint_against_independent(np.array([0.0, 0.1]), np.ones(2), np.ones(2), np.array([0, 1]))
    with pytest.raises(DataError, match=r"above 0, got -0\.1"):
        joint_against_independent(np.ones(2), np.array([-0.1, 0.1]), np.ones(2), np.array([0, 1]))

import numpy as np
import pytest
import torch

from ich_mil.errors import ModelError
from ich_mil.evaluate.baselines import CnnSigmoid, position_score, slice_prevalence
from ich_mil.gp.calibration import platt


def test_position_score_by_hand():
    score = position_score(np.array([0.5, 0.3, 0.7, 0.1, np.nan], dtype=np.float32))
    np.testing.assert_allclose(score[:4], np.exp([0, -0.5, -0.5, -2]), rtol=1e-6)  # float32 positions
    assert np.isnan(score[4])


def test_slice_prevalence_is_that_of_the_labelled_slices():
    np.testing.assert_array_equal(slice_prevalence(np.array([0, 1, 0, 0, -1])), [0.25] * 5)
    assert slice_prevalence(np.array([-1, -1])) is None


def test_the_cnn_sigmoid_is_platts_and_reloads(tmp_path):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 2
    p = torch.sigmoid(labels + torch.randn(40, generator=generator))
    p[3] = torch.nan  # the CNN said nothing of it
    known = ~p.isnan()
    sigmoid = CnnSigmoid.fit(p, labels)
    slope, intercept, _ = platt(torch.logit(p[known].double()), labels[known])
    assert (sigmoid.slope, sigmoid.intercept) == (slope, intercept)
    told = sigmoid(torch.tensor([0.2, torch.nan]))
    assert told[0].item() == pytest.approx(1 / (1 + np.exp(-slope * np.log(0.25) - intercept)), rel=1e-6)
    assert told[1].isnan()
    sigmoid.save(tmp_path / "s.json")
    assert CnnSigmoid.load(tmp_path / "s.json") == sigmoid


def test_unusable_cnn_outputs_have_no_sigmoid():
    labels = torch.tensor([0, 1, 1])
    assert CnnSigmoid.fit(torch.tensor([0.4, 0.7, 0.6]), labels).slope > 0
    assert CnnSigmoid.fit(torch.tensor([0.6, 0.3, 0.4]), labels) is None
    assert CnnSigmoid.fit(torch.full((3,), torch.nan), labels) is None
    assert CnnSigmoid.fit(torch.tensor([torch.nan, 0.2, 0.7]), labels) is None
    assert CnnSigmoid(1.0, 0.0).at_site(torch.full((3,), torch.nan), labels) is None
    assert CnnSigmoid(1.0, 0.0).at_site(torch.tensor([torch.nan, 0.2, 0.7]), labels) is None


def test_at_a_site_the_intercept_alone_is_fitted():
    # two scans told 0.3, whose targets are 2/3 and 1/3: the new probability is a half
    found = CnnSigmoid(2.0, 5.0).at_site(torch.tensor([0.3, 0.3, torch.nan]), torch.tensor([0, 1, 1]))
    assert found.slope == 2.0
    assert found.intercept == pytest.approx(-2 * np.log(0.3 / 0.7), rel=1e-6)  # float32 probabilities


@pytest.mark.parametrize("text", ["", '{"slope": NaN, "intercept": 0}'])
def test_a_damaged_file_of_a_sigmoid(tmp_path, text):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(ModelError, match=r"s\.json: cannot be read \(.*\); train again"):
        CnnSigmoid.load(tmp_path / "s.json")

import numpy as np
import pytest
from scipy.special import expit, logit

from ich_mil.errors import ConfigError, DataError
from ich_mil.radiology_text.fdr import Recalibration, estimated_fdr, select

P = np.array([1.0, 0.9, 0.7, 0.7, 0.2])
NONE = np.zeros(5, dtype=bool)
FIRST = np.arange(5) == 0


def test_the_rate_by_hand():
    np.testing.assert_allclose(estimated_fdr(P, NONE), [0, 0.05, 0.175, 0.175, 0.3], rtol=1e-12)


def test_known_words_never_count():
    np.testing.assert_allclose(estimated_fdr(P, FIRST), [0, 0.1, 0.7 / 3, 0.7 / 3, 1.5 / 4], rtol=1e-12)
    np.testing.assert_allclose(estimated_fdr(P, FIRST, count_known=True), estimated_fdr(P, NONE), rtol=1e-12)


def test_known_words_are_always_selected():
    unlikely = np.array([0.1, 0.9, 0.7, 0.7, 0.2])
    assert select(unlikely, FIRST, gamma=0.0).tolist() == [True, False, False, False, False]
    assert select(unlikely, FIRST, gamma=0.1).tolist() == [True, True, False, False, False]


def test_the_largest_set_is_selected():
    for gamma in (0.0, 0.04, 0.05, 0.17, 0.18, 0.29, 0.3, 1.0):
        chosen = select(P, NONE, gamma=gamma)
        sizes = [k for k in range(1, 6) if (1 - P[:k]).mean() <= gamma + 1e-12]
        # words of one probability enter together
        assert chosen.sum() == max((k for k in sizes if k != 3), default=0)


def test_honest_probabilities_give_an_honest_rate():
    rng = np.random.default_rng(0)
    p = rng.beta(1, 2, 200_000)
    truth = rng.random(len(p)) < p
    nobody = np.zeros(len(p), dtype=bool)
    for gamma in (0.1, 0.3):
        chosen = select(p, nobody, gamma=gamma)
        assert (~truth[chosen]).mean() == pytest.approx(gamma, abs=0.01)


def test_recalibration_undoes_a_distortion():
    rng = np.random.default_rng(1)
    p = rng.random(50_000)
    truth = rng.random(len(p)) < p
    distorted = expit(2 * logit(p) - 1)
    fitted = Recalibration.fit(distorted, truth)
    assert (fitted.offset, fitted.slope) == pytest.approx((0.5, 0.5), abs=0.02)
    np.testing.assert_allclose(fitted(distorted), p, atol=0.01)


def test_hidden_keywords_recalibrate_without_labels():
    """f1 and f0 are known, so the probability among the others is too."""
    rng = np.random.default_rng(2)
    keyword = rng.random(40_000) < 0.3
    score = np.where(keyword, rng.beta(3, 2, len(keyword)), rng.beta(2, 3, len(keyword)))
    hidden = keyword & (rng.random(len(keyword)) < 0.25)
    left = keyword & ~hidden
    found = Recalibration.fit_hidden(score, hidden, keywords=left.sum())(score[~hidden])
    f1, f0 = score**2 * (1 - score), score * (1 - score) ** 2
    share = left.sum() / (~hidden).sum()
    exact = (share * f1 / (share * f1 + (1 - share) * f0))[~hidden]
    assert np.abs(found - exact).mean() < 0.03


def test_levels_and_recalibrations_out_of_range():
    with pytest.raises(ConfigError, match="gamma"):
        select(P, NONE, gamma=1.5)
    with pytest.raises(DataError):
        Recalibration.fit(P, np.ones(5, dtype=bool))
    with pytest.raises(DataError):
        Recalibration.fit_hidden(P, NONE, keywords=2)
    with pytest.raises(ConfigError, match="keywords"):
        Recalibration.fit_hidden(P, FIRST, keywords=9)

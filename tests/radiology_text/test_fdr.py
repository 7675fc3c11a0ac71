import numpy as np
import pytest

from ich_mil.errors import ConfigError
from ich_mil.radiology_text.fdr import estimated_fdr, select

P = np.array([1.0, 0.9, 0.7, 0.7, 0.2])
NONE = np.zeros(5, dtype=bool)
FIRST = np.arange(5) == 0


def test_the_rate_by_hand():
    np.testing.assert_allclose(estimated_fdr(P, NONE), [0, 0.05, 0.175, 0.175, 0.3], rtol=1e-12)


def test_known_words_never_count():
    np.testing.assert_allclose(estimated_fdr(P, FIRST), [0, 0.1, 0.7 / 3, 0.7 / 3, 1.5 / 4], rtol=1e-12)
    np.testing.assert_allclose(estimated_fdr(P, FIRST, count_known=True), estimated_fdr(P, NONE), rtol=1e-12)


def test_the_largest_set_is_selected():
    for gamma in (0.0, 0.04, 0.05, 0.17, 0.18, 0.29, 0.3, 1.0):
        chosen = select(estimated_fdr(P, NONE), gamma=gamma)
        sizes = [k for k in range(1, 6) if (1 - P[:k]).mean() <= gamma + 1e-12]
        # words of one probability enter together
        assert chosen.sum() == max((k for k in sizes if k != 3), default=0)


def test_honest_probabilities_give_an_honest_rate():
    rng = np.random.default_rng(0)
    p = rng.beta(1, 2, 200_000)
    truth = rng.random(len(p)) < p
    nobody = np.zeros(len(p), dtype=bool)
    for gamma in (0.1, 0.3):
        chosen = select(estimated_fdr(p, nobody), gamma=gamma)
        assert (~truth[chosen]).mean() == pytest.approx(gamma, abs=0.01)


def test_level_out_of_range():
    with pytest.raises(ConfigError, match="gamma"):
        select(P, gamma=1.5)

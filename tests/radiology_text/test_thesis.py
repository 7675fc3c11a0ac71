import numpy as np
import pytest
from scipy.special import ndtr

from ich_mil.radiology_text import thesis
from ich_mil.radiology_text.fdr import estimated_fdr, select
from ich_mil.radiology_text.graph import build_graph
from ich_mil.radiology_text.thesis import published_vbss
from research.benchmarks.keywords.documents import GAMMAS, PUBLISHED, load, measures
from tests.radiology_text.graphs import first_known, random_walk_matrix


def test_first_sweep_by_hand(monkeypatch):
    """Two linked words, one known: all moments of one sweep from the printed formulas."""
    monkeypatch.setattr(thesis, "MAX_SWEEPS", 1)
    Q = random_walk_matrix(2, density=0.0)
    np.testing.assert_allclose(Q.toarray(), [[0, 1], [1, 0]], rtol=1e-12)
    theta0 = np.array([1.0, 0.85]) / (1 - 0.85**2)
    U = (1 + 0.85**2) / (1 - 0.85**2) ** 2
    density, above = np.exp(-(theta0**2) / 2) / np.sqrt(2 * np.pi), ndtr(theta0)
    z = np.array(
        [
            theta0[0] + density[0] / above[0],
            theta0[1] - 0.3 * density[1] / (1 - 0.3 * above[1]),
        ]
    )
    S = 1 / (1 + 1 / U)
    mu = S * (z + theta0 / U)
    a = (z.sum() - mu.sum()) / 2.1
    b = (mu @ z - a * mu.sum()) / (mu @ mu + 2 * S + 0.1)
    p = published_vbss(Q, first_known(2, 1))
    np.testing.assert_allclose(p, [1.0, ndtr(a + b * mu[1])], rtol=1e-12)


def test_slope_vanishes_and_order_is_that_of_ss():
    Q, known = random_walk_matrix(40), first_known(40)
    p = published_vbss(Q, known)[~known]
    theta0 = np.linalg.solve(np.eye(40) - 0.85 * Q.toarray(), known.astype(float))[~known]
    assert np.ptp(p) < 1e-6
    # differences are near the rounding of p itself
    assert np.corrcoef(np.argsort(np.argsort(p)), np.argsort(np.argsort(theta0)))[0, 1] > 0.99


@pytest.mark.realdata
def test_published_table_of_inspec(shared_data):
    """Table 1.2 (appendix), on an eighth of its documents."""
    documents = load("Inspec", part=0, every=4, folder=shared_data / "text")
    fdr = []
    for d in documents:
        Q = build_graph([d.text], window=2).normalised()
        fdr.append(estimated_fdr(published_vbss(Q, d.known), d.known, count_known=True))
    for gamma, published in zip(GAMMAS, PUBLISHED["Inspec"], strict=True):
        chosen = [select(rate, gamma=gamma) for rate in fdr]
        assert measures(chosen, documents, new=False)[:2] == pytest.approx(published, abs=0.05)

"""The head on the paper's own features: RSNA scans to CQ500 scans, and the bound on real slices."""

from itertools import pairwise

import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from ich_mil.data.features import read_feature_csv
from ich_mil.gp.predict import fit_calibration, predict
from ich_mil.gp.settings import HeadSettings
from ich_mil.gp.fit import fit

pytestmark = pytest.mark.realdata


@pytest.fixture(scope="module")
def rsna(shared_data):
    return read_feature_csv(shared_data / "features" / "rsna150_d8_run2.csv")


def test_the_bound_never_falls_on_real_slices(rsna):
    settings = HeadSettings(density="logistic", sweeps=15)
    elbo = fit(rsna.x, rsna.offsets, rsna.labels, settings=settings)[1].elbo
    assert all(after >= before - 1e-9 * abs(before) for before, after in pairwise(elbo))


def test_a_student_tail_runs_away_on_real_slices(rsna):
    settings = HeadSettings(density="gamma", alpha=1.0, beta=4.0, logistic_tail=False)
    with pytest.warns(UserWarning, match="has run away"):
        model, report = fit(rsna.x, rsna.offsets, rsna.labels, settings=settings)
    assert report.stopped == "diverged"
    assert 1 <= report.best_sweep < len(report.elbo)
    assert bool(torch.isfinite(model.q_mean).all())
    assert report.max_abs_mean[report.best_sweep - 1] < 10


def test_rsna_to_cq500(rsna, shared_data):
    train, held = train_test_split(rsna.scans, test_size=0.2, stratify=rsna.labels, random_state=0)
    train, held = rsna.select(train), rsna.select(held)
    model, report = fit(
        train.x,
        train.offsets,
        train.labels,
        settings=HeadSettings(),
        validation=(held.x, held.offsets, held.labels),
    )
    assert report.stopped in ("validation", "converged")
    calibration = fit_calibration(model, held.x, held.offsets, held.scans, held.labels)
    cq500 = read_feature_csv(shared_data / "features" / "cq500_d8_run2.csv")
    got = predict(model, cq500.x, cq500.offsets, cq500.scans, samples=500, calibration=calibration)
    assert roc_auc_score(cq500.labels, got.scan_mean) >= 0.915
    assert bool((got.scan_low <= got.scan_mean).all())
    assert bool((got.scan_mean <= got.scan_high).all())

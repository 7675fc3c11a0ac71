"""The head on the paper's own features: RSNA scans to CQ500 scans, and the bound on real slices."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score

from ich_mil.gp.aggregation import scan_logit
from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import Job, fit, fit_replicates
from ich_mil.gp.head import Head
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.predict import mean_logits
from ich_mil.gp.settings import HeadSettings

pytestmark = pytest.mark.realdata


@pytest.fixture
def rsna(rsna_features):
    return rsna_features


@pytest.fixture
def cq500(cq500_features):
    return cq500_features


@pytest.mark.parametrize("length", [8.0, None], ids=["l=D", "default"])
def test_the_bound_never_falls_on_real_slices(rsna, length):
    settings = HeadSettings(density="logistic", lengthscale_squared=length, tolerance=1e-12)
    elbo = fit(Bags(rsna.x, rsna.offsets, rsna.labels), settings)[1].elbo
    assert len(elbo) == 50
    assert all(after >= before - 1e-9 * abs(before) for before, after in pairwise(elbo))


@pytest.mark.parametrize(
    ("family", "auc", "error"), [("probit", 0.915, 1e-10), ("large_margin", 0.905, 1e-9)]
)
def test_other_families_on_real_slices(rsna, cq500, family, auc, error):
    model, report = fit(Bags(rsna.x, rsna.offsets, rsna.labels), HeadSettings(family=family))
    assert all(after >= before - error * abs(before) for before, after in pairwise(report.elbo))
    phi, _ = model.project(model.standardise(cq500.x), model.prior_root())
    assert roc_auc_score(cq500.labels, scan_logit(model.q_mean @ phi, cq500.offsets, "max")) >= auc


def test_a_student_tail_runs_away_on_real_slices(rsna, preset):
    preset(logistic_tail=False)
    settings = HeadSettings(density="gamma", alpha=1.0, beta=4.0, lengthscale_squared=8.0)
    with pytest.warns(UserWarning, match="has run away"):
        model, report = fit(Bags(rsna.x, rsna.offsets, rsna.labels), settings)
    assert report.stopped == "diverged"
    assert 1 <= report.best_sweep < len(report.elbo)
    assert bool(torch.isfinite(model.q_mean).all())
    assert report.max_abs_mean[report.best_sweep - 1] < 10


@pytest.mark.slow
@pytest.mark.parametrize("density", ["logistic", "gamma"])
def test_rsna_to_cq500(rsna, cq500, density, gamma_on_cq500):
    p, std = gamma_on_cq500
    if density == "logistic":
        head = Head(density=density).fit(rsna.x, rsna.offsets, rsna.labels)
        p, std = head.predict_bag_proba(cq500.x, cq500.offsets, return_std=True)
    assert roc_auc_score(cq500.labels, p) >= 0.921
    assert log_loss(cq500.labels, p) <= 0.39
    # two scans below the bar of 0.83: over seeds it is 0.831 to 0.839
    assert accuracy_score(cq500.labels, p >= 0.5) >= 0.826
    assert bool((std > 0).all())


@pytest.mark.slow
def test_slices_of_held_out_scans(rsna):
    auc, f1 = [], []
    for train, held in folds_of(rsna.labels, rsna.patients, folds=5, seed=0)[:2]:
        part, out = (rsna.select([rsna.scans[b] for b in chosen]) for chosen in (train, held))
        head = Head().fit(part.x, part.offsets, part.labels)
        p = head.predict_instance_proba(out.x, out.offsets)
        auc.append(roc_auc_score(out.slice_labels, p))
        f1.append(f1_score(out.slice_labels, p >= 0.5))
    assert np.mean(auc) > 0.95
    assert np.mean(f1) > 0.78


@pytest.mark.slow
def test_no_cell_of_the_grid_falls_apart(rsna, cq500):
    jobs = [
        Job(HeadSettings(density="gamma", n_inducing=m, alpha=a, beta=b))
        for m in (50, 100, 200)
        for a in (0.5, 1.0)
        for b in (1.0, 2.5, 4.0)
    ]
    for group in fit_replicates(Bags(rsna.x, rsna.offsets, rsna.labels), jobs):
        logits = mean_logits([one.model for one in group], Bags(cq500.x, cq500.offsets))
        assert bool(logits.isfinite().all())
        for score in scan_logit(logits, cq500.offsets, "max"):
            assert roc_auc_score(cq500.labels, score) > 0.91


def test_mixed_precision_on_real_slices(rsna):
    settings = HeadSettings(tolerance=1e-12)
    bags = (rsna.x, rsna.offsets, rsna.labels)
    one, two = (fit(Bags(*bags), replace(settings, precision=p))[0](rsna.x).mean for p in ("double", "mixed"))
    assert float((one - two).abs().max()) < 1e-5

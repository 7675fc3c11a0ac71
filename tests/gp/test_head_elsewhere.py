"""Heads on a device: a GPU where there is one, and one that is pretended where there is none."""

from dataclasses import replace

import pytest
import torch
from test_head_ranks import FAMILIES, agree, with_positions

from ich_mil.gp.fit import fit
from ich_mil.gp.fit_calibration import fit_calibrated
from ich_mil.gp.head import Head
from ich_mil.gp.settings import HeadSettings
from tests.elsewhere import AWAY, elsewhere

SHORT = {"n_inducing": 6, "sweeps": 3, "calibration_folds": 2}
NEVER = 1e-300
"""A tolerance that is never met."""


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gibbs"])  # needs a generator there
def test_a_head_is_fitted_where_its_features_are(name):
    settings = replace(FAMILIES[name], sweeps=3)
    bags, held = with_positions(0, 10), with_positions(3, 6)
    expected = fit(bags, settings, validation=held)[0]
    with elsewhere():
        model, _ = fit(bags.to(AWAY), settings, validation=held)  # validation scans may be on the CPU
        assert {value.device for value in model.state_dict().values()} == {AWAY}
        agree(model.q_mean.cpu(), expected.q_mean)
        agree(model.q_root.cpu(), expected.q_root)
        agree(model.inducing.cpu(), expected.inducing)


@pytest.mark.parametrize("judges", ["nobody", "training", "validation"])
@pytest.mark.parametrize("rule", ["max", "noisy_or"])
def test_the_host_waits_once_a_sweep(judges, rule):
    bags, held = with_positions(0, 10), with_positions(3, 6)
    changes = {"density": "gamma", "logistic_tail": False} if judges == "training" else {}
    settings = HeadSettings(n_inducing=8, tolerance=NEVER, patience=99, rule=rule, **changes)
    held = held if judges == "validation" else None
    found = []
    for sweeps in (3, 10):
        with elsewhere() as waits:
            _, report = fit(bags.to(AWAY), replace(settings, sweeps=sweeps), validation=held)
        assert len(report.elbo) == sweeps
        assert len(report.validation_log_loss) == (sweeps if judges == "validation" else 0)
        found.append(waits)
    assert found[1] - found[0] == {"copy to the host": 7}


def figures(device, folder):
    """Of calibration and heads: fitted on features there, kept, and asked of both."""
    bags, held = with_positions(0, 12).to(device), with_positions(3, 8)
    x, offsets, labels, *_ = bags
    held_x = held.x.to(device)
    crossed = fit_calibrated(bags, HeadSettings(**SHORT, smooth_mm=5.0))[0].calibration
    rest = Head(**SHORT).fit(x, offsets, labels, validation=held[:3])
    whole = Head(**SHORT).fit(x, offsets, labels)
    whole.save(folder)
    again = Head.load(folder)
    assert again.model_.q_mean.device.type == "cpu"
    found = [crossed.slope, crossed.intercept]
    for head in (rest, whole, again):
        found += head.predict_bag_proba(held.x, held.offsets).tolist()
    found.append(whole.score(held_x, held.offsets, held.labels))
    return [*found, *whole.predict_instance_proba(held_x, held.offsets).tolist()]


def test_everything_else_works_there_too(tmp_path):
    expected = figures(torch.device("cpu"), tmp_path)
    with elsewhere():
        assert figures(AWAY, tmp_path) == pytest.approx(expected, rel=1e-8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_everything_else_works_on_a_gpu(tmp_path):
    expected = figures(torch.device("cpu"), tmp_path)
    assert figures(torch.device("cuda"), tmp_path) == pytest.approx(expected, rel=1e-5)


def test_the_pretended_device_is_one():
    with elsewhere() as waits:
        x = torch.arange(6.0).to(AWAY).view(2, 3)
        assert (x @ x.mT).sum().item() == 83.0
        assert waits == {"copy to the device": 1, "aten._local_scalar_dense.default": 1}
        assert x[:, [2, 0]].tolist() == [[2.0, 0.0], [5.0, 3.0]]
        x[0] = 7.0
        assert x.cpu().sum() == 33.0
        with pytest.raises(RuntimeError, match="two devices"):
            x + torch.ones(3)
        with pytest.raises(RuntimeError):
            x.numpy()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_head_of_a_cpu():
    device = torch.device("cuda")
    for name, settings in FAMILIES.items():
        if name not in ("mixed", "gibbs"):
            bags = with_positions(0, 12)
            expected = fit(bags, settings)[0]
            model, _ = fit(bags.to(device), settings)
            assert model.q_mean.device.type == device.type
            agree(model.q_mean.cpu(), expected.q_mean)

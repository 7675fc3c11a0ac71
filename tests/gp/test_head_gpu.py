"""Heads on a GPU: the posterior, calibration and predictions of a CPU."""

from dataclasses import replace

import pytest
import torch

from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.fit_calibration import fit_calibrated
from ich_mil.gp.head import Head
from ich_mil.gp.settings import HeadSettings
from tests.gp.synthetic import close, scans

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
GPU = torch.device("cuda")
BASE = HeadSettings(n_inducing=10, sweeps=12)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"density": "gamma"},
        {"preset": "paper"},
        {"preset": "public"},
        {"family": "large_margin"},
        {"family": "probit"},
        {"lengthscale_squared": 30_000.0},  # drops 3 of 10 directions
        {"learn": "kernel", "sweeps": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("watched", [False, True])
def test_a_gpu_fits_the_head_of_a_cpu(change, watched):
    bags, held = Bags(*scans(12)), Bags(*scans(6, 3)) if watched else None
    expected = fit(bags, replace(BASE, **change), validation=held)[0]
    model, _ = fit(
        bags.to(GPU), replace(BASE, **change), validation=held
    )  # validation scans may be on the CPU
    assert {value.device.type for value in model.state_dict().values()} == {"cuda"}
    close(model.q_mean.cpu(), expected.q_mean, rtol=1e-8)
    close(model.q_root.cpu(), expected.q_root, rtol=1e-8)


def figures(device, folder):
    """Calibration and predictions of heads fitted to features on `device`."""
    bags, held = Bags(*scans(12)).to(device), Bags(*scans(8, 3))
    crossed = fit_calibrated(bags, BASE)[0].calibration
    rest = Head(**vars(BASE)).fit(*bags[:3], validation=held[:3])
    whole = Head(**vars(BASE)).fit(*bags[:3])
    whole.save(folder)
    again = Head.load(folder)
    assert again.model_.q_mean.device.type == "cpu"
    found = [crossed.slope, crossed.intercept]
    for head in (rest, whole, again):
        found += head.predict_bag_proba(held.x, held.offsets).tolist()
    there = held.x.to(device)
    found.append(whole.score(there, held.offsets, held.labels))
    return [*found, *whole.predict_instance_proba(there, held.offsets).tolist()]


def test_a_gpu_gives_the_predictions_of_a_cpu(tmp_path):
    expected = figures(torch.device("cpu"), tmp_path)
    assert figures(GPU, tmp_path) == pytest.approx(expected, rel=1e-5)

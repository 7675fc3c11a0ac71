"""How fits end and which state is kept: sweeps that are written down, of many replicates at once."""

import math

import pytest
import torch

from ich_mil.gp.inference import ascent
from ich_mil.gp.inference.ascent import Limits, Watched, ascend
from ich_mil.gp.inference.weights import Weights

LIMITS = Limits(sweeps=6, patience=2, tolerance=0.5, rule="max", link="logistic")
NAN = math.nan

# of each replicate: μ of a slice, the loss, and perhaps a bound, sweep by sweep; why it ended, the sweep kept
ENDS = {
    "validation scans judge": [
        ([(9, 3), (8, 2), (7, 2), (6, 4)], "validation", 2, "scans for 2 sweeps, kept sweep 2"),
        ([(9, 6), (8, 5), (7, 6), (6, 4), (7, 5), (8, 5)], "validation", 4, "2 sweeps, kept sweep 4"),
        ([(9, 3), (8, 1), (8.4, 1.4)], "converged", 2, "converged in sweep 3"),
        ([(9, 3), (9.5, 3), (9.9, 3)], "validation", 1, "kept sweep 1"),
        ([(9, 4), (8, 3), (7, 3.5), (6, 2), (5, 1), (4.6, 2 / 3)], "converged", 6, "converged in sweep 6"),
        ([(9, 3), (8, 2), (-50, 1)], "diverged", 2, "run away: |μ| reached 50 in sweep 3; the state of"),
        ([(60, 1)], "diverged", 0, "in sweep 1; the state of sweep 0 is kept, the best on validation scans"),
        ([(9, 3), (1e-3, 0)], "diverged", 1, "shrunk to 0: |μ| reached 0.001 in sweep 2; the state"),
        ([(9, 3), (8, 2, NAN)], "diverged", 1, "run away: |μ| reached 8 in sweep 2; the state of sweep 1"),
    ],
    "training scans judge": [
        ([(9, 3), (8, 2), (7, 3), (6, 3), (5, 3), (4, 3)], "sweeps", 6, "all 6 sweeps done"),
        ([(9, 3), (8, 1), (8.4, 1.4)], "converged", 3, "converged in sweep 3"),
        ([(9, 3), (8, 2), (7, 2.5), (50, 1)], "diverged", 2, "sweep 2 is kept, the best on training scans"),
        ([(9, 3), (1e-3, 0)], "diverged", 1, "sweep 1 is kept, the best on training scans"),
    ],
    "the model bounds itself": [
        ([(90, 3), (80, 2), (70, 3), (60, 3), (50, 3), (40, 3)], "sweeps", 6, "all 6 sweeps done"),
        ([(9, 3), (8, 1), (8.4, 1.4)], "converged", 3, "converged in sweep 3"),
        ([(9, 3), (1e-3, 0)], "diverged", 2, "shrunk to 0: .* sweep 2 is kept, the last finite one"),
        ([(9, 3), (8, 2, NAN)], "diverged", 1, "run away: .* sweep 1 is kept, the last finite one"),
    ],
}


class Written:
    """Φ and the local side of replicates whose next q(w) is written down: Φ is the identity of two slices."""

    def __init__(self, sweeps, bounded):
        self.sweeps, self.bounded, self.number = sweeps, bounded, 0  # bounded of each

    def moments(self, mean, root):
        return mean, torch.zeros_like(mean)

    def precision(self, mu, variance):
        self.number += 1

    def target(self):
        return torch.tensor([sweeps[self.number - 1][:2] for sweeps in self.sweeps], dtype=torch.float64)

    def gram(self, theta, target):
        return torch.zeros(len(target), 2, 2).double(), target

    def update(self, mu, variance):
        pass

    def bound(self, mu, variance):
        return torch.tensor([sum(sweeps[self.number - 1][2:]) for sweeps in self.sweeps]).double()

    def keep(self, alive):
        self.sweeps = [self.sweeps[i] for i in alive.tolist()]


@pytest.mark.parametrize("judges", [[who] for who in ENDS] + [list(ENDS)[1:]])
def test_each_fit_ends_as_written(judges, monkeypatch):
    sweeps, stopped, best, said = zip(*(end for who in judges for end in ENDS[who]), strict=True)
    monkeypatch.setattr(ascent, "platt_loss", lambda logits, labels: logits[:, 1] / labels[1])
    written = Written(list(sweeps), [who == "the model bounds itself" for who in judges for _ in ENDS[who]])
    scans = Watched(written, torch.tensor([0, 1, 2]), torch.tensor([0, 1]))
    others = scans._replace(labels=torch.tensor([0, 0]))  # their loss is infinite
    watches = judges == ["validation scans judge"]
    start = Weights.prior(len(sweeps), 2, like=torch.zeros(1).double())
    start.mean[:, 0] = -1 - torch.arange(len(sweeps))
    with pytest.warns(UserWarning, match="longer length scale|logistic tail") as told:
        found = ascend(
            written,
            written,
            start,
            limits=LIMITS,
            training=others if watches else scans,
            watched=scans if watches else None,
        )
    assert len(told) == stopped.count("diverged")
    for one in told:
        assert ("shrunk to 0" in str(one.message)) == ("longer length scale" in str(one.message))
    for r, (weights, report) in enumerate(found):
        done = sweeps[r]
        assert (report.stopped, report.best_sweep, len(report.elbo)) == (stopped[r], best[r], len(done))
        for part in said[r].split(" .* "):
            assert part in report.message
        assert weights.mean.tolist() == [list(done[best[r] - 1][:2]) if best[r] else start.mean[r].tolist()]
        assert report.max_abs_mean == pytest.approx([abs(sweep[0]) for sweep in done], nan_ok=True)
        judged = len(done) - (stopped[r] == "diverged") if watches else 0
        assert report.validation_log_loss == tuple(loss for _, loss, *_ in done[:judged])

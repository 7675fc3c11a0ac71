"""Alarm rates within one site: rare without a shift, certain for a large one."""

import numpy as np
import pytest
from scipy.stats import binom

from ich_mil.errors import DataError
from ich_mil.evaluate.deployment import drift
from research.reproduce.statistics import drift_rates
from research.reproduce.statistics.drift_rates import alarm_rates


def test_rates_at_one_site(monkeypatch):
    monkeypatch.setattr(drift, "PERMUTATIONS", 199)
    monkeypatch.setattr(drift_rates, "DRAWS", 40)
    monkeypatch.setattr(drift_rates, "STEPS", (0.0, 0.5, 5.0))
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(60, 1, 3)) * [1, 10, 0.1] + rng.normal(size=(60, 4, 3)) * 1e-3).reshape(-1, 3)
    offsets, patients = np.arange(0, 241, 2), [f"p{b // 2}" for b in range(120)]
    found = alarm_rates(x, offsets, rng.random(120), patients, seed=0)  # 60 patients of two scans
    assert found[["step", "draws"]].to_numpy().tolist() == [[0.0, 40], [0.5, 40], [5.0, 40]]
    assert (found.share == found.rings / found.draws).all()
    assert found.rings[0] <= binom.ppf(0.999, 40, 0.05)
    assert found.rings[0] < found.rings[1] < found.rings[2] == 40
    assert ((found.low <= found.share) & (found.share <= found.high)).all()
    assert found.high[2] - found.low[2] == pytest.approx(1 - 0.025 ** (1 / 40))  # Clopper and Pearson
    with pytest.raises(DataError, match="at least 10 scans, got 0"):  # all 12 patients are in the batch
        alarm_rates(x, offsets, rng.random(120), [f"p{b // 10}" for b in range(120)], seed=0)

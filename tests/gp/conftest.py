"""Fixtures of the tests of the head."""

from dataclasses import replace

import pytest

from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.settings import VARIANTS, HeadSettings
from tests.gp.synthetic import scans


@pytest.fixture(scope="module")
def head():
    """A fitted ψ-VGPMIL head of 12 inducing points."""
    return fit(Bags(*scans()), HeadSettings(n_inducing=12, sweeps=6))[0]


@pytest.fixture(scope="module")
def new():
    """Nine scans to predict, one of a single slice."""
    x, offsets, _ = scans(9, seed=5)
    assert 1 in offsets.diff()
    return Bags(x, offsets, ids=[f"scan {b}" for b in range(9)])


@pytest.fixture
def preset(monkeypatch):
    """Change constants of a preset for one test."""

    def change(name="default", **values):
        monkeypatch.setitem(VARIANTS, name, replace(VARIANTS[name], **values))

    return change

"""Fixtures of the tests of the head."""

from dataclasses import replace

import pytest

from ich_mil.gp.settings import PRESETS


@pytest.fixture
def preset(monkeypatch):
    """Change constants of a preset for one test."""

    def change(name="default", **values):
        monkeypatch.setitem(PRESETS, name, replace(PRESETS[name], **values))

    return change

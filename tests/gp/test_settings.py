"""Settings of the head: ranges, combinations, and settings of earlier versions."""

import json
import math
from dataclasses import asdict

import pytest

from ich_mil.gp.settings import HeadSettings
from ich_mil.settings import build


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("alpha", 0.0, "greater than 0"),
        ("lengthscale_squared", math.inf, "finite"),
        ("sweeps", True, "valid integer"),
        ("density", "probit", "'gamma' or 'logistic'"),
        ("rule", "mean", "must be one of max, noisy_or, top_3"),
        ("calibration", "isotonic", "'platt' or 'none'"),
        ("gamma", 1.0, "Unexpected keyword"),
    ],
)
def test_settings_name_the_field_and_what_is_allowed(name, value, allowed):
    with pytest.raises(ValueError, match=rf"HeadSettings\n{name}\n .*{allowed}"):
        HeadSettings(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"family": "probit", "preset": "paper"}, "preset 'paper' is a setting of family 'psi'"),
        ({"family": "gibbs", "density": "gamma"}, "density 'gamma' is a setting of family 'psi'"),
        ({"family": "large_margin", "learn": "kernel"}, "learn 'kernel' is a setting of family 'psi'"),
        ({"alpha": 0.5}, "alpha 0.5 is a setting of density 'gamma', not of 'logistic'"),
    ],
)
def test_settings_of_another_family_or_density_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        HeadSettings(**settings)


def test_settings_are_written_to_json_and_read():
    settings = HeadSettings(density="gamma", beta=4, rule="top_20%")  # an int for a float
    stored = json.loads(json.dumps(asdict(settings)))
    assert HeadSettings(**stored) == settings
    assert build(HeadSettings, stored) == settings
    with pytest.raises(ValueError, match="smooth_mm is no setting"):
        build(HeadSettings, stored | {"smooth_mm": 5.0})

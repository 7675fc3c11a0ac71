"""Settings of runs on phantoms, and a run that ends where the CNN would be trained."""

import pytest

from ich_mil.families import RunHeadSettings
from ich_mil.model.training.train import train
from ich_mil.network.settings import CnnSettings, EncoderSettings

WINDOWS = [[50.0, 100.0], [40.0, 400.0]]
ENCODER = EncoderSettings(size=32, channels=WINDOWS)
CNN = CnnSettings(features=8)
HEAD = RunHeadSettings(n_inducing=8, sweeps=2, variance=0.5, bias=0.0, lengthscale_squared=48.0)


class ReachedError(Exception):
    """The CNN would be trained now."""


def begin(config, **how):
    with pytest.raises(ReachedError):
        train(config, resume=False, **how)

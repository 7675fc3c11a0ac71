"""Settings of the multimodal head of a run; importable without torch."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, Literal, Self, get_args

from pydantic import model_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from ich_mil.errors import ConfigError
from ich_mil.gp.settings import STRICT, HeadSettings

Method = Literal["variational", "laplace", "gibbs"]


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless the parameters of `MultimodalMIL` are in range; others are ignored."""
    if parameters.get("method", "gibbs") not in get_args(Method):
        raise ConfigError(
            f"method must be one of {', '.join(get_args(Method))}; got {parameters['method']!r}"
        )
    for name in ("tolerance", "intercept_variance", "slope_variance"):
        value = parameters.get(name, 1.0)
        if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < math.inf:
            raise ConfigError(f"{name} must be a finite number above 0, got {value!r}")
    least = {"restarts": 1, "screen": 10, "sweeps": 1, "samples": 2, "random_state": 0}
    for name, low in (least | {"chains": 2, "burn_in": 0, "draws": 4}).items():
        value = parameters.get(name, low)
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < low:
            raise ConfigError(f"{name} must be a whole number of at least {low}, got {value!r}")


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class RunHeadSettings(HeadSettings):
    """Settings `head` of a run: those of a Gaussian process, or of family `multimodal`.

    Of family `multimodal` they are `calibration` and `random_state`; others are in `MultimodalSettings`.
    """

    family: Literal["psi", "large_margin", "probit", "gibbs", "multimodal"] = "psi"  # type: ignore[assignment]

    @model_validator(mode="after")
    def _check_multimodal(self) -> Self:
        other = {*self.names()} - {"family", "calibration", "random_state"}
        foreign = sorted(name for name in other if getattr(self, name) != getattr(HeadSettings, name))
        if self.family == "multimodal" and foreign:
            raise ValueError(f"{foreign[0]} is a setting of Gaussian-process heads, not of 'multimodal'")
        return self


RunHeadSettings.__doc__ = HeadSettings.__doc__  # the help of a command shows its attributes


@dataclass(frozen=True)
class MultimodalSettings:
    """Settings of `head: {family: multimodal}`; random_state and calibration are those of `head`.

    Attributes:
        method: see `MultimodalMIL`, as for all but the last.
        restarts: of variational inference.
        sweeps: most sweeps of a restart.
        tolerance: of the bound.
        chains: of the Gibbs sampler.
        burn_in: sweeps of a chain before its first kept draw.
        draws: kept draws of a chain.
        intercept_variance: prior variance of intercepts.
        slope_variance: prior variance of all other coefficients.
        text_features: number of features of a sentence (`SentenceEmbedding`).
    """

    method: Method = "laplace"
    restarts: int = 8
    sweeps: int = 2000
    tolerance: float = 1e-5
    chains: int = 4
    burn_in: int = 1000
    draws: int = 1000
    intercept_variance: float = 16.0
    slope_variance: float = 4.0
    text_features: int = 10

    def __post_init__(self) -> None:
        try:
            check_parameters(asdict(self))
        except ConfigError as error:
            raise ValueError(f"multimodal.{error}") from error
        if self.text_features < 1:
            raise ValueError(f"multimodal.text_features must be at least 1, got {self.text_features}")

"""Settings of the multimodal head of a run; importable without torch."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ich_mil.errors import ConfigError

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


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MultimodalSettings:
    """Settings of `head: {family: multimodal}`; random_state and calibration are those of `head`.

    Attributes:
        method: inference, as in `MultimodalMIL`.
        restarts: restarts of variational inference.
        tolerance: relative change of the bound at which a restart ends.
        chains: chains of the Gibbs sampler.
        draws: kept draws of a chain.
        text_features: number of features of a sentence (`SentenceEmbedding`).
    """

    method: Method = "laplace"
    restarts: int = 8
    tolerance: float = 1e-5
    chains: int = 4
    draws: int = 1000
    text_features: Annotated[int, Field(ge=1)] = 10

    def __post_init__(self) -> None:
        try:
            check_parameters(asdict(self))
        except ConfigError as error:
            raise ValueError(f"multimodal.{error}") from error

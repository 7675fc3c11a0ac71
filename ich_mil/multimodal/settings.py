"""Settings of the multimodal head of a run; importable without torch."""

from collections.abc import Mapping
from dataclasses import asdict
from numbers import Integral
from typing import Any, Literal, get_args

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from ich_mil.errors import ConfigError

Prior = Literal["learned", "thesis"]
LEAST = {"gradients": 1, "samples": 2, "random_state": 0}


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless the parameters of `MultimodalMIL` are in range; others are ignored."""
    if parameters.get("prior", "learned") not in (priors := get_args(Prior)):
        raise ConfigError(f"prior must be one of {', '.join(priors)}; got {parameters['prior']!r}")
    for name, low in LEAST.items():
        value = parameters.get(name, low)
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < low:
            raise ConfigError(f"{name} must be a whole number of at least {low}, got {value!r}")


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MultimodalSettings:
    """Settings of `head: {family: multimodal}`; random_state and calibration are those of `head`.

    Attributes:
        prior: prior of the slopes, as in `MultimodalMIL`.
        gradients: gradients of a fit, as in `MultimodalMIL`.
    """

    prior: Prior = "learned"
    gradients: int = 4000

    def __post_init__(self) -> None:
        try:
            check_parameters(asdict(self))
        except ConfigError as error:
            raise ValueError(f"multimodal.{error}") from error

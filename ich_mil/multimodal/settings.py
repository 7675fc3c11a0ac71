"""Settings of the multimodal head of a run, and the report of its fit."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from ich_mil.errors import ConfigError
from ich_mil.multimodal.estimator import MultimodalMIL
from ich_mil.multimodal.inputs import Method, check_parameters


@dataclass(frozen=True)
class MultimodalSettings:
    """Settings of `head: {family: multimodal}`; seed and calibration are those of `head`.

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


@dataclass(frozen=True)
class MultimodalReport:
    """History of a fit.

    Attributes:
        bounds: evidence bound after each sweep of the best restart; empty for Gibbs sampling.
        restart_bounds: last bound of each restart.
        r_hat: largest R-hat of Gibbs sampling.
        message: the fit in one sentence.
    """

    bounds: tuple[float, ...]
    restart_bounds: tuple[float, ...]
    r_hat: float | None
    message: str

    @classmethod
    def of(cls, model: MultimodalMIL, kinds: Sequence[str]) -> Self:
        """Report of a fitted model."""
        used = f"{model.method} with {', '.join(kinds)}"
        if model.method == "gibbs":
            told = f"R-hat {model.r_hat_:.3f}, {model.effective_samples_:.0f} effective draws"
            return cls((), (), model.r_hat_, f"{used}: {told}")
        bounds = model.bounds_.tolist()
        told = f"best bound {bounds[-1]:.2f} of {len(model.restart_bounds_)} restarts, {len(bounds)} sweeps"
        return cls(tuple(bounds), tuple(model.restart_bounds_.tolist()), None, f"{used}: {told}")

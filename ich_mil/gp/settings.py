"""Settings of the Gaussian-process head: one dataclass that a YAML file fills, checked when it is made."""

import math
from dataclasses import dataclass, fields
from typing import Literal

from ich_mil.gp.densities import Density, Gamma, GammaLogisticTail, Logistic
from ich_mil.gp.rules import RULES, Rule


@dataclass(frozen=True)
class HeadSettings:
    """How the head is built and fitted.

    On splits of the public RSNA features the logistic density had the lowest calibrated log-loss under the
    rule "max" (0.27; Gamma with a logistic tail 0.29). "top_3" was lower still there (0.25) but depends on
    the slice spacing, and lost 0.008 AUC on CQ500, whose scans have 1 to 413 slices.

    Attributes:
        density: ψ; "gamma" is G-VGPMIL, "logistic" is VGPMIL.
        alpha: α of the Gamma density.
        beta: β of the Gamma density.
        logistic_tail: hold the Gamma's tail by the logistic one; without it fits run away
            (`GammaLogisticTail`).
        log_h: log H, the evidence of a scan label; the paper has H = 100, its public code H = 1e12.
        n_inducing: M, half of them for the slices of positive scans.
        variance: v of the kernel v exp(-‖x - x'‖² / (2ℓ)) on standardised features.
        lengthscale_squared: ℓ; None means the number of features D.
        sweeps: at most so many.
        patience: stop after so many sweeps without a better validation loss.
        tolerance: converged when no μ changes by more in a sweep.
        update: order of the π within a bag; the evidence bound never falls with "gauss_seidel".
        jitter: ε on the diagonal of K_ZZ, and a nugget of the prior at every slice.
        rule: how slices make a scan, in early stopping and in prediction.
        seed: of the k-means that places the inducing points.
    """

    density: Literal["gamma", "logistic"] = "logistic"
    alpha: float = 1.0
    beta: float = 2.5
    logistic_tail: bool = True
    log_h: float = 12 * math.log(10)
    n_inducing: int = 100
    variance: float = 0.5
    lengthscale_squared: float | None = None
    sweeps: int = 50
    patience: int = 10
    tolerance: float = 1e-5
    update: Literal["gauss_seidel", "jacobi"] = "gauss_seidel"
    jitter: float = 1e-6
    rule: Rule = "max"
    seed: int = 0

    def __post_init__(self) -> None:
        positive = ("alpha", "beta", "log_h", "variance", "lengthscale_squared", "tolerance", "jitter")
        for name in positive:
            value = getattr(self, name)
            if value is None and name == "lengthscale_squared":
                continue
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
        for name, least in (("n_inducing", 2), ("sweeps", 1), ("patience", 1), ("seed", 0)):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= least):
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        allowed = {"density": ("gamma", "logistic"), "update": ("gauss_seidel", "jacobi"), "rule": RULES}
        for name, choices in allowed.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all settings."""
        return tuple(field.name for field in fields(cls))

    def make_density(self) -> Density:
        """The density these settings describe."""
        if self.density == "logistic":
            return Logistic()
        return (GammaLogisticTail if self.logistic_tail else Gamma)(self.alpha, self.beta)

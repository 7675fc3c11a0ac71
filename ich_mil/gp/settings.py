"""Settings of the Gaussian-process head: a frozen dataclass, filled from YAML and validated on construction.

`family` selects the model. For ψ-VGPMIL, `preset` selects the algorithm of the paper, the algorithm of its
public code, or the defaults of this project. `HeadSettings.variant` is the preset with its overrides.
"""

import math
import re
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

if TYPE_CHECKING:
    from ich_mil.gp.observations.densities import Density

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""No conversion of types beyond int to float, no unknown names, finite numbers."""


def check_rule(rule: str) -> str:
    """Return `rule`; raise `ValueError` if it is no aggregation rule."""
    if not (isinstance(rule, str) and re.fullmatch(r"max|noisy_or|top_[1-9]\d*|top_[1-9]\d?%", rule)):
        raise ValueError(
            f"rule must be one of max, noisy_or, top_3 (any number), top_20% (any share), got {rule!r}"
        )
    return rule


Rule = Annotated[str, AfterValidator(check_rule)]
"""'max', 'noisy_or', or the mean of the largest slices: 'top_3' (any number), 'top_20%' (any share, rounded
up)."""

Link = Literal["logistic", "probit"]
"""Link function from latent value to probability: sigmoid(f), or the standard normal CDF of f."""

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]

GaussianProcess = Literal["psi", "large_margin", "probit", "gibbs"]
FAMILY_NAMES: dict[GaussianProcess, str] = {
    "psi": "VGPMIL",
    "large_margin": "LM-VGPMIL",
    "probit": "MIL-GP-Probit",
    "gibbs": "MIL-GP-Probit, sampled",
}
"""Families of Gaussian processes, and their names in results."""


@plain_dataclass(frozen=True)
class Variant:
    """Choices in which the paper, its public code and this project differ.

    Attributes:
        log_h: log H, the weight of a scan label.
        logistic_tail: give the Gamma density a logistic tail (`GammaLogisticTail`).
        update: update of π within a bag.
        rule: aggregation rule from slices to scan, in early stopping and in prediction.
        leave_one_out: term of the other slices of a bag: Π(1 - π) or 1 - max π.
        clip: θ(c) is evaluated at min(c, clip).
        unit_prior: the residual variance is 1 - ΣΦ² instead of k(x,x) - ΣΦ².
        variance: kernel variance, if the settings give none.
        bias: kernel bias, if the settings give none.
        length_per_feature: ℓ / D, if the settings give no ℓ. On held-out folds of the RSNA features the
            log-loss decreases up to 8 to 32 and is flat there; at 1 the Gamma density overfits.
        start: initial π from the scan labels, or uniformly random together with a random initial mean.
    """

    log_h: float = 12 * math.log(10)
    logistic_tail: bool = True
    update: Literal["gauss_seidel", "jacobi"] = "gauss_seidel"
    rule: Rule = "max"
    leave_one_out: Literal["product", "max"] = "product"
    clip: float = math.inf
    unit_prior: bool = False
    variance: float = 0.5
    bias: float = 0.0
    length_per_feature: float = 16.0
    start: Literal["labels", "random"] = "labels"


VARIANTS = {
    "default": Variant(),
    # Castro-Macías et al. 2024, Algorithm 1 with Eq. 23-37, except that step 7 updates every π at once, and
    # that step 8, the kernel, is left to `learn`
    "paper": Variant(
        log_h=math.log(100),
        logistic_tail=False,
        update="jacobi",
        rule="noisy_or",
        length_per_feature=1.0,
        start="random",
    ),
    # deviations of the authors' public code from the paper
    "public": Variant(
        logistic_tail=False,
        update="jacobi",
        leave_one_out="max",
        clip=3.0,
        unit_prior=True,
        length_per_feature=1.0,
        start="random",
    ),
}
"""Variants by name. The factors 1/N and 1/M of the public code only scale its gradient steps."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HeadSettings:
    """Settings of the model, the fit and the calibration: the parameters of `ich_mil.gp.head.Head`.

    Attributes:
        family: `psi` (ψ-VGPMIL), `large_margin` (LM-VGPMIL), `probit` (MIL-GP-Probit by variational
            inference) or `gibbs` (the same model by Gibbs sampling).
        preset: `default`, `paper` or `public` (`VARIANTS`), for ψ-VGPMIL.
        density: ψ: `logistic` (VGPMIL) or `gamma` (G-VGPMIL, Student's t); for `Head` also an object such as
            `LogDensity`.
        alpha: α of the Gamma density.
        beta: β of the Gamma density.
        n_inducing: number of inducing points M, half of them for the slices of positive scans.
        kernel: name of a class of `gpytorch.kernels`, which is scaled by a variance; for `Head` also a
            GPyTorch kernel, used without scale or bias.
        ard: one length scale per feature.
        variance: v in v exp(-‖x - x'‖² / (2ℓ)) on standardised features. None: `Head.fit` chooses among the
            preset and larger values on held-out folds (`gp.inference.kernel_choice`).
        bias: variance of a constant added to the kernel. Without it the latent function returns to 0 far from
            all training slices, which is above its values in negative scans. None: as for `variance`.
        lengthscale_squared: ℓ. None: as for `variance`; that of the preset is a multiple of D.
        learn: parameters learned by maximising the objective of Eq. 29 (`gp.inference.hyperparameters`).
        sweeps: maximum number of sweeps.
        tolerance: the fit has converged when no μ changes by this much in a sweep.
        precision: `mixed` multiplies in float32 and factorises in float64.
        rule: from slices to scan: `max`, `noisy_or`, `top_3` (any number), `top_20%` (any share). None:
            preset.
        calibration: `platt` or `none`, fitted to held-out scans.
        random_state: seed of k-means, random starts and Gibbs chains.
    """

    family: GaussianProcess = "psi"
    preset: Literal["default", "paper", "public"] = "default"
    density: Literal["gamma", "logistic"] = "logistic"
    alpha: Positive = 1.0
    beta: Positive = 2.5
    n_inducing: Annotated[int, Field(ge=2)] = 100
    kernel: str = "RBFKernel"
    ard: bool = False
    variance: Positive | None = None
    bias: Annotated[float, Field(ge=0)] | None = None
    lengthscale_squared: Positive | None = None
    learn: Literal["nothing", "kernel", "kernel_and_inducing"] = "nothing"
    sweeps: Annotated[int, Field(ge=1)] = 50
    tolerance: Positive = 1e-5
    precision: Literal["double", "mixed"] = "double"
    rule: Rule | None = None
    calibration: Literal["platt", "none"] = "platt"
    random_state: Annotated[int, Field(ge=0, lt=2**32)] = 0  # the limit of scikit-learn

    @model_validator(mode="after")
    def _check_owners(self) -> Self:
        """Refuse settings of a family or density that is not chosen."""
        owners = {"preset": "psi", "density": "psi", "learn": "psi", "alpha": "gamma", "beta": "gamma"}
        for name, owner in owners.items():
            value, chosen = getattr(self, name), self.family if owner == "psi" else self.density
            if value != getattr(HeadSettings, name) and chosen != owner:
                of = "family" if owner == "psi" else "density"
                raise ValueError(f"{name} {value!r} is a setting of {of} {owner!r}, not of {chosen!r}")
        return self

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of all settings."""
        return tuple(field.name for field in fields(cls))

    @property
    def variant(self) -> Variant:
        """The preset with the settings that override it."""
        chosen: dict[str, Any] = {name: getattr(self, name) for name in ("rule", "variance", "bias")}
        return replace(VARIANTS[self.preset], **{k: v for k, v in chosen.items() if v is not None})

    @property
    def link(self) -> Link:
        """Link function of the family."""
        return "probit" if self.family in ("probit", "gibbs") else "logistic"

    def make_density(self) -> "Density":
        """Density ψ of these settings."""
        # imports torch, which reading a configuration does not need
        from ich_mil.gp.observations.densities import Gamma, GammaLogisticTail, Logistic

        if self.density == "logistic":
            return Logistic()
        return (GammaLogisticTail if self.variant.logistic_tail else Gamma)(self.alpha, self.beta)

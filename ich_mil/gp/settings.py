"""Settings of the Gaussian-process head: a frozen dataclass, filled from YAML and validated on construction.

`family` selects the model. For ψ-VGPMIL, `preset` selects the algorithm of the paper, the algorithm of its
public code, or the defaults of this project. `HeadSettings.variant` is the preset with its overrides.
"""

import math
import re
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from ich_mil.settings import check_seeds

if TYPE_CHECKING:
    from ich_mil.gp.observations.densities import Density

Rule = str
"""'max', 'noisy_or', or the mean of the largest slices: 'top_3' (any number), 'top_20%' (any share, rounded
up)."""

Link = Literal["logistic", "probit"]
"""Link function from latent value to probability: sigmoid(f), or the standard normal CDF of f."""

Update = Literal["gauss_seidel", "jacobi"]


def check_rule(rule: Rule) -> None:
    """Raise `ValueError` unless `rule` is valid."""
    if not (isinstance(rule, str) and re.fullmatch(r"max|noisy_or|top_[1-9]\d*|top_[1-9]\d?%", rule)):
        raise ValueError(
            f"rule must be one of max, noisy_or, top_3 (any number), top_20% (any share), got {rule!r}"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
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
    update: Update = "gauss_seidel"
    rule: Rule = "max"
    leave_one_out: Literal["product", "max"] = "product"
    clip: float = math.inf
    unit_prior: bool = False
    variance: float = 0.5
    bias: float = 0.0
    length_per_feature: float = 16.0
    start: Literal["labels", "random"] = "labels"


PRESETS = {
    "default": Variant(),
    # Castro-Macías et al. 2024, Algorithm 1 with Eq. 23-37, except for two steps that other settings turn on:
    # step 7 updates one π after the other (`update` gauss_seidel), step 8 learns the kernel (`learn` kernel)
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
"""Variants by name. log Z is a separate setting (`log_z`). The factors 1/N and 1/M of the public code only
scale its gradient steps."""

PSI = {"psi": "ψ-VGPMIL"}
LARGE_MARGIN = {"large_margin": "LM-VGPMIL"}
GIBBS = {"gibbs": "the Gibbs sampler"}
GAMMA = {"gamma": "the Gamma density"}
LEARNED = {"kernel": "a learned kernel", "kernel_and_inducing": "learned inducing points"}

OWNERS = {
    "preset": ("family", PSI),
    "learn": ("family", PSI),
    "density": ("family", PSI),
    "logistic_tail": ("family", PSI),
    "log_h": ("family", PSI | LARGE_MARGIN),
    "update": ("family", PSI | LARGE_MARGIN),
    "margin_c": ("family", LARGE_MARGIN),
    "margin_v": ("family", LARGE_MARGIN),
    "chains": ("family", GIBBS),
    "burn_in": ("family", GIBBS),
    "draws": ("family", GIBBS),
    "alpha": ("density", GAMMA),
    "beta": ("density", GAMMA),
    "outer": ("learn", LEARNED),
    "log_z": ("learn", LEARNED),
}
"""Settings that apply to some heads only. For each: the setting that decides, and the values of that setting
for which it applies, with their display names."""


@dataclass(frozen=True)
class HeadSettings:
    """Settings of the model, the fit and the calibration of a head.

    Attributes:
        family: `psi` is ψ-VGPMIL, `large_margin` LM-VGPMIL, `probit` MIL-GP-Probit by variational inference
            and `gibbs` the same model by Gibbs sampling.
        preset: `default`, `paper` or `public`, for ψ-VGPMIL (`PRESETS`).
        density: ψ; `gamma` is G-VGPMIL, `logistic` is VGPMIL.
        alpha: α of the Gamma density.
        beta: β of the Gamma density.
        logistic_tail: give the Gamma density of ψ-VGPMIL a logistic tail (`GammaLogisticTail`); without it
            fits can diverge. None: as in the preset.
        log_h: log H, the weight of a scan label, for ψ-VGPMIL and LM-VGPMIL. None: as in the preset.
        update: update of π within a bag, for ψ-VGPMIL and LM-VGPMIL; with `gauss_seidel` the ELBO never
            decreases. None: as in the preset.
        margin_c: C of LM-VGPMIL, the steepness of the margin.
        margin_v: V of LM-VGPMIL, the width of the margin.
        chains: number of chains of the Gibbs sampler.
        burn_in: number of discarded draws of each chain.
        draws: number of kept draws of each chain.
        n_inducing: number of inducing points M, half of them for the slices of positive scans.
        kernel: name of a class of `gpytorch.kernels`; it is scaled by a variance.
        ard: use one length scale per feature.
        variance: kernel variance v in v exp(-‖x - x'‖² / (2ℓ)) on standardised features. None: as in the
            preset; `Head.fit` chooses those of v, bias and ℓ that are None (`gp.inference.kernel_choice`).
        bias: variance of a constant added to the kernel. Without it the latent function returns to 0 far
            from all training slices, which is above its values in negative scans. None: as for `variance`.
        lengthscale_squared: squared length scale ℓ. None: as for `variance`; that of the preset is a multiple
            of the number of features D.
        learn: parameters learned by maximising the objective of Eq. 29 (`gp.inference.hyperparameters`).
        outer: number of rounds of kernel learning; each follows a coordinate ascent of up to `sweeps` sweeps.
        log_z: number of random Fourier features for log Z in that objective; 0 leaves log Z out, as in the
            public code.
        sweeps: maximum number of sweeps.
        patience: stop after this many sweeps without a lower validation loss.
        tolerance: the fit has converged when no μ changes by this much in a sweep.
        precision: `mixed` multiplies in float32 and factorises in float64.
        jitter: ε on the diagonal of K_ZZ, and nugget of the prior at every slice.
        smooth_mm: width s in mm of the smoothing along z, which is part of the model: the label of a slice
            depends on a weighted mean of the latent values around it, with weights exp(-d² / (2 s²)) at
            distance d (`ich_mil.gp.smoothing`). It needs slice positions. 0: no smoothing.
        rule: aggregation rule from slices to scan, in early stopping and in prediction: `max`, `noisy_or`,
            `top_3` (or another number), `top_20%` (or another share). None: as in the preset.
        calibration: method of calibration on held-out scans: `platt`, `temperature`, `isotonic` or `none`.
        calibration_folds: number of folds, and of additional heads, for calibration without validation scans;
            also the number of folds of the choice of kernel.
        seed: seed of k-means, random starts, Gibbs chains and the Fourier features of log Z.
    """

    family: Literal["psi", "large_margin", "probit", "gibbs"] = "psi"
    preset: Literal["default", "paper", "public"] = "default"
    density: Literal["gamma", "logistic"] = "logistic"
    alpha: float = 1.0
    beta: float = 2.5
    logistic_tail: bool | None = None
    log_h: float | None = None
    update: Update | None = None
    margin_c: float = 0.5
    margin_v: float = 0.5
    chains: int = 4
    burn_in: int = 500
    draws: int = 500
    n_inducing: int = 100
    kernel: str = "RBFKernel"
    ard: bool = False
    variance: float | None = None
    bias: float | None = None
    lengthscale_squared: float | None = None
    learn: Literal["nothing", "kernel", "kernel_and_inducing"] = "nothing"
    outer: int = 5
    log_z: int = 0
    sweeps: int = 50
    patience: int = 10
    tolerance: float = 1e-5
    precision: Literal["double", "mixed"] = "double"
    jitter: float = 1e-6
    smooth_mm: float = 0.0
    rule: Rule | None = None
    calibration: Literal["platt", "temperature", "isotonic", "none"] = "platt"
    calibration_folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        positive = (
            "alpha",
            "beta",
            "log_h",
            "margin_c",
            "variance",
            "lengthscale_squared",
            "tolerance",
            "jitter",
        )
        for name in positive:
            value = getattr(self, name)
            if value is None and name in ("variance", "lengthscale_squared", "log_h"):
                continue
            if not (_is_number(value) and value > 0):
                raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
            object.__setattr__(self, name, float(value))
        for name in ("bias", "margin_v", "smooth_mm"):
            value = getattr(self, name)
            if value is None and name == "bias":
                continue
            if not (_is_number(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")
            object.__setattr__(self, name, float(value))
        least = {
            "n_inducing": 2,
            "sweeps": 1,
            "patience": 1,
            "outer": 1,
            "log_z": 0,
            "chains": 2,
            "burn_in": 0,
            "draws": 4,
            "calibration_folds": 2,
            "seed": 0,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not (isinstance(value, Integral) and int(value) >= low):
                raise ValueError(f"{name} must be a whole number of at least {low}, got {value!r}")
            object.__setattr__(self, name, int(value))  # numpy integers cannot be written to JSON
        check_seeds("seed", self.seed)
        for name, kind in get_type_hints(HeadSettings).items():  # fields of a Literal or bool type
            optional = NoneType in get_args(kind)
            one_of = get_args(kind)[0] if optional else kind
            choices = (True, False) if one_of is bool else get_args(one_of)
            value = getattr(self, name)
            if choices and not (value in choices or (optional and value is None)):
                named = ", ".join(str(choice) for choice in choices)
                raise ValueError(f"{name} must be one of {named}, got {value!r}")
        if self.rule is not None:
            check_rule(self.rule)
        self._check_together()

    def _check_together(self) -> None:
        """Raise `ValueError` for settings that are valid on their own but not in combination."""
        for name, (decides, owners) in OWNERS.items():
            value, chosen = getattr(self, name), getattr(self, decides)
            if value != getattr(HeadSettings, name) and chosen not in owners:
                named = " and ".join(owners.values())
                raise ValueError(f"{name} {value!r} is of {named}, not of {decides} {chosen!r}")
        if self.update is not None and PRESETS[self.preset].leave_one_out == "max":
            raise ValueError(f"update {self.update!r} has no meaning in the preset {self.preset!r}")
        if self.smooth_mm and PRESETS[self.preset].unit_prior:
            raise ValueError(
                f"smooth_mm has no meaning in the preset {self.preset!r}: its prior variance is not "
                "its kernel's"
            )
        if self.log_z and self.kernel != "RBFKernel":
            raise ValueError(
                f"log_z: the random Fourier features are those of RBFKernel, not of {self.kernel}; "
                "set log_z to 0, which leaves log Z out"
            )
        if self.smooth_mm and self.log_z:
            raise ValueError("log_z is that of a model without smoothing; set log_z or smooth_mm to 0")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of all settings."""
        return tuple(field.name for field in fields(cls))

    @property
    def variant(self) -> Variant:
        """The preset with the settings that override it."""
        names = ("log_h", "logistic_tail", "update", "rule", "variance", "bias")
        chosen: dict[str, Any] = {name: getattr(self, name) for name in names}
        return replace(PRESETS[self.preset], **{k: v for k, v in chosen.items() if v is not None})

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

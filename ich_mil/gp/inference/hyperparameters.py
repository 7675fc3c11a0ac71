"""Learn kernel hyperparameters, and optionally inducing points, by maximising the objective J of Eq. 29.

In: a head, its slices, q(w) and π - ½. Out: the same head with new hyperparameters λ, and q(w) under them
(Castro-Macías et al. 2024, Eq. 29 and step 8 of Algorithm 1).

The paper takes gradient steps on J with q(u) held fixed. This q(u) was fitted under the old kernel, and its
KL term ties the new kernel to the old: on the RSNA features (ℓ = D) 200 steps raise J by 1 after 3 sweeps and
by 11 after 30. Here q(w) is optimal at every λ for fixed Θ and π, and one call raises J by 61 and by 22.
L-BFGS-B maximises a lower bound F(λ) of J (`gp.inference.objective`). If J itself would decrease, the head is
left unchanged.

Shapes: N slices, D features, M inducing points.
"""

import math

import numpy as np
import torch
from gpytorch.constraints import Positive
from torch import Tensor

from ich_mil.errors import ConfigError
from ich_mil.gp.inference.objective import KernelObjective
from ich_mil.gp.inference.weights import Weights
from ich_mil.gp.observations.densities import Density
from ich_mil.gp.sparse_gp import SparseGP

EVALUATIONS = 8
"""Maximum number of evaluations of F in one call. Θ and π change before the next call, so the exact optimum
for the present Θ and π is worth little."""

RANGE = (1e-2, 1e2)
"""Bounds of positive hyperparameters. Features are standardised and f is a logit: with a length scale of 0.01
the slices are uncorrelated, with 100 a feature has no effect, and a variance of 100 saturates every sigmoid.
Beyond these bounds F is flat or K_ZZ is singular."""

Bounds = list[tuple[float | None, float | None]]

Variables = list[tuple[Tensor, Positive | None]]
"""Learned tensors in their raw (unconstrained) form, with the constraint of each positive parameter."""


def learn_hyperparameters(
    model: SparseGP, x: Tensor, rows: Tensor, weights: Weights, target: Tensor, density: Density
) -> Weights:
    """Maximise J (Eq. 29) over the hyperparameters of the kernel, in place.

    All kernel parameters are learned except those that required no gradient when the kernel was passed in.
    Positive parameters are learned on the log scale, within `RANGE`. With `learn` = `kernel_and_inducing` the
    inducing points are learned too. J does not decrease.

    Args:
        model: the head; its kernel and inducing points are changed.
        x: (N, D) raw features of the slices.
        rows: (N,) rows of x, in the order of `target`.
        weights: q(w), one replicate, under the present kernel.
        target: (N,) π - ½.
        density: ψ.

    Returns:
        The optimal q(w) under the new kernel for the Θ of the old q(w); `weights` if the head is unchanged.

    Raises:
        ConfigError: the kernel has no parameters to learn, or has a prior.
    """
    variables = _variables(model)
    objective = KernelObjective(model, x, rows, target, density)
    before, theta = objective.evaluate(objective.projection(), weights)
    old = [variable.detach().clone() for variable, _ in variables]

    def negative(vector: np.ndarray) -> tuple[float, np.ndarray]:
        y = torch.from_numpy(vector.copy()).requires_grad_()
        with torch.enable_grad():
            values = _values(variables, y)
        _put(variables, values)
        for variable, _ in variables:
            variable.grad = torch.zeros_like(variable)
        F = objective.collapsed(theta)
        torch.autograd.backward(values, [variable.grad for variable, _ in variables])
        assert y.grad is not None
        return -F, -y.grad.numpy()

    start, bounds = _start(variables)
    try:
        for variable, _ in variables:
            variable.requires_grad_(True)
        from scipy.optimize import minimize  # slow to import

        best = minimize(
            negative, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxfun": EVALUATIONS}
        ).x
    finally:
        for variable, _ in variables:
            variable.requires_grad_(False)
            variable.grad = None
    _put(variables, _values(variables, torch.from_numpy(best)))
    projection = objective.projection()
    learned = Weights.solve(*projection.gram(theta[None], target[None]))
    if objective.evaluate(projection, learned)[0] >= before:
        return learned
    _put(variables, old)
    return weights


def _variables(model: SparseGP) -> Variables:
    """Kernel parameters to learn, and the inducing points if the settings ask for them."""
    prior = next((name for name, *_ in model.covar_module.named_priors()), None)
    if prior is not None:
        raise ConfigError(
            f"head.learn: the kernel has a prior ({prior}), which J (Eq. 29) has no term for; give a kernel "
            "without one, or set learn to nothing"
        )
    variables: Variables = [
        (parameter, constraint if isinstance(constraint, Positive) else None)
        for name, parameter, constraint in model.covar_module.named_parameters_and_constraints()
        if name not in model.fixed
    ]
    if model.settings.learn == "kernel_and_inducing":
        variables.append((model.inducing, None))
    if not variables:
        raise ConfigError(
            f"head.learn: the kernel {type(model.covar_module).__name__} has no parameters to learn "
            "(one that requires no gradient stays as it is); set learn to nothing"
        )
    return variables


def _start(variables: Variables) -> tuple[np.ndarray, Bounds]:
    """Start vector and bounds of L-BFGS-B; bounds are widened to include start values outside `RANGE`."""
    start: list[float] = []
    bounds: Bounds = []
    low, high = (math.log(end) for end in RANGE)
    for variable, constraint in variables:
        value = variable.detach()
        numbers = (value if constraint is None else constraint.transform(value).log()).flatten().tolist()
        start += numbers
        bounds += [(None, None) if constraint is None else (min(low, y), max(high, y)) for y in numbers]
    return np.array(start), bounds


def _values(variables: Variables, y: Tensor) -> list[Tensor]:
    """Raw values of the variables from the vector y of L-BFGS-B, which holds logarithms of positive ones."""
    values = []
    pieces = y.split([variable.numel() for variable, _ in variables])
    for (variable, constraint), piece in zip(variables, pieces, strict=True):
        value = piece.to(variable).view_as(variable)
        values.append(value if constraint is None else constraint.inverse_transform(value.exp()))
    return values


@torch.no_grad()
def _put(variables: Variables, values: list[Tensor]) -> None:
    for (variable, _), value in zip(variables, values, strict=True):
        variable.copy_(value)

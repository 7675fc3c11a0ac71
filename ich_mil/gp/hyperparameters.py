"""Learn the kernel, and where asked the inducing points, by raising the objective J of Eq. 29.

In: a head, its slices, q(w) and π - ½. Out: the same head with other hyperparameters λ, and q(w) under them
(Castro-Macías et al. 2024, Eq. 29 and step 8 of Algorithm 1).

The paper takes gradient steps on J with q(u) held fixed. That q was fitted under the old kernel, and its KL
ties the new one to the old: on the RSNA features (ℓ = D) 200 steps raise J by 1 after 3 sweeps and by 11
after 30. Here q(w) is at every λ the best one for fixed Θ and π, and J rises by 61 and by 22 in one call.
What is climbed, by L-BFGS-B, is a bound F(λ) on J (`ich_mil.gp.objective`). J has the last word: where it
would end lower than it was, nothing is changed.

Shapes: N slices, D features, M inducing points.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from gpytorch.constraints import Positive
from scipy.optimize import minimize
from torch import Tensor

from ich_mil.errors import ConfigError
from ich_mil.gp.ascent import Weights
from ich_mil.gp.densities import Density
from ich_mil.gp.objective import KernelObjective
from ich_mil.gp.smoothing import Smoother
from ich_mil.gp.sparse_gp import SparseGP
from ich_mil.ranks import ALONE, Ranks

EVALUATIONS = 8
"""Of F in one call. Θ and π are new in the next call, so an exact optimum for these is worth little."""

RANGE = (1e-2, 1e2)
"""Positive hyperparameters stay in here. Features are standardised and f is a logit: a length scale of 0.01
links no slice to another, one of 100 switches a feature off, a variance of 100 saturates every sigmoid. F is
flat beyond these, or K_ZZ singular."""

Evaluate = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""A function to minimise and its gradient."""

Bounds = list[tuple[float | None, float | None]]

Variables = list[tuple[Tensor, Positive | None]]
"""What is learned, as its module holds it, with the constraint of a positive parameter."""


def learn_hyperparameters(
    model: SparseGP,
    x: Tensor,
    rows: Tensor,
    weights: Weights,
    target: Tensor,
    density: Density,
    *,
    smoother: Smoother | None = None,
    ranks: Ranks = ALONE,
) -> Weights:
    """Raise J (Eq. 29) over the kernel's hyperparameters, in place.

    All parameters of the kernel are learned but those that required no gradient when it was given, positive
    ones on the logarithmic scale and within `RANGE`; with `learn` = `kernel_and_inducing` the inducing points
    too. J ends no lower than it was.

    Args:
        model: the head; its kernel and inducing points are changed.
        x: (N, D) raw features of this rank's slices.
        rows: (N,) rows of x, in the order of `target`.
        weights: q(w), one replicate, under the kernel as it is.
        target: (N,) π - ½.
        density: ψ.
        smoother: of the scans of x; its width is not learned.
        ranks: that share the scans out; all learn the same.

    Returns:
        The best q(w) under the new kernel for Θ of the old q(w); `weights` where nothing has changed.

    Raises:
        ConfigError: the kernel has no parameters to learn, or a prior; or log Z is asked for with another
            kernel than RBF of all features.
    """
    variables = _variables(model)
    objective = KernelObjective(model, x, rows, target, density, smoother=smoother, ranks=ranks)
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
        return -F, -ranks.total(y.grad).numpy()

    start, bounds = _start(variables)
    try:
        for variable, _ in variables:
            variable.requires_grad_(True)
        found = _minimise(negative, start, bounds, ranks)
    finally:
        for variable, _ in variables:
            variable.requires_grad_(False)
            variable.grad = None
    _put(variables, _values(variables, torch.from_numpy(found)))
    projection = objective.projection()
    learned = Weights.solve(*projection.gram(theta[None], target[None]))
    if objective.evaluate(projection, learned)[0] >= before:
        return learned
    _put(variables, old)
    return weights


def _minimise(evaluate: Evaluate, start: np.ndarray, bounds: Bounds, ranks: Ranks) -> np.ndarray:
    """Where L-BFGS-B ends. Rank 0 runs it and says where to evaluate: two machines may round differently.

    A message is a vector, and 1 if it is to be evaluated, 0 if it is the end.
    """
    if not ranks.first:
        while True:
            *vector, going = ranks.same(torch.zeros(len(start) + 1, dtype=torch.float64)).tolist()
            if not going:
                return np.array(vector)
            evaluate(np.array(vector))

    def announce(vector: np.ndarray, going: float) -> None:
        ranks.same(torch.from_numpy(np.append(vector, going)))

    def ask(vector: np.ndarray) -> tuple[float, np.ndarray]:
        announce(vector, 1.0)
        return evaluate(vector)

    found = minimize(ask, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxfun": EVALUATIONS})
    announce(found.x, 0.0)
    return found.x


def _variables(model: SparseGP) -> Variables:
    """The kernel's parameters, and the inducing points where the settings say so."""
    prior = next((name for name, *_ in model.covar_module.named_priors()), None)
    if prior is not None:
        raise ConfigError(
            f"head.learn: the kernel has a prior ({prior}), which J (Eq. 29) has no term for; give a kernel "
            "without one, or set learn to nothing"
        )
    found: Variables = [
        (parameter, constraint if isinstance(constraint, Positive) else None)
        for name, parameter, constraint in model.covar_module.named_parameters_and_constraints()
        if name not in model.fixed
    ]
    if model.settings.learn == "kernel_and_inducing":
        found.append((model.inducing, None))
    if not found:
        raise ConfigError(
            f"head.learn: the kernel {type(model.covar_module).__name__} has no parameters to learn "
            "(one that requires no gradient stays as it is); set learn to nothing"
        )
    return found


def _start(variables: Variables) -> tuple[np.ndarray, Bounds]:
    """The vector L-BFGS-B starts from, and its bounds; a value outside `RANGE` may stay where it is."""
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
    """Values of the variables from L-BFGS-B's vector: logarithms of positive ones, the others as they are."""
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
